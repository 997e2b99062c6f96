"""The channels behind the reasoning: which marker counts where, and whose text is whose.

    BETWEEN -> RESPONSE -> BETWEEN -> TOOLS -> BETWEEN        BETWEEN is outside every channel
                                       |^
                                      CALL <-> VALUE

A marker that counts only if the right thing follows is held until the next one comes: a tools open, and the close
of a value. The message close and `<|end_of_msg|>` count only at the very end; the parser keeps those from here.
"""

from __future__ import annotations

from enum import Enum, auto

from k3stack.xtml.calls import CallBuilder, Rules, Value, accept_marker
from k3stack.xtml.lexer import Marker, Partial
from k3stack.xtml.record import Record
from k3stack.xtml.wire import ProblemCode

__all__ = ["Channels"]

_FOLLOWS_VALUE = frozenset({"open argument", "close call", "open call", "close tools"})
_ENDS_CALL = frozenset({"open call", "close tools", "open tools", "open response", "close message"})
_ENDS_UNFINISHED = frozenset({"open call", "close tools"})
_VALUE_TAGS = frozenset({"argument", "json"})


class _In(Enum):
    BETWEEN = auto()
    RESPONSE = auto()
    TOOLS = auto()
    CALL = auto()
    VALUE = auto()
    UNFINISHED = auto()  # a value that has no close ahead: skipped up to the next call


