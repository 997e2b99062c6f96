"""Faults of one kind or another, each a proxy that breaks one thing; all of them are in `FAULTS`."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from aiohttp import web

from k3stack.xtml.wire import CLOSE, OPEN, SEP
from tests.verify import (
    broken_answers,
    broken_calls,
    broken_engines,
    broken_gateways,
    broken_prompts,
    broken_reports,
    broken_wire,
)
from tests.verify.brain import text_of
from tests.verify.proxy import Body, Proxy, has_text, message_of, type_of


class MixesStates(Proxy):
    """Every third request under load is answered from the state of the one before it."""

    expected = ("needles-8", "needles-32")
    held_s = 0.1
    last: Any = None

    def request(self, body: Body) -> Body:
        mine = body["messages"]
        if self.in_flight > 3 and self.number % 3 == 0 and self.last:
            body = {**body, "messages": self.last}
        self.last = mine
        return body


class DropsToken(Proxy):
    expected = ("stream",)

    def event(self, event: Body, seen: int, body: Body) -> list[Body]:
        is_seventh = seen == 7 and has_text(event)
        return [] if is_seventh else [event]


class DoublesToken(Proxy):
    expected = ("stream",)

    def event(self, event: Body, seen: int, body: Body) -> list[Body]:
        is_ninth = seen == 9 and has_text(event)
        return [event, event] if is_ninth else [event]


class TearsLetters(Proxy):
    """Decodes each piece alone: letters of several bytes become replacement characters."""

    expected = ("stream",)

    def event(self, event: Body, seen: int, body: Body) -> list[Body]:
        for choice in event.get("choices") or []:
            if text := choice["delta"].get("content"):
                choice["delta"]["content"] = text.encode("ascii", "replace").decode().replace("?", "\ufffd")
        return [event]


class DuplicatesIds(Proxy):
    expected = ("call-ids",)

    def whole(self, answer: Body, body: Body) -> Body:
        for call in message_of(answer).get("tool_calls") or []:
            call["id"] = "call_0"
        return answer

    def event(self, event: Body, seen: int, body: Body) -> list[Body]:
        for choice in event.get("choices") or []:
            for call in choice["delta"].get("tool_calls") or []:
                if "id" in call:
                    call["id"] = "call_0"
        return [event]


class IgnoresToolChoice(Proxy):
    expected = ("tool-required", "tool-none")

    def request(self, body: Body) -> Body:
        return {name: value for name, value in body.items() if name != "tool_choice"}


class LeaksMarkers(Proxy):
    """A call that was asked for without declaring tools arrives as K3's own markup, as on some SGLang releases."""

    expected = ("markers",)
    markup = f'{OPEN}tools{SEP}{OPEN}call tool="get_weather" index="1"{SEP}{CLOSE}call{SEP}{CLOSE}tools{SEP}'

    def whole(self, answer: Body, body: Body) -> Body:
        if "Call the function" in text_of(body["messages"][-1]):
            message_of(answer)["content"] = self.markup
        return answer


class StalePrefix(Proxy):
    """Answers a long prompt from an earlier one with the same front."""

    expected = ("prefix-fresh",)

    def __init__(self, upstream: str) -> None:
        super().__init__(upstream)
        self.known: dict[str, Any] = {}

    def request(self, body: Body) -> Body:
        text = text_of(body["messages"][-1])
        if len(text) < 600:
            return body
        return {**body, "messages": self.known.setdefault(text[:300], body["messages"])}


class StaleMiddle(StalePrefix):
    """Keeps the question, but takes the document from an earlier prompt that began alike."""

    def request(self, body: Body) -> Body:
        document, _, question = text_of(body["messages"][-1]).rpartition("\n\n")
        if len(document) < 600:
            return body
        known = self.known.setdefault(document[:300], document)
        return {**body, "messages": [{"role": "user", "content": f"{known}\n\n{question}"}]}


