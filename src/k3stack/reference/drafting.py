"""Asking the draft: which sequences get a proposal, and how its tokens are drawn.

Shapes: B sequences, V the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence as Many

import numpy as np
import torch
from torch import Tensor

from k3stack.reference.batch import Memory, Output, Piece
from k3stack.reference.model.draft import Anchor, Drafter
from k3stack.reference.sampling import Chance, Row, distribution, pick
from k3stack.reference.sequence import Sequence
from k3stack.reference.speculate import Proposal

__all__ = ["Drafting"]

_OWN = 0x9E3779B97F4A7C15
"""Turns a request's seed into another for its draft: a token must not be drawn and judged by the same chance."""


class Drafting:
    """Uses a draft for an engine.

    Args:
        drafter: K3's, or one of a test.
        tokens: how many of its tokens to use at a time.
        context: the longest sequence.
    """

    def __init__(self, drafter: Drafter, tokens: int, context: int) -> None:
        self._drafter = drafter
        self._tokens = min(tokens, drafter.block)
        self._context = context

    def remember(self, output: Output, pieces: Many[Piece], memory: Memory) -> None:
        """Let the draft see what the target computed."""
        if output.captured is not None:
            self._drafter.remember(output.captured, pieces, memory)

    def propose(self, sequences: Many[Sequence], memory: Memory) -> dict[Sequence, Proposal]:
        """Proposals for sequences whose newest token is the only one that is not computed.

        A sequence with a grammar gets one too: what the grammar does not take is rejected.
        """
        asked = [each for each in sequences if self._room(each) > 0]
        if not asked:
            return {}
        anchors = []
        for sequence in asked:
            assert sequence.lease is not None
            pages = torch.tensor(sequence.lease.pages, dtype=torch.int64, device=memory.latent.device)
            anchors.append(Anchor(sequence.tokens[-1], sequence.lease.computed, pages))
        drawn: list[list[Row | None]] = [[] for _ in asked]

        def choose(logits: Tensor, place: int) -> tuple[Tensor, Tensor]:
            return self._draw(asked, logits, place, drawn)

        made = self._drafter.propose(anchors, memory, choose)
        proposals = {}
        for sequence, each, rows in zip(asked, made, drawn, strict=True):
            count = self._room(sequence)
            tokens = tuple(int(token) for token in each.tokens[:count])
            # Greedy drafts chose with certainty; the others by the distributions that `choose` noted.
            sampled = tuple(row for row in rows[:count] if row is not None)
            proposals[sequence] = Proposal(tokens, sampled or None)
        return proposals

    def _room(self, sequence: Sequence) -> int:
        """How many drafted tokens could still be of use: the answer and the context may end before."""
        left = min(
            sequence.request.sampling.max_tokens - sequence.answered,
            self._context - len(sequence.tokens),
        )
        return max(0, min(self._tokens, left - 1))

    def _draw(
        self, asked: Many[Sequence], logits: Tensor, place: int, drawn: list[list[Row | None]]
    ) -> tuple[Tensor, Tensor]:
        tokens, chosen = [], []
        for sequence, row, noted in zip(asked, logits.float().cpu().numpy(), drawn, strict=True):
            sampling = sequence.request.sampling
            probabilities = distribution(row.astype(np.float64), sampling)
            if sampling.greedy:
                tokens.append(int(probabilities.argmax()))
                noted.append(None)
            else:
                chance = Chance(sequence.seed ^ _OWN, sequence.answered + place)
                tokens.append(pick(probabilities, chance))
                noted.append(probabilities)
            chosen.append(torch.from_numpy(probabilities))
        return torch.tensor(tokens, device=logits.device), torch.stack(chosen).to(logits)
