"""Whether answers of random weights that differ from those alone differ by rounding: asked of the endpoint itself.

Rounding depends on how many requests run at once and on what of a prompt is cached, not on what the others ask. So a
prompt that strays in company is asked alone once more, its front now cached, and then in the company of copies of
itself. Copies have nothing to give each other: where they stray too, the company of others is not needed to explain it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from k3stack.verify.answer import Answer
from k3stack.verify.likeness import FAR, nearness, same
from k3stack.verify.session import Session

__all__ = ["Strayed", "explained_by_copies"]

_LOOKED_AT = 4


@dataclass(frozen=True, slots=True)
class Strayed:
    """A request, its answer alone, and another one that it got in company."""

    body: dict[str, Any]
    alone: Answer
    got: Answer


async def explained_by_copies(session: Session, strayed: Sequence[Strayed], at_once: int) -> bool:
    """Whether rounding explains all of the first four; False where there are no log probabilities to tell."""
    for one in strayed[:_LOOKED_AT]:
        if not one.alone.chances or not one.got.chances or not await _explained(session, one, at_once):
            return False
    return bool(strayed)


async def _explained(session: Session, one: Strayed, at_once: int) -> bool:
    again = await session.endpoint.chat(one.body)
    if same(again, one.got):
        return True
    outcomes = await session.together([one.body] * at_once)
    copies = [outcome for outcome in outcomes if isinstance(outcome, Answer)]
    if len(copies) < at_once:
        return False
    if any(same(copy, one.got) for copy in copies):
        return True
    stray = any(not same(copy, again) for copy in copies)
    return stray and max(nearness(other, one.got) for other in (one.alone, again, *copies)) >= FAR
