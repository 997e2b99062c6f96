"""From the wire to an `Answer`: whole JSON answers, and the chunks of a stream put together.

Nothing here raises on what an endpoint sends: what is wrong with its form is collected in `Answer.faults`, since the
form is one of the things being checked.
"""

from __future__ import annotations

import itertools
import json
import time
from typing import Any

from k3stack.verify.answer import Answer, Call, TokenChance, Usage

__all__ = ["StreamReader", "read_answer"]

_REASONING = ("reasoning_content", "reasoning")
_LATEST_S = 10**11  # the year 5138; a time of creation beyond it counts milliseconds


def read_answer(body: dict[str, Any], text: str, seconds: float, kind: str = "application/json") -> Answer:
    """A whole answer, from its JSON text and its content type."""
    try:
        data = _record(json.loads(text))
    except (ValueError, RecursionError):
        return Answer(body, text, faults=("the answer is no JSON",), seconds=seconds)
    choice, *others = _records(data.get("choices")) or [{}]
    if not _record(choice.get("message")):
        return Answer(body, text, faults=("the answer has no choice with a message",), seconds=seconds)
    message = _record(choice["message"])
    faults = _missing(data, ("id", "object", "created", "model", "choices"), "answer")
    if data.get("object") != "chat.completion":
        faults.append(f"object is {data.get('object')!r}, not 'chat.completion'")
    faults += _wrong_head(data)
    if "json" not in kind:
        faults.append(f"the content type of the answer is {kind!r}, not 'application/json'")
    if message.get("role") != "assistant":
        faults.append(f"role is {message.get('role')!r}, not 'assistant'")
    name, reasoning = _reasoning(message)
    return Answer(
        body,
        text,
        id=str(data.get("id") or ""),
        model=str(data.get("model") or ""),
        reasoning=reasoning,
        content=_text(message.get("content")),
        reasoning_field=name,
        calls=_whole_calls(message.get("tool_calls"), faults),
        finish=str(choice.get("finish_reason") or ""),
        usage=_usage(data.get("usage")),
        chances=_chances(choice.get("logprobs")),
        faults=tuple(faults),
        others=tuple(_text(_record(one.get("message")).get("content")) for one in others),
        seconds=seconds,
        first_s=seconds,
    )


class StreamReader:
    """Puts the events of one stream together. Call `line` with each line, then `finish`."""

    def __init__(self, body: dict[str, Any]) -> None:
        self._body = body
        self._started = time.perf_counter()
        self._raw: list[str] = []
        self._ids: list[str] = []
        self._model = ""
        self._reasoning: list[str] = []
        self._content: list[str] = []
        self._field = ""
        self._calls: dict[int, list[str]] = {}
        self._finish: list[str] = []
        self._usage: Usage | None = None
        self._chances: list[TokenChance] = []
        self._faults: list[str] = []
        self._times: list[float] = []
        self._events = 0
        self._done = False
        self._open = False
        self._counted = False
        self._others: dict[int, list[str]] = {}

    def kind(self, content_type: str) -> None:
        """Take the content type of the answer; strict clients read no other as a stream of events."""
        if content_type.partition(";")[0].strip() != "text/event-stream":
            self._fault(f"the content type of the stream is {content_type!r}, not 'text/event-stream'")

    @property
    def events(self) -> int:
        """How many events have arrived, with text or without."""
        return self._events

    def line(self, line: str) -> None:
        """Take one line of the stream."""
        if not line:
            self._open = False
        if not line or line.startswith(":"):
            return
        self._raw.append(line)
        if not line.startswith("data:"):
            if not line.startswith(("event:", "id:", "retry:")):
                self._fault(f"a line that is no event: {line[:80]!r}")
            return
        if self._open:
            self._fault("two events without an empty line between them")
        self._open = True
        data = line[5:].strip()
        if self._done:
            self._fault("something after [DONE]")
        if data == "[DONE]":
            self._done = True
            return
        try:
            event = json.loads(data)
        except (ValueError, RecursionError):
            self._fault(f"an event that is no JSON: {data[:80]!r}")
            return
        if not isinstance(event, dict):
            self._fault(f"an event that is no object: {data[:80]!r}")
            return
        self._event(event)

    def _event(self, event: dict[str, Any]) -> None:
        self._events += 1
        if "error" in event:
            self._fault(f"an error inside the stream: {json.dumps(event['error'])[:200]}")
            return
        if event.get("object") != "chat.completion.chunk":
            self._fault(f"object is {event.get('object')!r}, not 'chat.completion.chunk'")
        if event.get("id") and event["id"] not in self._ids:
            self._ids.append(str(event["id"]))
        self._model = str(event.get("model") or self._model)
        self._usage = _usage(event.get("usage")) or self._usage
        for fault in _wrong_head(event):
            self._fault(fault)
        choices = _records(event.get("choices"))
        self._counted = self._counted or (not choices and isinstance(event.get("usage"), dict))
        for choice in choices:
            if number := _count(choice.get("index")):
                delta = _record(choice.get("delta"))
                self._others.setdefault(number, []).append(_text(delta.get("content")))
            else:
                self._choice(choice)

    def _choice(self, choice: dict[str, Any]) -> None:
        delta = _record(choice.get("delta"))
        if self._finish and any(delta.get(name) for name in (*_REASONING, "content", "tool_calls")):
            self._fault("text or a call after the finish reason")
        if self._counted and any(delta.get(name) for name in (*_REASONING, "content", "tool_calls")):
            self._fault("text or a call after the last event, the one with usage and no choices")
        if choice.get("finish_reason"):
            self._finish.append(str(choice["finish_reason"]))
        name, reasoning = _reasoning(delta)
        content, calls = _text(delta.get("content")), _records(delta.get("tool_calls"))
        self._field = name or self._field
        self._reasoning.append(reasoning)
        self._content.append(content)
        for call in calls:
            self._call(call)
        self._chances += _chances(choice.get("logprobs"))
        if reasoning or content or calls:
            self._times.append(time.perf_counter())

    def _call(self, call: dict[str, Any]) -> None:
        index = call.get("index")
        if not isinstance(index, int):
            self._fault("a call delta without an index")
            index = len(self._calls)
        function = _record(call.get("function"))
        if index not in self._calls:
            self._calls[index] = ["", "", ""]
            if not call.get("id") or not function.get("name"):
                self._fault(f"the first delta of call {index} lacks its id or name")
        known = self._calls[index]
        if call.get("id") and known[0] and call["id"] != known[0]:
            self._fault(f"call {index} changes its id from {known[0]!r} to {call['id']!r}")
        if known[1] and function.get("name"):
            self._fault(f"call {index} is named again in a later delta: clients that add the pieces up double its name")
        known[0] = known[0] or str(call.get("id") or "")
        known[1] = known[1] or str(function.get("name") or "")
        known[2] += _text(function.get("arguments"))

    def _fault(self, text: str) -> None:
        if text not in self._faults:
            self._faults.append(text)

    def finish(self, ended: bool = True) -> Answer:
        """The answer that the events make up; `ended` says whether we read to the end of it."""
        now = time.perf_counter()
        if ended:
            self._form()
        times = self._times or [now]
        calls = tuple(Call(*self._calls[index]) for index in sorted(self._calls))
        return Answer(
            self._body,
            "\n".join(self._raw),
            id=self._ids[0] if self._ids else "",
            model=self._model,
            reasoning="".join(self._reasoning),
            content="".join(self._content),
            reasoning_field=self._field,
            calls=calls,
            finish=self._finish[0] if self._finish else "",
            usage=self._usage,
            chances=tuple(self._chances),
            faults=tuple(self._faults),
            others=tuple("".join(self._others[number]) for number in sorted(self._others)),
            seconds=now - self._started,
            first_s=times[0] - self._started,
            gaps_s=tuple(later - earlier for earlier, later in itertools.pairwise(times)),
        )

    def _form(self) -> None:
        if not self._done:
            self._fault("the stream ends without [DONE]")
        if len(self._ids) != 1:
            self._fault(f"the chunks carry {len(self._ids)} ids instead of one")
        if len(self._finish) != 1:
            self._fault(f"{len(self._finish)} finish reasons instead of one")


