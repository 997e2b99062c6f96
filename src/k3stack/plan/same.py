"""A model as a key of a cache."""

from __future__ import annotations

from k3stack.spec.model import ModelSpec

__all__ = ["Same"]


class Same:
    """The same object. Comparing models by value costs more than planning them."""

    __slots__ = ("spec",)

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.spec is other.spec

    def __hash__(self) -> int:
        return id(self.spec)
