"""Answers as an engine would give them, streamed and whole, and readers for what a client gets."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from k3stack.guard import AnswerGuard, Policy, StreamGuard, parse_chat_request

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
DELETE = {
    "type": "function",
    "function": {
        "name": "delete_file",
        "parameters": {
            "type": "object",
            "properties": {"path": {"type": "string"}, "force": {"type": "boolean"}},
            "required": ["path"],
        },
    },
}
NOOP = {"type": "function", "function": {"name": "noop"}}
TOOLS = [WEATHER, DELETE, NOOP]

PARIS = '{"city": "Paris"}'


@dataclass
class Answer:
    """One scripted answer. `calls` are (name, arguments) or (name, arguments, id)."""

    reasoning: str | None = "why"
    content: str | None = None
    calls: list[tuple[str, ...]] = field(default_factory=list)
    reason: str | None = None
    reasoning_field: str = "reasoning"
    usage: dict[str, Any] | None = field(
        default_factory=lambda: {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    )

    @property
    def finish_reason(self) -> str:
        return self.reason or ("tool_calls" if self.calls else "stop")

    def _calls(self) -> list[dict[str, Any]]:
        made = []
        for number, (name, arguments, *rest) in enumerate(self.calls):
            call_id = rest[0] if rest else f"chatcmpl-tool-{number:04x}abc"
            made.append({"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}})
        return made

    def whole(self) -> bytes:
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.reasoning is not None:
            message[self.reasoning_field] = self.reasoning
        if self.calls:
            message["tool_calls"] = self._calls()
        choice = {"index": 0, "message": message, "finish_reason": self.finish_reason}
        body = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "k3", "choices": [choice]}
        return json.dumps(body | {"usage": self.usage}).encode()

    def deltas(self, piece: int = 4, argument_piece: int = 0) -> Iterator[dict[str, Any]]:
        yield {"role": "assistant", "content": ""}
        for name, text in ((self.reasoning_field, self.reasoning), ("content", self.content)):
            for start in range(0, len(text or ""), piece):
                yield {name: (text or "")[start : start + piece]}
        for index, call in enumerate(self._calls()):
            arguments = call["function"]["arguments"]
            size = argument_piece or max(1, len(arguments))
            head = {**call, "index": index}
            head["function"] = {"name": call["function"]["name"], "arguments": arguments[:size]}
            yield {"tool_calls": [head]}
            for start in range(size, len(arguments), size):
                rest = {"index": index, "function": {"arguments": arguments[start : start + size]}}
                yield {"tool_calls": [rest]}

    def chunks(self, piece: int = 4, argument_piece: int = 0, usage: bool = False) -> Iterator[bytes]:
        base = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "k3"}
        for delta in self.deltas(piece, argument_piece):
            yield sse({**base, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
        yield sse({**base, "choices": [{"index": 0, "delta": {}, "finish_reason": self.finish_reason}]})
        if usage:
            yield sse({**base, "choices": [], "usage": self.usage})
        yield b"data: [DONE]\n\n"


def sse(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def call(arguments: str = PARIS, name: str = "get_weather", call_id: str | None = None) -> tuple[str, ...]:
    return (name, arguments) if call_id is None else (name, arguments, call_id)


def body(**fields: Any) -> bytes:
    request = {"model": "k3", "messages": [{"role": "user", "content": "weather?"}], "tools": TOOLS}
    request.update(fields)
    return json.dumps({name: value for name, value in request.items() if value is not None}).encode()


@dataclass
class Got:
    """What a client ends up with."""

    reasoning: str = ""
    content: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    reason: str | None = None
    flag: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    usage: dict[str, Any] | None = None
    done: bool = False
    roles: int = 0
    response_ids: set[str] = field(default_factory=set)

    @property
    def verdict(self) -> str:
        return "clean" if self.flag is None else self.flag["verdict"]


def read_stream(data: bytes) -> Got:
    """A strict client: any event that is not as it must be fails."""
    got = Got()
    parts: dict[int, dict[str, str]] = {}
    for block in data.split(b"\n\n"):
        if not block or block.startswith(b":"):
            continue
        assert block.startswith(b"data: "), block
        assert not got.done, "an event after [DONE]"
        if block == b"data: [DONE]":
            got.done = True
            continue
        chunk = json.loads(block[6:])
        if "error" in chunk:
            got.error = chunk["error"]
            continue
        assert chunk["object"] == "chat.completion.chunk"
        got.response_ids.add(chunk["id"])
        got.usage = chunk.get("usage") or got.usage
        got.flag = chunk.get("k3_guard") or got.flag
        for choice in chunk["choices"]:
            assert got.reason is None, "a delta after the finish"
            delta = choice["delta"]
            got.roles += "role" in delta
            assert (delta.get("reasoning") or "") == (delta.get("reasoning_content") or "")
            got.reasoning += delta.get("reasoning") or ""
            got.content += delta.get("content") or ""
            for fragment in delta.get("tool_calls") or ():
                part = parts.setdefault(fragment["index"], {"name": "", "arguments": "", "id": ""})
                part["id"] += fragment.get("id") or ""
                part["name"] += fragment["function"].get("name") or ""
                part["arguments"] += fragment["function"].get("arguments") or ""
            got.reason = choice["finish_reason"]
    assert list(parts) == list(range(len(parts)))
    got.calls = [(part["name"], part["arguments"]) for part in parts.values()]
    got.ids = [part["id"] for part in parts.values()]
    return got


def read_whole(data: bytes) -> Got:
    answer = json.loads(data)
    if "error" in answer:
        return Got(error=answer["error"])
    message = answer["choices"][0]["message"]
    calls = message.get("tool_calls") or []
    return Got(
        reasoning=message.get("reasoning_content") or "",
        content=message["content"] or "",
        calls=[(each["function"]["name"], each["function"]["arguments"]) for each in calls],
        ids=[each["id"] for each in calls],
        reason=answer["choices"][0]["finish_reason"],
        flag=answer.get("k3_guard"),
        usage=answer.get("usage"),
        done=True,
    )


def run_stream(
    attempts: Iterable[Iterable[bytes]], request: bytes | None = None, policy: Policy | None = None
) -> tuple[Got, StreamGuard]:
    """Play scripted attempts against a stream guard; attempts that it never asked for are an error."""
    guard = StreamGuard(parse_chat_request(request or body(stream=True)), policy or Policy())
    out = b""
    waiting = list(attempts)
    again = True
    while again:
        for data in waiting.pop(0):
            out += guard.feed(data)
        step = guard.end()
        out += step.data
        again = step.again
    assert not waiting, "an attempt was not used"
    return read_stream(out), guard


def run_whole(
    attempts: Iterable[bytes], request: bytes | None = None, policy: Policy | None = None
) -> tuple[Got, AnswerGuard]:
    guard = AnswerGuard(parse_chat_request(request or body()), policy or Policy())
    waiting = list(attempts)
    step = guard.take(waiting.pop(0))
    while step.again:
        step = guard.take(waiting.pop(0))
    assert not waiting, "an attempt was not used"
    return read_whole(step.data), guard


def run(
    attempts: list[Answer], streamed: bool, policy: Policy | None = None, piece: int = 4, **fields: Any
) -> tuple[Got, Any]:
    """The same attempts in either form."""
    request = body(stream=streamed, **fields)
    if streamed:
        return run_stream([list(answer.chunks(piece)) for answer in attempts], request, policy)
    return run_whole([answer.whole() for answer in attempts], request, policy)


def xtml_cases() -> list[dict[str, Any]]:
    path = Path(__file__).parents[2].parent / "shared/data/xtml_cases.json"
    if not path.exists():
        pytest.skip("needs shared/data/xtml_cases.json, which is beside the repository in CI only")
    cases: list[dict[str, Any]] = json.loads(path.read_text())
    return cases
