"""One choice of a chat: tokens become reasoning, content and calls as they come."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from k3stack.reference.request import Finish, Token, Update
from k3stack.reference.server.text import Stops
from k3stack.reference.tokenizer import Tokenizer
from k3stack.xtml import CallEnd, ContentDelta, Correction, Event, Message, Parser, ReasoningDelta
from k3stack.xtml.wire import CLOSE

__all__ = ["Choice", "Delta", "logprob_entry"]


@dataclass(slots=True)
class Delta:
    """What is new in a choice."""

    reasoning: str = ""
    content: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    tokens: tuple[Token, ...] = ()

    def fields(self) -> dict[str, Any]:
        """As in a stream's `delta`; reasoning under both names that clients look for."""
        found: dict[str, Any] = {}
        if self.reasoning:
            found["reasoning"] = found["reasoning_content"] = self.reasoning
        if self.content:
            found["content"] = self.content
        if self.calls:
            found["tool_calls"] = self.calls
        return found


class Choice:
    """Follows one answer.

    Args:
        parser: for this answer's prompt and tools.
        stops: texts that end it, in its reasoning or its content.
        tokenizer: for `close`, which ends the reasoning.
    """

    def __init__(self, parser: Parser, stops: Sequence[str], tokenizer: Tokenizer, thinking: bool) -> None:
        self._parser = parser
        self._stops = {ReasoningDelta: Stops(stops), ContentDelta: Stops(stops)}
        self._close = tokenizer.special[CLOSE]
        self._thinking = thinking
        self.reasoning = self.content = ""
        self.calls: list[dict[str, Any]] = []
        self.tokens = self.reasoning_tokens = self.cached_tokens = 0
        self.finish: str | None = None
        self.stopped = False

    def take(self, update: Update) -> Delta:
        """The news as text. Sets `stopped` when a stop text came: then nothing more is wanted."""
        delta = Delta(tokens=update.tokens)
        self.cached_tokens = update.cached
        self._count(update.tokens)
        events = self._parser.feed_ids(token.id for token in update.tokens)
        if update.finish is not None:
            events += self._parser.finish()
        for event in events:
            self._note(event, delta)
        if update.finish is not None and not self.stopped:
            self._put(ReasoningDelta, self._stops[ReasoningDelta].finish(), delta)
            self._put(ContentDelta, self._stops[ContentDelta].finish(), delta)
        if self.stopped:
            self.finish = "stop"
        elif update.finish is not None:
            self.finish = _reason(update.finish, bool(self.calls))
        return delta

    def message(self) -> dict[str, Any]:
        """The whole answer as an OpenAI message."""
        content: str | None = self.content
        if not content and self.calls:
            content = None
        found: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        found["reasoning"] = found["reasoning_content"] = self.reasoning or None
        if self.calls:
            found["tool_calls"] = [{key: call[key] for key in ("id", "type", "function")} for call in self.calls]
        return found

    def _count(self, tokens: Sequence[Token]) -> None:
        self.tokens += len(tokens)
        for token in tokens:
            if not self._thinking:
                return
            self._thinking = token.id != self._close
            self.reasoning_tokens += self._thinking

    def _note(self, event: Event, delta: Delta) -> None:
        if self.stopped:
            return
        match event:
            case ReasoningDelta(text) | ContentDelta(text):
                stops = self._stops[type(event)]
                self._put(type(event), stops.feed(text), delta)
                self.stopped = stops.found is not None
            case CallEnd(_, call):
                self._add_call(call.name, call.arguments_json, delta)
            case Correction(message):
                self._correct(message, delta)
            case _:
                pass

    def _put(self, kind: type, text: str, delta: Delta) -> None:
        if kind is ReasoningDelta:
            self.reasoning += text
            delta.reasoning += text
        else:
            self.content += text
            delta.content += text

    def _add_call(self, name: str, arguments: str, delta: Delta) -> None:
        call = {
            "index": len(self.calls),
            "id": f"call_{secrets.token_hex(12)}",
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }
        self.calls.append(call)
        delta.calls.append(call)

    def _correct(self, message: Message, delta: Delta) -> None:
        """What was told was something else: a stream gets what it misses, the whole message is set right."""
        content, reasoning = message.content or "", message.reasoning or ""
        delta.content += content.removeprefix(self.content)
        delta.reasoning += reasoning.removeprefix(self.reasoning)
        self.content, self.reasoning = content, reasoning
        for call in message.tool_calls[len(self.calls) :]:
            self._add_call(call.name, call.arguments_json, delta)
        self.calls = self.calls[: len(message.tool_calls)]


def _reason(finish: Finish, calls: bool) -> str:
    return "tool_calls" if calls and finish is Finish.STOP else str(finish)


def logprob_entry(token: Token, tokenizer: Tokenizer) -> dict[str, Any]:
    """A token with its log-probability, as in a chat's `logprobs.content`."""
    best = [_one(number, logprob, tokenizer) for number, logprob in token.top]
    return {**_one(token.id, token.logprob, tokenizer), "top_logprobs": best}


def _one(number: int, logprob: float | None, tokenizer: Tokenizer) -> dict[str, Any]:
    data = tokenizer.bytes_of(number)
    return {"token": data.decode(errors="replace"), "logprob": logprob, "bytes": list(data)}
