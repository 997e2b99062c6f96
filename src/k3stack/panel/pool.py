"""A pool of JSON values in which each is written once."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["Pool"]


class Pool:
    """Values by number.

    Attributes:
        values: each as JSON.
    """

    def __init__(self) -> None:
        self.values: list[str] = []
        self._numbers: dict[str, int] = {}

    def add(self, value: Any) -> int:
        """The number of a value; the same value has the same number."""
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        if text not in self._numbers:
            self._numbers[text] = len(self.values)
            self.values.append(text)
        return self._numbers[text]

    def chunked(self, numbers: list[int]) -> list[int]:
        """A sequence as numbers of its pieces, cut where the content says, so that like sequences share pieces."""
        pieces: list[int] = []
        piece: list[int] = []
        for number in numbers:
            piece.append(number)
            if (number * 2_654_435_761 >> 7) % 6 == 0 or len(piece) == 24:
                pieces.append(self.add(piece))
                piece = []
        return [*pieces, *([self.add(piece)] if piece else [])]