def _missing(data: dict[str, Any], names: tuple[str, ...], where: str) -> list[str]:
    return [f"the {where} has no {name}" for name in names if name not in data]


def _wrong_head(data: dict[str, Any]) -> list[str]:
    """What is wrong with the fields that every answer and every chunk has."""
    created = data.get("created")
    if isinstance(created, int | float) and created > _LATEST_S:
        return [f"created is {created}, which is not in seconds"]
    return []


def _record(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _records(value: object) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _reasoning(message: dict[str, Any]) -> tuple[str, str]:
    """(the field's name, its text): vLLM says `reasoning`, SGLang and Moonshot `reasoning_content`, the guard both."""
    for name in _REASONING:
        if isinstance(message.get(name), str) and message[name]:
            return name, message[name]
    return "", ""


def _whole_calls(calls: object, faults: list[str]) -> tuple[Call, ...]:
    found = []
    for call in _records(calls):
        function = _record(call.get("function"))
        if not isinstance(function.get("name"), str) or not isinstance(function.get("arguments"), str):
            faults.append("a call without a name or without arguments as text")
            continue
        found.append(Call(str(call.get("id") or ""), function["name"], function["arguments"]))
    return tuple(found)


def _usage(usage: object) -> Usage | None:
    if not isinstance(usage, dict):
        return None
    details = _record(usage.get("prompt_tokens_details"))
    made = _record(usage.get("completion_tokens_details"))
    return Usage(
        _count(usage.get("prompt_tokens")) or 0,
        _count(usage.get("completion_tokens")) or 0,
        _count(usage.get("total_tokens")) or 0,
        _count(details.get("cached_tokens", usage.get("cached_tokens"))),
        _count(made.get("reasoning_tokens")),
    )


def _chances(logprobs: object) -> tuple[TokenChance, ...]:
    found = []
    for entry in _records(_record(logprobs).get("content")):
        likeliest = _records(entry.get("top_logprobs"))
        top = tuple((str(one.get("token")), _number(one.get("logprob"))) for one in likeliest)
        found.append(TokenChance(str(entry.get("token")), _number(entry.get("logprob")), top))
    return tuple(found)


def _number(value: object) -> float:
    """A log probability; what is no number becomes NaN, which no check takes for sane."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else float("nan")