class Channels:
    """Follows a message through its channels. Takes text and markers as a `Sink` does.

    Args:
        rules: which calls are returned.
        record: where the message goes.
        in_response: the response is open; else we are outside every channel.
    """

    def __init__(self, rules: Rules, record: Record, *, in_response: bool = False) -> None:
        self._record = record
        self._rules = rules
        self._state = _In.RESPONSE if in_response else _In.BETWEEN
        self._value: Value | None = None
        self._call: CallBuilder | None = None
        self._held: Marker | None = None
        self._space: list[str] = []  # behind a held tools open
        self._tools_channels = 0
        self._calls_in_channel = 0
        self._channel_implied = False
        self._response_came = in_response
        self._no_close_ahead: set[str] = set()

    @property
    def settled(self) -> bool:
        """Always: no later marker changes what earlier text was."""
        return True

    @property
    def plain_value(self) -> list[str] | None:
        """Where all further text goes as it is, if we are in a value and nothing is held."""
        return None if self._value is None or self._held is not None else self._value.pieces

    # What the lexer gives.

    def text(self, text: str) -> None:
        """Take text without control tokens."""
        if self._held is not None:
            if self._state is _In.BETWEEN and not text.strip():
                self._space.append(text)
                return
            self._held_was_text()
        if self._value is not None:
            self._value.text(text)
        else:
            self._plain_text(text)

    def broken(self, raw: str) -> None:
        """Take text that holds a control token but is no marker."""
        self._held_was_text()
        if self._value is not None:
            self._value.broken(raw)
        else:
            self._plain_text(raw)

    def marker(self, marker: Marker) -> None:
        """Take a whole marker."""
        match self._state:
            case _In.BETWEEN:
                self._in_between(marker)
            case _In.RESPONSE:
                self._in_response(marker)
            case _In.TOOLS:
                self._in_tools(marker)
            case _In.CALL:
                self._in_call(marker)
            case _In.VALUE:
                self._in_value(marker)
            case _In.UNFINISHED:
                self._in_unfinished(marker)

    def finish(self, message_close: Marker | None, partial: Partial) -> None:
        """The text ended.

        Args:
            message_close: the message close at the end; None: the text is cut off.
            partial: the beginning of a marker that was cut off.
        """
        closed = message_close is not None
        if self._value is not None:
            self._finish_value(closed)
        if self._held is not None:
            self._finish_tools_open(closed)
        if self._call is not None:
            if partial.may_open & _VALUE_TAGS:
                self._call.leave_value_unfinished()
            self._close_call(by_own_marker=False)
        if closed:
            self._end_open_channel()
        elif self._state is _In.TOOLS:
            self._count_calls()
        if message_close is not None:
            accept_marker(message_close, self._record)
        else:
            self._record.problem(ProblemCode.TRUNCATED)

    # One method per state: what a marker means there.

    def _in_between(self, marker: Marker) -> None:
        if self._held is not None:
            self._open_held_tools()
            self._in_tools(marker)
            return
        match marker.what:
            case "open response":
                self._open_response(marker)
            case "open tools":
                self._held = marker
            case "open call":
                self._record.problem(ProblemCode.MISSING_TOOLS)
                self._enter_tools(implied=True)
                self._in_tools(marker)
            case _:
                self._misplaced(marker)

    def _in_response(self, marker: Marker) -> None:
        if self._held is not None:
            if marker.what in _ENDS_UNFINISHED:
                self._record.problem(ProblemCode.UNCLOSED_RESPONSE)
                self._open_held_tools()
                self._in_tools(marker)
                return
            self._held_was_text()
        match marker.what:
            case "close response":
                accept_marker(marker, self._record)
                self._state = _In.BETWEEN
            case "open tools":
                self._held = marker
            case _:
                self._record.content(marker.raw)

    def _in_tools(self, marker: Marker) -> None:
        match marker.what:
            case "open call":
                self._calls_in_channel += 1
                self._call = CallBuilder(marker, self._rules, self._record)
                self._state = _In.CALL
            case "close tools":
                accept_marker(marker, self._record)
                self._end_tools(by_own_marker=True)
            case "open tools":
                self._end_tools(by_own_marker=False)
                accept_marker(marker, self._record)
                self._enter_tools(implied=False)
            case "open response" | "close message":
                self._end_tools(by_own_marker=False)
                self._in_between(marker)
            case _:
                self._misplaced(marker)

    def _in_call(self, marker: Marker) -> None:
        if self._call is None:
            return
        if marker.what in ("open argument", "open json"):
            value = self._call.open_value(marker)
            if value.tag in self._no_close_ahead:
                self._call.leave_value_unfinished()
                self._state = _In.UNFINISHED
            else:
                self._value, self._state = value, _In.VALUE
        elif marker.what == "close call":
            accept_marker(marker, self._record)
            self._close_call(by_own_marker=True)
        elif marker.what in _ENDS_CALL:
            self._close_call(by_own_marker=False)
            self._in_tools(marker)
        else:
            self._misplaced(marker)

    def _in_value(self, marker: Marker) -> None:
        if self._value is None:
            return
        if self._held is not None:
            if marker.what in _FOLLOWS_VALUE:
                self._close_value()
                self._in_call(marker)
                return
            self._held_was_text()
        if marker.what == f"close {self._value.tag}":
            self._held = marker
        else:
            self._value.marker(marker)

    def _in_unfinished(self, marker: Marker) -> None:
        if marker.what in _ENDS_UNFINISHED:
            if marker.what == "open call":
                # The call may be real, or quoted in the value whose close is missing.
                self._record.problem(ProblemCode.AMBIGUOUS_MARKER)
            self._close_call(by_own_marker=False)
            self._in_tools(marker)

    # Text, and markers that have no place.

    def _plain_text(self, text: str) -> None:
        match self._state:
            case _In.RESPONSE:
                self._record.content(text)
            case _In.UNFINISHED:
                pass  # part of a call that is reported and not returned
            case _In.CALL if not self._rules.allowed:
                pass  # a call that is not allowed leaves no text, and is reported
            case _:
                self._record.problem(ProblemCode.STRAY_TEXT)
                self._record.content(text)

    def _misplaced(self, marker: Marker) -> None:
        """A close of nothing, or a channel that cannot open here, goes; what carries attributes stays as text."""
        self._record.problem(ProblemCode.STRAY_TEXT)
        if marker.what in ("open argument", "open json", "open message"):
            self._plain_text(marker.raw)

    # Held markers.

    def _held_was_text(self) -> None:
        """What follows is not what makes the held marker count: it is text."""
        if self._held is None:
            return
        marker, self._held = self._held, None
        if self._value is not None:
            self._value.marker(marker)
            return
        self._plain_text(marker.raw)
        for space in self._take_space():
            self._plain_text(space)

    def _open_held_tools(self) -> None:
        """What follows makes the held tools open count."""
        if self._held is not None:
            accept_marker(self._held, self._record)
            self._held = None
        self._enter_tools(implied=False)
        for space in self._take_space():
            self._plain_text(space)

    def _take_space(self) -> list[str]:
        space, self._space = self._space, []
        return space

    # Openings and closings.

    def _open_response(self, marker: Marker) -> None:
        if self._response_came or self._tools_channels:
            self._record.problem(ProblemCode.STRAY_TEXT)
        self._response_came = True
        accept_marker(marker, self._record)
        self._state = _In.RESPONSE

    def _enter_tools(self, implied: bool) -> None:
        if not implied:
            self._tools_channels += 1
            if self._tools_channels > 1:
                self._record.problem(ProblemCode.REPEATED_TOOLS)
        self._channel_implied = implied
        self._calls_in_channel = 0
        self._state = _In.TOOLS

    def _end_tools(self, by_own_marker: bool) -> None:
        if not by_own_marker and not self._channel_implied:
            self._record.problem(ProblemCode.UNCLOSED_TOOLS)
        self._count_calls()
        self._state = _In.BETWEEN

    def _count_calls(self) -> None:
        if not self._calls_in_channel:
            self._record.problem(ProblemCode.EMPTY_TOOLS)

    def _close_value(self) -> None:
        if self._call is not None and self._value is not None:
            if self._held is not None:
                accept_marker(self._held, self._record)
            self._call.close_value(self._value)
        self._held = self._value = None
        self._state = _In.CALL

    def _close_call(self, by_own_marker: bool) -> None:
        if self._call is not None:
            self._call.close(by_own_marker)
        self._call = self._value = None
        self._state = _In.TOOLS

    def _end_open_channel(self) -> None:
        """The message close ends a channel that is still open."""
        match self._state:
            case _In.RESPONSE:
                self._record.problem(ProblemCode.UNCLOSED_RESPONSE)
            case _In.TOOLS:
                self._end_tools(by_own_marker=False)
            case _:
                pass

    # The end of the text.

    def _finish_tools_open(self, closed: bool) -> None:
        if self._state is _In.BETWEEN:
            self._open_held_tools()
        elif closed:
            self._held_was_text()
        else:
            self._record.problem(ProblemCode.UNCLOSED_RESPONSE)
            self._open_held_tools()

    def _finish_value(self, closed: bool) -> None:
        """A value whose close is held ends here. Another one was never finished, nor is its call.

        In a cut-off text all the rest belongs to that value. In a whole message its close was forgotten: the
        message goes on at the next call or tools close. At most twice: no close of this kind is ahead any more.
        """
        while self._value is not None and self._held is None:
            value = self._value
            self._no_close_ahead.add(value.tag)
            if self._call is not None:
                self._call.leave_value_unfinished()
            place = value.place_of(_ENDS_UNFINISHED)
            if not closed or place is None:
                return
            self._value, self._state = None, _In.UNFINISHED
            self._replay(value, place)
        if self._value is not None:
            self._close_value()

    def _replay(self, value: Value, place: int) -> None:
        """Read the rest of an unfinished value as what it was written as."""
        for number in range(place, len(value.pieces)):
            piece = value.pieces[number]
            if number not in value.controls:
                self.text(piece)
            elif (marker := value.controls[number]) is None:
                self.broken(piece)
            else:
                self.marker(marker)
