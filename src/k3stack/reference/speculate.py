"""Verification of drafted tokens by rejection sampling: the answer is distributed as without a draft.

A draft proposes x_1 ... x_k with its own distributions q_1 ... q_k. The target model, given all of them in one pass,
has p_1 ... p_k+1. From left to right x_i is accepted with probability min(1, p_i(x_i) / q_i(x_i)). At the first
rejection the token is drawn from max(0, p_i - q_i), normalised; if all were accepted, one more from p_k+1. At
temperature 0 each p is one token, so the answer is exactly the target's own.

Source of the rule: Leviathan and others, "Fast inference from transformers via speculative decoding", 2023.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from k3stack.reference.sampling import Chance, Row, pick

__all__ = ["Proposal", "verify_one"]


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a draft proposes for one sequence.

    Attributes:
        tokens: k tokens.
        distributions: the k distributions [V] they were drawn from; None: each is its draft's single choice.
    """

    tokens: tuple[int, ...]
    distributions: tuple[Row, ...] | None = None


def verify_one(target: Row, proposal: Proposal, place: int, chance: Chance) -> tuple[int, bool]:
    """The token at one place of a proposal, and whether it is the proposed one.

    Args:
        target: p [V] at this place.
        proposal: all proposed tokens.
        place: which of them.
        chance: of this position.
    """
    token = proposal.tokens[place]
    drafted = None if proposal.distributions is None else proposal.distributions[place]
    likely = 1.0 if drafted is None else float(drafted[token])
    if target[token] > 0 and (target[token] >= likely or chance.draw() * likely < target[token]):
        return token, True
    rest = target.copy()
    if drafted is None:
        rest[token] = 0
    else:
        rest -= drafted
        np.maximum(rest, 0, out=rest)
    if rest.sum() <= 0:  # p and q differ by rounding alone
        rest = target
    return pick(rest, chance), False