class WrongUsage(Proxy):
    """Counts the tokens of streams by events, and so twice."""

    expected = ("usage",)

    def event(self, event: Body, seen: int, body: Body) -> list[Body]:
        if event.get("usage"):
            event["usage"]["completion_tokens"] *= 2
            event["usage"]["total_tokens"] = event["usage"]["prompt_tokens"] + event["usage"]["completion_tokens"]
        return [event]


class SwallowsStop(Proxy):
    expected = ("stop",)

    def request(self, body: Body) -> Body:
        return {name: value for name, value in body.items() if name != "stop"}


class IgnoresMaxTokens(Proxy):
    expected = ("max-tokens",)

    def request(self, body: Body) -> Body:
        return {**body, "max_tokens": max(body.get("max_tokens", 0), 4_000)}


class CrashesOnMalformed(Proxy):
    expected = ("malformed",)

    async def status(self, status: int) -> int:
        return 500 if status == 400 else status


class BlocksOnMalformed(Proxy):
    """A bad request holds the lock that every request needs."""

    expected = ("isolation",)

    def __init__(self, upstream: str) -> None:
        super().__init__(upstream)
        self.lock = asyncio.Lock()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        async with self.lock:
            pass
        return await super().handle(request)

    async def status(self, status: int) -> int:
        if status == 400:
            async with self.lock:
                await asyncio.sleep(0.3)
        return status


class GeneratesOn(Proxy):
    """Reads the answer to its end, whether or not the client is still there."""

    expected = ("cancel",)

    async def forward(self, request: web.Request, data: bytes) -> web.StreamResponse:
        if b'"stream": true' not in data:
            return await super().forward(request, data)
        lines: asyncio.Queue[bytes | None] = asyncio.Queue()

        async def pump() -> None:
            async with self.client.post(self.upstream + request.path, data=data, headers=type_of(request)) as answer:
                async for line in answer.content:
                    lines.put_nowait(line)
            lines.put_nowait(None)

        task = asyncio.create_task(pump())
        self._tasks.add(task)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        while (line := await lines.get()) is not None:
            await response.write(line)
        return response


class NoReasoningParser(Proxy):
    """Reasoning stands in the content."""

    expected = ("reasoning",)

    def whole(self, answer: Body, body: Body) -> Body:
        message = message_of(answer)
        message["content"] = message.pop("reasoning_content", "") + (message["content"] or "")
        return answer


class NeverEndsThinking(Proxy):
    """The answer stands in the reasoning."""

    expected = ("chat", "reasoning")

    def whole(self, answer: Body, body: Body) -> Body:
        message = message_of(answer)
        if message.get("content") and message.get("reasoning_content"):
            message["reasoning_content"] += message["content"]
            message["content"] = ""
        return answer


class LosesStreamedCalls(Proxy):
    expected = ("tool-single",)

    def event(self, event: Body, seen: int, body: Body) -> list[Body]:
        for choice in event.get("choices") or []:
            choice["delta"].pop("tool_calls", None)
        return [event]


class MergesCalls(Proxy):
    """Keeps only the first of parallel calls, with the arguments of the last."""

    expected = ("tool-parallel",)

    def whole(self, answer: Body, body: Body) -> Body:
        calls = message_of(answer).get("tool_calls") or []
        if len(calls) > 1:
            calls[0]["function"]["arguments"] = calls[-1]["function"]["arguments"]
            del calls[1:]
        return answer


class MakesText(Proxy):
    """Turns numbers and booleans of arguments into text, as parsers do with what they cannot read."""

    expected = ("tool-nested", "schema-accuracy")

    def whole(self, answer: Body, body: Body) -> Body:
        for call in message_of(answer).get("tool_calls") or []:
            arguments = json.loads(call["function"]["arguments"])
            made = {name: v if isinstance(v, dict | list | str) else str(v) for name, v in arguments.items()}
            call["function"]["arguments"] = json.dumps(made)
        return answer


class CutsLongArguments(Proxy):
    expected = ("tool-long",)

    def whole(self, answer: Body, body: Body) -> Body:
        for call in message_of(answer).get("tool_calls") or []:
            arguments = json.loads(call["function"]["arguments"])
            cut = {name: v[:1_000] if isinstance(v, str) else v for name, v in arguments.items()}
            call["function"]["arguments"] = json.dumps(cut)
        return answer


