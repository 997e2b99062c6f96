"""One choice of one attempt: text goes on as it comes, calls are collected until the choice has finished."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from k3stack.guard import codec
from k3stack.guard.calls import Call
from k3stack.guard.channels import CATCH_UP, CONTENT, REASONING, RESTATED, Channels, Piece
from k3stack.guard.lane import decoded
from k3stack.guard.policy import Policy, Source
from k3stack.guard.request import ChatRequest
from k3stack.guard.verdict import Finished

__all__ = ["Choice", "HeldTooMuchError", "other_fields", "text_delta", "whole_text"]

_TEXT_FIELDS = frozenset({"reasoning", "reasoning_content", "content"})
_OURS = _TEXT_FIELDS | {"tool_calls"}


class HeldTooMuchError(Exception):
    """An answer's calls and held text passed `Policy.max_held_bytes`."""


@dataclass(slots=True)
class _Fragments:
    """The pieces of one call as they arrive."""

    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)


class Taken(NamedTuple):
    """What one delta became: text to send on now, and whether that is exactly what came in."""

    pieces: list[Piece]
    unchanged: bool


class Choice:
    """Takes the deltas of one choice; a whole message counts as one delta.

    Args:
        request: the client's request.
        policy: the guard's settings.
    """

    def __init__(self, request: ChatRequest, policy: Policy) -> None:
        self._policy = policy
        self._channels = Channels(request, policy)
        self._calls: dict[int, _Fragments] = {}
        self._done: list[_Fragments] = []
        self._call_chars = 0
        self._answered = False
        self._reasoned = False
        self.finished = False

    @property
    def held_bytes(self) -> int:
        """About how many bytes are kept back now (characters of calls and of held text)."""
        return self._call_chars + self._channels.held_chars

    def open_and_plain(self, channel: str) -> bool:
        """Whether text of this channel that has no `<` in it goes on as it is."""
        return not self.finished and self._channels.open_and_plain(channel)

    def passed(self, channel: str, text: str | bytes) -> None:
        """Note text that went on as it is."""
        self._channels.passed(channel, text)
        if channel == REASONING:
            self._reasoned = True
        elif not self._answered:
            self._answered = bool((decoded(text) if isinstance(text, bytes) else text).strip())

    def take(self, delta: dict[str, Any]) -> Taken:
        """Take one delta.

        Raises:
            HeldTooMuchError: more is held than the policy allows.
        """
        reasoning = delta.get("reasoning_content") or delta.get("reasoning")
        content = delta.get("content")
        calls = delta.get("tool_calls")
        pieces: list[Piece] = []
        if reasoning and isinstance(reasoning, str):
            pieces += self._channels.take(REASONING, reasoning)
        if content and isinstance(content, str):
            pieces += self._channels.take(CONTENT, content)
        if calls and isinstance(calls, list):
            self._collect(calls)
        if self.held_bytes > self._policy.max_held_bytes:
            raise HeldTooMuchError
        self._note(pieces)
        unchanged = not calls and not reasoning and _same(pieces, content)
        return Taken(pieces, unchanged)

    def finish(self, reason: str) -> tuple[list[Piece], Finished]:
        """End the choice: text that was held back, and everything a verdict needs."""
        self.finished = True
        pieces, recovered = self._channels.finish(complete=reason != "length")
        self._note(pieces)
        fragments = self._done + [self._calls[index] for index in sorted(self._calls)]
        calls = tuple(Call(part.name, "".join(part.arguments), part.id) for part in fragments)
        if self._policy.source is Source.RAW:
            calls, recovered = calls + tuple(recovered), []
        return pieces, Finished(
            calls=calls,
            recovered=tuple(recovered),
            problems=tuple(self._channels.problems),
            repairs=tuple(self._channels.repairs),
            reason=reason,
            answered=self._answered,
            reasoned=self._reasoned,
        )

    def _note(self, pieces: list[Piece]) -> None:
        for piece in pieces:
            if piece.kind == REASONING:
                self._reasoned = True
            elif piece.kind == RESTATED:
                self._reasoned = bool(piece.reasoning)
                self._answered = bool(piece.text.strip())
            elif not self._answered and piece.text.strip():
                self._answered = True

    def _collect(self, fragments: list[Any]) -> None:
        for position, fragment in enumerate(fragments):
            if not isinstance(fragment, dict):
                continue
            function = fragment.get("function")
            function = function if isinstance(function, dict) else {}
            index = fragment.get("index")
            index = index if isinstance(index, int) else self._last_index() if position == 0 else len(self._calls)
            part = self._fragments(index, fragment.get("id") or "", function.get("name") or "")
            arguments = function.get("arguments")
            if isinstance(arguments, dict):  # some servers send the object itself
                arguments = codec.dumps(arguments).decode()
            if isinstance(arguments, str):
                part.arguments.append(arguments)
                self._call_chars += len(arguments)

    def _last_index(self) -> int:
        return max(self._calls, default=0)

    def _fragments(self, index: int, call_id: str, name: str) -> _Fragments:
        """The call these fragments belong to: another id under a used index is another call."""
        part = self._calls.setdefault(index, _Fragments())
        if call_id and part.id and call_id != part.id:
            self._done.append(part)
            part = self._calls[index] = _Fragments()
        part.id = part.id or call_id
        part.name = part.name or name
        self._call_chars += len(name)
        return part


def _same(pieces: list[Piece], content: object) -> bool:
    if not pieces:
        return not content
    return len(pieces) == 1 and pieces[0].kind == CONTENT and pieces[0].text == content


def text_delta(pieces: list[Piece]) -> dict[str, str]:
    """The delta fields for a stream: reasoning goes out under both names, since clients read one or the other."""
    delta: dict[str, str] = {}
    reasoning = "".join(piece.text for piece in pieces if piece.kind == REASONING)
    content = "".join(piece.text for piece in pieces if piece.kind in (CONTENT, CATCH_UP))
    if reasoning:
        delta["reasoning"] = delta["reasoning_content"] = reasoning
    if content:
        delta["content"] = content
    return delta


def whole_text(pieces: list[Piece]) -> tuple[str, str]:
    """(reasoning, content) of a whole answer."""
    reasoning: list[str] = []
    content: list[str] = []
    for piece in pieces:
        if piece.kind == REASONING:
            reasoning.append(piece.text)
        elif piece.kind == CONTENT:
            content.append(piece.text)
        elif piece.kind == RESTATED:
            reasoning, content = [piece.reasoning], [piece.text]
    return "".join(reasoning), "".join(content)


def other_fields(delta: dict[str, Any]) -> dict[str, Any]:
    """The fields of a delta that the guard does not touch (`role` and whatever comes after it one day)."""
    return {name: value for name, value in delta.items() if name not in _OURS}
