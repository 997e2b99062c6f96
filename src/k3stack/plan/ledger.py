"""The ledger: memory of one GPU, item by item, each with its bytes, where the number comes from, and its formula."""

from __future__ import annotations

from dataclasses import dataclass

from k3stack.values import Origin

__all__ = ["Ledger", "Line"]


@dataclass(frozen=True, slots=True)
class Line:
    """One item of the ledger.

    Attributes:
        what: the item, in a few words.
        size_bytes: bytes on one GPU.
        origin: how the number was come by.
        formula: how it is made up, for a reader with a calculator.
    """

    what: str
    size_bytes: int
    origin: Origin
    formula: str


@dataclass(frozen=True, slots=True)
class Ledger:
    """What one GPU holds.

    Attributes:
        stage: which pipeline stage the GPU belongs to; the one that has the least memory left.
    """

    lines: tuple[Line, ...]
    stage: int = 0

    @property
    def total_bytes(self) -> int:
        """The sum of all lines."""
        return sum(line.size_bytes for line in self.lines)
