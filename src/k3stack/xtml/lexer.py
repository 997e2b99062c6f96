"""Text or token ids, cut anywhere, as a sequence of text and whole markers.

A marker is `<|open|>TAG ATTRIBUTES<|sep|>`, `<|close|>TAG<|sep|>` or `<|end_of_msg|>`. Whatever else holds a
control token is text. Nothing is scanned twice: a piece costs time in proportion to its length.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

from k3stack.xtml.wire import CLOSE, CONTROL_TOKENS, END, OPEN, SEP

__all__ = ["END_OF_MESSAGE", "Lexer", "Marker", "Partial", "Sink"]

_CONTROL = re.compile("|".join(re.escape(token) for token in CONTROL_TOKENS))
_LONGEST = max(len(token) for token in CONTROL_TOKENS)
_SPACE = " \t\r\n\f\v"
_TAGS = frozenset({"message", "think", "response", "tools", "call", "argument", "json"})
_LETTERS = re.compile("[a-z]*")
_LONGEST_TAG = max(len(tag) for tag in _TAGS)


@dataclass(frozen=True, slots=True)
class Marker:
    """One whole marker.

    Attributes:
        what: "open" or "close", a space, and the tag; or "end".
        raw: the marker as written.
        attributes: the text behind the tag of an opening marker.
        loose: there are spaces where the grammar has none.
    """

    what: str
    raw: str
    attributes: str = ""
    loose: bool = False


END_OF_MESSAGE = Marker("end", END)


@dataclass(frozen=True, slots=True)
class Partial:
    """What the end of the text cut off: the beginning of a marker, or nothing (`raw` is empty)."""

    raw: str = ""
    may_open: frozenset[str] = frozenset()
    """The tags of the opening markers that it may be the beginning of."""


class Sink(Protocol):
    """Who takes what the lexer finds."""

    def text(self, text: str) -> None:
        """Text without control tokens."""

    def broken(self, raw: str) -> None:
        """Text that holds a control token but is no marker."""

    def marker(self, marker: Marker) -> None:
        """A whole marker."""


class _Candidate:
    """A marker whose `<|sep|>` has not come yet."""

    __slots__ = ("_attributes", "_opens", "_pieces", "_stage", "_word", "loose")

    def __init__(self, token: str) -> None:
        self._opens = token == OPEN
        self._pieces = [token]
        self._attributes: list[str] = []
        self._word = ""
        self._stage = "before"  # before the tag, in the tag, behind it
        self.loose = False

    def take(self, text: str) -> bool:
        """Add text; False: this can be no marker any more."""
        self._pieces.append(text)
        if self._stage == "before":
            stripped = text.lstrip(_SPACE)
            self.loose = self.loose or len(stripped) < len(text)
            if not stripped:
                return True
            self._stage, text = "tag", stripped
        if self._stage == "tag":
            found = _LETTERS.match(text[: _LONGEST_TAG + 1])
            letters = found[0] if found else ""
            self._word += letters
            text = text[len(letters) :]
            if not text:
                return any(tag.startswith(self._word) for tag in _TAGS)
            if self._word not in _TAGS or text[0] not in _SPACE:
                return False
            self._stage = "behind"
        self._attributes.append(text)
        if self._opens:
            return True
        self.loose = True
        return not text.strip(_SPACE)

    @property
    def complete(self) -> bool:
        """Whether `<|sep|>` would make this a marker now."""
        return self._word in _TAGS

    def marker(self) -> Marker | None:
        """The marker, now that `<|sep|>` came; None if there is no tag."""
        if not self.complete:
            return None
        attributes = "".join(self._attributes)
        if attributes:
            canonical = attributes[0] == " " and attributes.strip(_SPACE) == attributes[1:] != ""
            self.loose = self.loose or not canonical
        what = f"{'open' if self._opens else 'close'} {self._word}"
        return Marker(what, self.raw + SEP, attributes, self.loose)

    @property
    def raw(self) -> str:
        return "".join(self._pieces)

    @property
    def may_open(self) -> frozenset[str]:
        if not self._opens:
            return frozenset()
        if self._stage == "behind":
            return frozenset({self._word})
        return frozenset(tag for tag in _TAGS if tag.startswith(self._word))


class Lexer:
    """Cuts a stream into text and markers and gives them to a sink.

    `feed` takes text in which control tokens are spelled out. `control` and `ordinary` take what a tokenizer has
    told apart already: text given to `ordinary` never becomes a control token.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._tail = ""
        self._candidate: _Candidate | None = None

    @property
    def idle(self) -> bool:
        """Whether nothing is held back: text without `<` would go straight to the sink."""
        return self._candidate is None and not self._tail

    def feed(self, text: str) -> None:
        """Take text in which control tokens are spelled out, cut anywhere."""
        if self._tail:
            text, self._tail = self._tail + text, ""
        cut = text.rfind("<", max(0, len(text) - _LONGEST + 1))
        if cut >= 0 and any(token.startswith(text[cut:]) for token in CONTROL_TOKENS if token != text[cut:]):
            text, self._tail = text[:cut], text[cut:]
        start = 0
        for match in _CONTROL.finditer(text):
            if match.start() > start:
                self._text(text[start : match.start()])
            self._control(match[0])
            start = match.end()
        if start < len(text):
            self._text(text[start:])

    def ordinary(self, text: str) -> None:
        """Take text that is no control token whatever it spells."""
        self._settle_tail()
        if text:
            self._text(text)

    def control(self, token: str) -> None:
        """Take one control token."""
        self._settle_tail()
        self._control(token)

    def finish(self) -> Partial:
        """The stream ended. What was held back is the beginning of a marker, or goes to the sink as text."""
        tail, candidate = self._tail, self._candidate
        self._tail, self._candidate = "", None
        if candidate is not None:
            raw = candidate.raw
            if not tail or (candidate.complete and SEP.startswith(tail)) or candidate.take(tail):
                return Partial(raw + tail, candidate.may_open)
            self._sink.broken(raw)
        if tail and any(token.startswith(tail) for token in (OPEN, CLOSE, END)):
            return Partial(tail, _TAGS if OPEN.startswith(tail) else frozenset())
        if tail:
            self._sink.text(tail)
        return Partial()

    def _settle_tail(self) -> None:
        if self._tail:
            tail, self._tail = self._tail, ""
            self._text(tail)

    def _text(self, text: str) -> None:
        candidate = self._candidate
        if candidate is None:
            self._sink.text(text)
        elif not candidate.take(text):
            self._give_up()

    def _give_up(self) -> None:
        if self._candidate is not None:
            candidate, self._candidate = self._candidate, None
            self._sink.broken(candidate.raw)

    def _control(self, token: str) -> None:
        if token == SEP:
            marker = self._candidate.marker() if self._candidate is not None else None
            if marker is not None:
                self._candidate = None
                self._sink.marker(marker)
            else:
                self._give_up()
                self._sink.broken(SEP)
            return
        self._give_up()
        if token == END:
            self._sink.marker(END_OF_MESSAGE)
        else:
            self._candidate = _Candidate(token)
