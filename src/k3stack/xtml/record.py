"""The message so far, and the events that tell it."""

from __future__ import annotations

from typing import Any

from k3stack.xtml.events import (
    Argument,
    Call,
    CallDropped,
    CallEnd,
    CallStart,
    ContentDelta,
    Correction,
    Event,
    Message,
    Problem,
    ReasoningDelta,
)
from k3stack.xtml.wire import ProblemCode

__all__ = ["Record"]


class Record:
    """Keeps the parts of a message and writes down an event for everything that is added."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._reasoning: list[str] = []
        self._content: list[str] = []
        self._calls: list[Call] = []
        self._told: set[tuple[ProblemCode, int | None]] = set()
        self._announced = 0

    def take_events(self) -> list[Event]:
        """The events since the last time."""
        events, self._events = self._events, []
        return events

    def message(self) -> Message:
        """The message so far; linear in its length."""
        problems = frozenset(code for code, _ in self._told)
        return Message(
            "".join(self._reasoning) or None, "".join(self._content) or None, tuple(self._calls), problems
        )

    def reasoning(self, text: str) -> None:
        """Add reasoning text."""
        self._reasoning.append(text)
        self._events.append(ReasoningDelta(text))

    def content(self, text: str) -> None:
        """Add content text."""
        self._content.append(text)
        self._events.append(ContentDelta(text))

    def problem(self, code: ProblemCode, call: int | None = None) -> None:
        """Report a problem, once per code and call."""
        if (code, call) not in self._told:
            self._told.add((code, call))
            self._events.append(Problem(code, call))

    def start_call(self, name: str) -> int:
        """Announce a call; gives its number."""
        number = self._announced
        self._announced += 1
        self._events.append(CallStart(number, name))
        return number

    def argument(self, call: int, key: str, value: Any) -> None:
        """Tell one argument of an announced call."""
        self._events.append(Argument(call, key, value))

    def end_call(self, number: int, call: Call) -> None:
        """Return an announced call."""
        self._calls.append(call)
        self._events.append(CallEnd(number, call))

    def drop_call(self, number: int) -> None:
        """Take an announced call back."""
        self._events.append(CallDropped(number))

    def reasoning_was_content(self) -> None:
        """Correct: all the text so far is content."""
        self._reasoning, self._content = [], self._reasoning
        self._correct()

    def all_was_reasoning(self, pieces: list[str]) -> None:
        """Correct: all that was told so far is reasoning, with this text."""
        self._reasoning, self._content = pieces, []
        self._calls, self._told = [], set()
        self._correct()

    def _correct(self) -> None:
        self._announced = 0
        self._events = [Correction(self.message())]
