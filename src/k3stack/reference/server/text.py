"""Tokens as text: bytes put together into characters, and texts at which an answer ends."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

__all__ = ["Stops", "TokenText"]


class TokenText:
    """Puts the bytes of tokens together; half a character waits for its rest."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, data: bytes, final: bool = False) -> str:
        """The text that these bytes complete."""
        return self._decoder.decode(data, final)


class Stops:
    """Passes text on until one of several texts comes, which ends it and is not passed on.

    Text that may be the beginning of a stop is held back until that is decided.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self.found: str | None = None

    def feed(self, text: str) -> str:
        """The text that can be passed on now."""
        if not self._stops or self.found is not None:
            return "" if self.found is not None else text
        whole = self._held + text
        first = min(((place, stop) for stop in self._stops if (place := whole.find(stop)) >= 0), default=None)
        if first is not None:
            self.found, self._held = first[1], ""
            return whole[: first[0]]
        keep = next(
            (count for count in range(min(self._longest - 1, len(whole)), 0, -1) if self._begins(whole, count)), 0
        )
        self._held = whole[len(whole) - keep :]
        return whole[: len(whole) - keep]

    def finish(self) -> str:
        """The text that was held back, now that no more comes."""
        held, self._held = self._held, ""
        return held

    def _begins(self, text: str, count: int) -> bool:
        return any(stop.startswith(text[-count:]) for stop in self._stops)
