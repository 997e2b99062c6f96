"""The think channel: reasoning, and the guess about where it ended while it has no close.

Reasoning ends at its close, wherever that is. Until one comes, a response, a call or the close of a response is
taken for the end of the reasoning. If a close comes after all, everything before it was reasoning, and all that
was told about it is corrected.
"""

from __future__ import annotations

from k3stack.xtml.calls import Rules, accept_marker
from k3stack.xtml.channels import Channels
from k3stack.xtml.lexer import Marker, Partial
from k3stack.xtml.record import Record
from k3stack.xtml.wire import ProblemCode

__all__ = ["Reasoning"]


class Reasoning:
    """Follows a message that starts in the think channel. Takes text and markers as a `Sink` does.

    Args:
        rules: which calls are returned.
        record: where the message goes.
    """

    def __init__(self, rules: Rules, record: Record) -> None:
        self._rules = rules
        self._record = record
        self._pieces: list[str] = []  # all text so far, as written
        self._held: Marker | None = None  # a tools open: ends reasoning if a call follows
        self._channels: Channels | None = None  # what comes behind the reasoning, as far as we know
        self.settled = False

    @property
    def plain_value(self) -> list[str] | None:
        """See `Channels.plain_value`."""
        return self._channels.plain_value if self.settled and self._channels is not None else None

    def text(self, text: str) -> None:
        """Take text without control tokens."""
        if not self.settled:
            self._pieces.append(text)
        if self._channels is not None:
            self._channels.text(text)
        else:
            self._reasoning(text)

    def broken(self, raw: str) -> None:
        """Take text that holds a control token but is no marker."""
        if not self.settled:
            self._pieces.append(raw)
        if self._channels is not None:
            self._channels.broken(raw)
        else:
            self._reasoning(raw)

    def marker(self, marker: Marker) -> None:
        """Take a whole marker."""
        if not self.settled:
            if marker.what == "close think":
                self._close(marker)
                return
            self._pieces.append(marker.raw)
        if self._channels is not None:
            self._channels.marker(marker)
        else:
            self._in_reasoning(marker)

    def finish(self, message_close: Marker | None, partial: Partial) -> None:
        """The text ended; see `Channels.finish`."""
        self.settled, self._pieces = True, []
        if self._channels is not None:
            self._channels.finish(message_close, partial)
        elif message_close is not None:
            self._held_was_text()
            self._record.problem(ProblemCode.UNCLOSED_THINK)
            accept_marker(message_close, self._record)
        else:
            # A held tools open is dropped: the call that would make it count may have been cut off.
            self._record.problem(ProblemCode.TRUNCATED)

    def _in_reasoning(self, marker: Marker) -> None:
        if self._held is not None and marker.what == "open call":
            self._guess_end(self._held, marker)
            return
        self._held_was_text()
        match marker.what:
            case "open response":
                self._guess_end(marker)
            case "close response":
                self._record.reasoning_was_content()
                self._record.problem(ProblemCode.SKIPPED_THINK)
                self._channels = Channels(self._rules, self._record, in_response=True)
                self._channels.marker(marker)
            case "open tools":
                self._held = marker
            case _:
                self._record.reasoning(marker.raw)

    def _guess_end(self, *markers: Marker) -> None:
        self._record.problem(ProblemCode.UNCLOSED_THINK)
        self._channels = Channels(self._rules, self._record)
        for marker in markers:
            self._channels.marker(marker)

    def _close(self, marker: Marker) -> None:
        if self._channels is not None:
            self._record.all_was_reasoning(self._pieces)
        else:
            self._held_was_text()
        self.settled, self._held, self._pieces = True, None, []
        accept_marker(marker, self._record)
        self._channels = Channels(self._rules, self._record)

    def _reasoning(self, text: str) -> None:
        self._held_was_text()
        self._record.reasoning(text)

    def _held_was_text(self) -> None:
        if self._held is not None:
            self._record.reasoning(self._held.raw)
            self._held = None
