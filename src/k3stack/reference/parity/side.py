"""What a comparison needs of a side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from k3stack.xtml import Segment

__all__ = ["Key", "Scored", "Side"]

Key = int | str
"""A token: its id, or its text where a server does not tell ids."""


@dataclass(frozen=True, slots=True)
class Scored:
    """What a side thinks of one place of a text.

    Attributes:
        token: the token that is there.
        best: the most likely token.
        logprobs: log-probabilities of the most likely tokens and of the one that is there.
    """

    token: Key
    best: Key
    logprobs: Mapping[Key, float]


class Side(Protocol):
    """A checkpoint or an endpoint."""

    @property
    def name(self) -> str:
        """For people."""

    def tokens(self, prompt: Sequence[Segment]) -> list[int] | None:
        """The ids of a prompt; None where a side cannot tell."""

    def answer(self, prompt: Sequence[int], count: int) -> list[int]:
        """The greedy answer of `count` tokens, end tokens ignored."""

    def score(self, tokens: Sequence[int], first: int, top: int) -> list[Scored]:
        """What it thinks of tokens[first:], each given all tokens before it."""

    def text(self, token: int) -> str:
        """A token as text, as this side's server would spell it."""