class MatchesByPosition(Proxy):
    """Gives tool results to calls in the order in which they come."""

    expected = ("tool-turns",)

    def request(self, body: Body) -> Body:
        ids = [call["id"] for message in body["messages"] for call in message.get("tool_calls") or []]
        messages = [dict(message) for message in body["messages"]]
        for message in messages:
            if message.get("role") == "tool" and ids:
                message["tool_call_id"] = ids.pop(0)
        return {**body, "messages": messages}


class DropsHistoryReasoning(Proxy):
    expected = ("history",)

    def request(self, body: Body) -> Body:
        dropped = ("reasoning", "reasoning_content")
        messages = [{k: v for k, v in message.items() if k not in dropped} for message in body["messages"]]
        return {**body, "messages": messages}


class FencesJson(Proxy):
    expected = ("json-mode", "json-schema")

    def whole(self, answer: Body, body: Body) -> Body:
        if "response_format" in body:
            message_of(answer)["content"] = f"```json\n{message_of(answer)['content']}\n```"
        return answer


class DropsImages(Proxy):
    expected = ("images",)

    def request(self, body: Body) -> Body:
        return {**body, "messages": [{**m, "content": text_of(m)} for m in body["messages"]]}


class CutsPrompts(Proxy):
    """Keeps the end of a prompt that is too long, in silence."""

    expected = ("overflow",)

    def request(self, body: Body) -> Body:
        messages = [
            {**m, "content": m["content"][-120_000:]} if isinstance(m.get("content"), str) else m
            for m in body["messages"]
        ]
        return {**body, "messages": messages}


class ForgetsTheMiddle(Proxy):
    """A chunk of a long prompt never arrives."""

    expected = ("recall",)

    def request(self, body: Body) -> Body:
        text = text_of(body["messages"][-1])
        if len(text) > 8_000:
            lines = text.split("\n")
            del lines[len(lines) // 3 : 2 * len(lines) // 3]
            return {**body, "messages": [{"role": "user", "content": "\n".join(lines)}]}
        return body


class InfiniteLogits(Proxy):
    expected = ("logprobs",)

    def whole(self, answer: Body, body: Body) -> Body:
        logprobs = answer["choices"][0].get("logprobs")
        for entry in (logprobs or {}).get("content", [])[5:]:
            entry["logprob"] = None
        return answer


class ForgedMarkers(Proxy):
    """User text is tokenised with control tokens allowed: here, a marker costs what one token costs."""

    expected = ("injection",)

    def request(self, body: Body) -> Body:
        text = json.dumps(body["messages"])
        for marker in (OPEN, CLOSE, SEP, "<|end_of_msg|>"):
            text = text.replace(marker, "@")
        return {**body, "messages": json.loads(text)}


class FewWorkers(Proxy):
    """Has four workers, each of which waits for a whole request."""

    expected = ("slow-clients",)

    def __init__(self, upstream: str) -> None:
        super().__init__(upstream)
        self.workers = asyncio.Semaphore(4)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        async with self.workers:
            await request.read()
        return await super().handle(request)


def _faults(*homes: str) -> dict[str, type[Proxy]]:
    """The faults that these modules define, by name."""
    found = {}
    for home in homes:
        for name, one in vars(sys.modules[home]).items():
            if isinstance(one, type) and issubclass(one, Proxy) and one.__module__ == home:
                found[name] = one
    return found


FIRST = _faults(__name__)
"""Those that the checks were written with."""

MORE = _faults(broken_wire.__name__, broken_calls.__name__, broken_prompts.__name__, broken_answers.__name__)
"""Those that were planted later, before it was known which were found."""

UNSEEN = _faults(broken_engines.__name__, broken_gateways.__name__, broken_reports.__name__)
"""Those that were planted last, most of them from bug reports. Before checks were added for them, the check expected to
found 7 of the first two modules' 35, which look for gaps, and 7 of the last one's 14, which were taken as they came."""

FAULTS: dict[str, type[Proxy]] = {**FIRST, **MORE, **UNSEEN}
