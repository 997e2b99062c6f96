"""The parser: one pass, linear time, any cutting of the stream gives the same message."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from k3stack.errors import UsageError
from k3stack.xtml.calls import Rules
from k3stack.xtml.channels import Channels
from k3stack.xtml.events import Event, Finished, Message
from k3stack.xtml.lexer import Lexer, Marker, Partial
from k3stack.xtml.reasoning import Reasoning
from k3stack.xtml.record import Record
from k3stack.xtml.wire import CONTROL_IDS, Channel

__all__ = ["Parser", "Vocabulary", "declared_names", "parse"]


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """How token ids become text.

    Attributes:
        bytes_of: the bytes of one ordinary token (tiktoken's `decode_single_token_bytes`).
        controls: the ids of the control tokens; Kimi-K3's unless given.
    """

    bytes_of: Callable[[int], bytes]
    controls: Mapping[int, str] = field(default_factory=lambda: CONTROL_IDS)


class Parser:
    """Parses one completion, piece by piece.

    It never raises on any input, drops no text without a problem, never lets one call's arguments reach another,
    and gives the same message for every cutting of the stream. A piece costs time in proportion to its own length.

    Args:
        starts_in: the channel that the prompt left open: "think", or "response" with thinking off.
        tools: the declared tools, as names or as OpenAI tool objects. Empty: none are declared, so calls are not
            returned. None: not known, so every name is accepted.
        tool_choice: the request's `tool_choice`; with "none" calls are not returned.
        vocabulary: needed for `feed_ids` only.
    """

    def __init__(
        self,
        starts_in: Channel = "think",
        *,
        tools: Iterable[str | Mapping[str, Any]] | None = (),
        tool_choice: object = "auto",
        vocabulary: Vocabulary | None = None,
    ) -> None:
        if starts_in not in ("think", "response"):
            raise UsageError(f"no channel {starts_in!r}", where="starts_in", hint="Give think or response")
        declared = None if tools is None else declared_names(tools)
        allowed = not _forbids_calls(tool_choice) and (declared is None or bool(declared))
        self._record = Record()
        rules = Rules(allowed, declared)
        self._channels: Reasoning | Channels = (
            Reasoning(rules, self._record)
            if starts_in == "think"
            else Channels(rules, self._record, in_response=True)
        )
        self._tail = _Tail(self._channels)
        self._lexer = Lexer(self._tail)
        self._vocabulary = vocabulary
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        # Where text without "<" goes at once while we are inside a long value: most of a large call's pieces.
        self._value_pieces: list[str] | None = None
        self._finished = False

    def feed(self, text: str) -> list[Event]:
        """Take the next piece of text; control tokens are recognised by their spelling, cut anywhere."""
        if self._value_pieces is not None and "<" not in text:
            self._value_pieces.append(text)
            return []
        if self._finished:
            return []
        self._flush_bytes()
        self._lexer.feed(text)
        return self._news()

    def feed_ids(self, ids: Iterable[int]) -> list[Event]:
        """Take the next token ids. Only control ids are control tokens: text that spells one stays text.

        Characters cut between ids are put together; bytes that are no UTF-8 become U+FFFD, and so do ids that the
        vocabulary does not have.

        Raises:
            UsageError: the parser has no vocabulary.
        """
        if self._vocabulary is None:
            raise UsageError("this parser has no vocabulary", hint="Give Parser(vocabulary=...) to feed it ids")
        if self._finished:
            return []
        controls, bytes_of = self._vocabulary.controls, self._vocabulary.bytes_of
        for number in ids:
            control = controls.get(number)
            if control is None:
                self._lexer.ordinary(self._decoder.decode(_token_bytes(bytes_of, number)))
            else:
                self._flush_bytes()
                self._lexer.control(control)
        events = self._news()
        if self._decoder.getstate()[0]:
            self._value_pieces = None  # half a character waits for its rest
        return events

    def finish(self) -> list[Event]:
        """Say that the completion ended. The last event is `Finished`. Calling it again gives nothing."""
        if self._finished:
            return []
        self._flush_bytes()
        self._finished, self._value_pieces = True, None
        self._tail.finish(self._lexer.finish())
        events = self._record.take_events()
        events.append(Finished(self._record.message()))
        return events

    @property
    def settled(self) -> bool:
        """Whether no later marker can change what was told so far (no `Correction` can come any more)."""
        return self._channels.settled

    @property
    def message(self) -> Message:
        """The message so far; after `finish` the final one. Costs time in proportion to its length."""
        return self._record.message()

    def _news(self) -> list[Event]:
        idle = self._lexer.idle and self._tail.idle
        self._value_pieces = self._channels.plain_value if idle else None
        return self._record.take_events()

    def _flush_bytes(self) -> None:
        """Characters end at a control token, at text and at the end."""
        rest = self._decoder.decode(b"", final=True)
        if rest:
            self._lexer.ordinary(rest)


class _Tail:
    """Holds the message close and `<|end_of_msg|>` back until it is known whether they are the end."""

    def __init__(self, channels: Reasoning | Channels) -> None:
        self._channels = channels
        self._markers: list[Marker] = []

    @property
    def idle(self) -> bool:
        """Whether nothing is held back."""
        return not self._markers

    def text(self, text: str) -> None:
        if self._markers:
            self._release()
        self._channels.text(text)

    def broken(self, raw: str) -> None:
        self._release()
        self._channels.broken(raw)

    def marker(self, marker: Marker) -> None:
        if marker.what == "end" and not any(held.what == "end" for held in self._markers):
            self._markers.append(marker)
        elif marker.what == "close message" or marker.what == "end":
            self._release()
            self._markers.append(marker)
        else:
            self._release()
            self._channels.marker(marker)

    def finish(self, partial: Partial) -> None:
        message_close = next((held for held in self._markers if held.what == "close message"), None)
        self._channels.finish(message_close, partial)

    def _release(self) -> None:
        markers, self._markers = self._markers, []
        for marker in markers:
            self._channels.marker(marker)


def parse(
    text: str,
    starts_in: Channel = "think",
    *,
    tools: Iterable[str | Mapping[str, Any]] | None = (),
    tool_choice: object = "auto",
) -> Message:
    """Parse a whole completion; see `Parser` for the arguments."""
    parser = Parser(starts_in, tools=tools, tool_choice=tool_choice)
    parser.feed(text)
    parser.finish()
    return parser.message


def declared_names(tools: Iterable[str | Mapping[str, Any]]) -> frozenset[str]:
    """The names of declared tools, given as names or as OpenAI tool objects. What has no name is left out."""
    return frozenset(name for tool in tools if isinstance(name := _tool_name(tool), str))


def _tool_name(tool: str | Mapping[str, Any]) -> object:
    if not isinstance(tool, Mapping):
        return tool
    function = tool.get("function", tool)
    return function.get("name") if isinstance(function, Mapping) else None


def _forbids_calls(tool_choice: object) -> bool:
    if isinstance(tool_choice, Mapping):
        tool_choice = tool_choice.get("type")
    return tool_choice == "none"


def _token_bytes(bytes_of: Callable[[int], bytes], number: int) -> bytes:
    try:
        return bytes_of(number)
    except (LookupError, ValueError, OverflowError):
        return b"\xef\xbf\xbd"
