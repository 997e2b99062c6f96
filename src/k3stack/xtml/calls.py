"""One tool call while it is being written."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from k3stack.xtml.attributes import Attributes, parse_attributes
from k3stack.xtml.events import Call
from k3stack.xtml.lexer import Marker
from k3stack.xtml.record import Record
from k3stack.xtml.typed import decode_value
from k3stack.xtml.wire import ProblemCode

__all__ = ["CallBuilder", "Rules", "Value", "accept_marker"]


@dataclass(frozen=True, slots=True)
class Rules:
    """Which calls are returned.

    Attributes:
        allowed: False: no call is.
        declared: the names that do not count as undeclared; None: every name.
    """

    allowed: bool
    declared: Collection[str] | None


def _read_attributes(marker: Marker, record: Record, call: int | None = None) -> Attributes:
    """The attributes of an opening marker, and the problems of its spelling."""
    if marker.loose:
        record.problem(ProblemCode.LOOSE_MARKER)
    attributes = parse_attributes(marker.attributes)
    if not attributes.clean:
        record.problem(ProblemCode.BAD_ATTRIBUTE, call)
    return attributes


def accept_marker(marker: Marker, record: Record) -> None:
    """Report what is wrong with the spelling of a marker that has no attributes, now that it counts."""
    _read_attributes(marker, record)
    if marker.attributes.strip():
        record.problem(ProblemCode.BAD_ATTRIBUTE)


class Value:
    """The text of an argument or of a json block, until its close.

    Attributes:
        tag: "argument" or "json".
        pieces: the text so far.
        controls: the pieces that hold a control token, by place: the marker, or None for one that is no marker.
    """

    __slots__ = ("controls", "declared", "key", "pieces", "tag")

    def __init__(self, tag: str, key: str | None, declared: str | None) -> None:
        self.tag = tag
        self.key = key
        self.declared = declared
        self.pieces: list[str] = []
        self.controls: dict[int, Marker | None] = {}

    def text(self, text: str) -> None:
        """Add text."""
        self.pieces.append(text)

    def broken(self, raw: str) -> None:
        """Add text that holds a control token."""
        self.controls[len(self.pieces)] = None
        self.pieces.append(raw)

    def marker(self, marker: Marker) -> None:
        """Add a marker that is part of the value."""
        self.controls[len(self.pieces)] = marker
        self.pieces.append(marker.raw)

    def place_of(self, kinds: Collection[str]) -> int | None:
        """The place in `pieces` of the first marker of these kinds."""
        for place, marker in self.controls.items():
            if marker is not None and marker.what in kinds:
                return place
        return None


class CallBuilder:
    """Collects one call; tells it to the record as it grows.

    Args:
        opener: the marker that opened the call.
        rules: which calls are returned.
        record: where events and problems go.
    """

    def __init__(self, opener: Marker, rules: Rules, record: Record) -> None:
        self._record = record
        self._rules = rules
        self._arguments: dict[str, Any] = {}
        self._broken = False
        attributes = _read_attributes(opener, record)
        self._name = attributes.values.get("tool", "")
        self.number: int | None = None
        if not self._name:
            record.problem(ProblemCode.MISSING_NAME)
        if not rules.allowed:
            record.problem(ProblemCode.UNEXPECTED_CALL)
        elif self._name:
            self.number = record.start_call(self._name)

    def open_value(self, opener: Marker) -> Value:
        """Begin the value that an argument or json marker opens."""
        attributes = _read_attributes(opener, self._record, self.number).values
        if opener.what == "open json":
            return Value("json", None, "object")
        if "key" not in attributes:
            self._record.problem(ProblemCode.MISSING_KEY, self.number)
            self._broken = True
        return Value("argument", attributes.get("key"), attributes.get("type"))

    def close_value(self, value: Value) -> None:
        """The value is complete: decode it and add it to the arguments."""
        if value.controls:
            self._record.problem(ProblemCode.AMBIGUOUS_MARKER, self.number)
        decoded = decode_value("".join(value.pieces), value.declared)
        if decoded.bad:
            self._record.problem(ProblemCode.BAD_VALUE, self.number)
        if decoded.duplicate_key:
            self._record.problem(ProblemCode.DUPLICATE_KEY, self.number)
        if value.tag == "argument":
            if value.key is not None:
                self._add(value.key, decoded.value)
        elif decoded.bad:
            self._broken = True
        else:
            for key, item in decoded.value.items():
                self._add(key, item)

    def leave_value_unfinished(self) -> None:
        """An argument was begun and not finished: the call will not be returned."""
        self._broken = True

    def close(self, by_own_marker: bool) -> None:
        """The call is over: return it or drop it."""
        if not by_own_marker:
            self._record.problem(ProblemCode.UNCLOSED_CALL, self.number)
        if self.number is None:
            return
        if self._broken:
            self._record.drop_call(self.number)
            return
        if self._rules.declared is not None and self._name not in self._rules.declared:
            self._record.problem(ProblemCode.UNDECLARED_TOOL, self.number)
        self._record.end_call(self.number, Call(self._name, self._arguments))

    def _add(self, key: str, value: Any) -> None:
        if key in self._arguments:
            self._record.problem(ProblemCode.DUPLICATE_KEY, self.number)
        self._arguments[key] = value
        if self.number is not None:
            self._record.argument(self.number, key, value)
