"""What the parser tells: events while the completion arrives, one `Message` at the end.

    ReasoningDelta, ContentDelta     text of a channel, in order
    CallStart                        a call began; exactly one CallEnd or CallDropped follows
    Argument                         one argument of the call is complete
    CallEnd                          the call is complete and is part of the message
    CallDropped                      the call is not returned; a Problem says why
    Problem                          something is wrong, told once per code and call
    Correction                       a later marker changed what was told: forget it all, this is the state now
    Finished                         the last event: the whole message

Law: applying the events in order (adding deltas, collecting calls and problems, replacing everything at a
Correction) gives the message of `Finished`. `k3stack.xtml.replay` does that.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from k3stack.xtml.wire import ProblemCode

__all__ = [
    "Argument",
    "Call",
    "CallDropped",
    "CallEnd",
    "CallStart",
    "ContentDelta",
    "Correction",
    "Event",
    "Finished",
    "Message",
    "Problem",
    "ReasoningDelta",
    "replay",
]


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call, as the model wrote it: the name is not checked against a schema, nor are the arguments.

    Attributes:
        name: the tool's name as written.
        arguments: the arguments in order; values are plain JSON types and always finite.
    """

    name: str
    arguments: dict[str, Any]

    @property
    def arguments_json(self) -> str:
        """The arguments as strict JSON, non-ASCII characters as they are."""
        text = json.dumps(self.arguments, ensure_ascii=False, allow_nan=False)
        try:
            text.encode()
        except UnicodeEncodeError:  # half of a surrogate pair, legal in JSON only when escaped
            return json.dumps(self.arguments, allow_nan=False)
        return text


@dataclass(frozen=True, slots=True)
class Message:
    """The parsed completion. `reasoning` and `content` are None when empty."""

    reasoning: str | None = None
    content: str | None = None
    tool_calls: tuple[Call, ...] = ()
    problems: frozenset[ProblemCode] = frozenset()


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More reasoning text."""

    text: str


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """More content text."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call that may be returned began. `call` counts the calls told since the start or the last Correction."""

    call: int
    name: str


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of call number `call` is complete. A key that comes again replaces the earlier value."""

    call: int
    key: str
    value: Any


@dataclass(frozen=True, slots=True)
class CallEnd:
    """Call number `call` is complete: it is part of the message."""

    call: int
    value: Call


@dataclass(frozen=True, slots=True)
class CallDropped:
    """Call number `call` is not returned."""

    call: int


@dataclass(frozen=True, slots=True)
class Problem:
    """Something is wrong. `call` is the number of the call it belongs to, None outside calls.

    A call that is never announced by `CallStart` (no name, or not allowed) has no number either.
    """

    code: ProblemCode
    call: int | None = None


@dataclass(frozen=True, slots=True)
class Correction:
    """A later marker changed what earlier text was. Forget every event so far: `message` is the state now.

    Happens at most twice in a message, and only while `Parser.settled` is False.
    """

    message: Message


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event."""

    message: Message


Event = (
    ReasoningDelta | ContentDelta | CallStart | Argument | CallEnd | CallDropped | Problem | Correction | Finished
)


def replay(events: Iterable[Event]) -> Message:
    """The message that a list of events tells; equal to the one in `Finished` when the list is whole."""
    reasoning: list[str] = []
    content: list[str] = []
    calls: list[Call] = []
    problems: set[ProblemCode] = set()
    for event in events:
        match event:
            case ReasoningDelta(text):
                reasoning.append(text)
            case ContentDelta(text):
                content.append(text)
            case CallEnd(_, call):
                calls.append(call)
            case Problem(code, _):
                problems.add(code)
            case Correction(state):
                reasoning = [state.reasoning or ""]
                content = [state.content or ""]
                calls = list(state.tool_calls)
                problems = set(state.problems)
            case CallStart() | Argument() | CallDropped() | Finished():
                pass
    return Message("".join(reasoning) or None, "".join(content) or None, tuple(calls), frozenset(problems))
