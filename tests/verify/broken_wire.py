"""Faults of the form: of events, fields, headers and counts, as engines and gateways have had them."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

from aiohttp import web

from tests.verify.proxy import Body, Proxy, has_text, message_of


def deltas(event: Body) -> list[Body]:
    return [choice["delta"] for choice in event.get("choices") or []]


def streamed_calls(event: Body) -> list[Body]:
    return [call for delta in deltas(event) for call in delta.get("tool_calls") or []]


class WrongContentType(Proxy):
    """Strict clients of event streams refuse it."""

    expected = ("stream",)
    content_type = "text/plain"


class NoBlankLines(Proxy):
    """Events are not separated: a parser that keeps to the standard joins them."""

    expected = ("stream",)
    ending = b"\n"


class NoDone(Proxy):
    expected = ("stream",)

    async def write(self, response: web.StreamResponse, data: bytes) -> None:
        if b"[DONE]" not in data:
            await response.write(data)


class TwoFinishes(Proxy):
    expected = ("stream",)

    def event(self, event: Body, seen: int, body: Body) -> list[Body]:
        ends = any(choice.get("finish_reason") for choice in event.get("choices") or [])
        return [event, event] if ends else [event]


class ChangesIds(Proxy):
    """Each chunk has an id of its own."""

    expected = ("stream",)

    def event(self, event: Body, seen: int, body: Body) -> list[Body]:
        return [{**event, "id": f"chatcmpl-{time.perf_counter_ns()}"}]


class UsageFirst(Proxy):
    """The last event comes first, so that a client that stops there has nothing."""

    expected = ("stream",)

    def event(self, event: Body, seen: int, body: Body) -> list[Body]:
        if seen == 1 and has_text(event):
            usage = {"prompt_tokens": 10, "completion_tokens": 1, "total_tokens": 11}
            return [event, {**event, "choices": [], "usage": usage}]
        return [event]


class NoStreamedUsage(Proxy):
    expected = ("usage",)

    def event(self, event: Body, seen: int, body: Body) -> list[Body]:
        return [{**event, "usage": None}]


class MillisecondsCreated(Proxy):
    """`created` counts milliseconds: clients date answers 50,000 years ahead."""

    expected = ("chat", "stream")

    def whole(self, answer: Body, body: Body) -> Body:
        return {**answer, "created": answer["created"] * 1000}

    def event(self, event: Body, seen: int, body: Body) -> list[Body]:
        return [{**event, "created": event["created"] * 1000}]


class AnswersAsK2(Proxy):
    """A router that sends some requests to the model before this one."""

    expected = ("model-name",)
    beside = ("chat", "stream")

    def whole(self, answer: Body, body: Body) -> Body:
        return {**answer, "model": "kimi-k2-instruct"} if self.number % 3 == 0 else answer


class BuffersStreams(Proxy):
    """A proxy that collects the whole stream, as one that compresses does."""

    expected = ("flow",)

    async def relay(self, request: web.Request, answer: Any, body: Body) -> web.StreamResponse:
        data = await answer.read()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(data)
        return response


class BuffersByPages(Proxy):
    """A proxy that passes a stream on in pages of 16 kB; here behind an engine that takes 4 ms for a token."""

    expected = ("flow",)

    async def relay(self, request: web.Request, answer: Any, body: Body) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        page = b""
        async for line in answer.content:
            page += line
            if line.strip():
                await asyncio.sleep(0.004)
            if len(page) > 16_384:
                await response.write(page)
                page = b""
        await response.write(page)
        return response


class CutsLongStreams(Proxy):
    """Ends a stream after 200 pieces as if it were done, as a proxy does whose time is up."""

    expected = ("flow",)

    def event(self, event: Body, seen: int, body: Body) -> list[Body]:
        return [] if seen > 200 and has_text(event) else [event]


class DegeneratesLate(Proxy):
    """Long answers end in exclamation marks, streamed and not."""

    expected = ("flow",)

    def whole(self, answer: Body, body: Body) -> Body:
        message = message_of(answer)
        if len(text := message.get("content") or "") > 800:
            message["content"] = text[:800] + "!" * (len(text) - 800)
        return answer

    def event(self, event: Body, seen: int, body: Body) -> list[Body]:
        for delta in deltas(event):
            if seen > 200 and delta.get("content"):
                delta["content"] = "!!!!"
        return [event]


class DropsBlankPieces(Proxy):
    """Leaves out pieces that hold nothing but white space: paragraphs and indentation are lost."""

    expected = ("verbatim",)

    def event(self, event: Body, seen: int, body: Body) -> list[Body]:
        return [] if any((d.get("content") or "x").isspace() for d in deltas(event)) else [event]


class SplitsSurrogates(Proxy):
    """Cuts letters beyond the first plane into halves that stand in two events."""

    expected = ("stream",)

    def event(self, event: Body, seen: int, body: Body) -> list[Body]:
        text = next(iter(d.get("content") or "" for d in deltas(event)), "")
        place = next((n for n, letter in enumerate(text) if ord(letter) > 0xFFFF), None)
        if place is None:
            return [event]
        halves = text[place].encode("utf-16-be", "surrogatepass")
        first, second = (chr(int.from_bytes(halves[n : n + 2], "big")) for n in (0, 2))
        made = []
        for piece in (text[:place] + first, second + text[place + 1 :]):
            one = json.loads(json.dumps(event))
            one["choices"][0]["delta"]["content"] = piece
            made.append(one)
        return made


class EmptyDataEvents(Proxy):
    """Keeps the connection alive with events that hold nothing, on which clients break."""

    expected = ("stream",)

    async def write(self, response: web.StreamResponse, data: bytes) -> None:
        await response.write(b"data: \n\n" + data)


class SilentStreamErrors(Proxy):
    """An engine that fails in the middle of a stream; the proxy ends it with an error object and no finish."""

    expected = ("stream",)

    def event(self, event: Body, seen: int, body: Body) -> list[Body]:
        if seen < 20:
            return [event]
        return [{"error": {"message": "upstream", "code": 502}}] if seen == 20 and has_text(event) else []


class ErrorsWith200(Proxy):
    expected = ("malformed",)

    async def status(self, status: int) -> int:
        return 200 if 400 <= status < 500 else status


class HtmlErrors(Proxy):
    """Error pages for people, where programs ask."""

    expected = ("malformed",)

    def error(self, text: str, content_type: str) -> tuple[str, str]:
        return "<html><body><h1>400 Bad Request</h1></body></html>", "text/html"


class SubtractsCached(Proxy):
    """prompt_tokens without what was cached: costs and limits are counted wrong."""

    expected = ("prefix-cache",)

    def subtract(self, holder: Body) -> Body:
        usage = holder.get("usage") or {}
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        if cached:
            usage["prompt_tokens"] -= cached
            usage["total_tokens"] -= cached
        return holder

    def whole(self, answer: Body, body: Body) -> Body:
        return self.subtract(answer)

    def event(self, event: Body, seen: int, body: Body) -> list[Body]:
        return [self.subtract(event)]


class CountsNoReasoning(Proxy):
    """completion_tokens leaves out what was reasoned."""

    expected = ("usage",)

    def whole(self, answer: Body, body: Body) -> Body:
        hidden = len(message_of(answer).get("reasoning_content") or "") // 5
        answer["usage"]["completion_tokens"] -= min(hidden, answer["usage"]["completion_tokens"])
        answer["usage"]["total_tokens"] = answer["usage"]["prompt_tokens"] + answer["usage"]["completion_tokens"]
        return answer


class OneTokenMore(Proxy):
    expected = ("usage",)

    def request(self, body: Body) -> Body:
        return {**body, "max_tokens": body["max_tokens"] + 1} if body.get("max_tokens", 0) > 1 else body


class ShiftedLogprobs(Proxy):
    """The log probabilities are those of the token after."""

    expected = ("logprobs",)

    def whole(self, answer: Body, body: Body) -> Body:
        content = (answer["choices"][0].get("logprobs") or {}).get("content") or []
        if content:
            content[:] = [*content[1:], {**content[-1], "token": " end"}]
        return answer


class FirstTopLogprobs(Proxy):
    """Every token is given the likeliest tokens of the first."""

    expected = ("logprobs",)

    def whole(self, answer: Body, body: Body) -> Body:
        content = (answer["choices"][0].get("logprobs") or {}).get("content") or []
        for entry in content[1:]:
            entry["top_logprobs"] = content[0]["top_logprobs"]
        return answer


class MixesChoices(Proxy):
    """All choices of a stream have the index 0, so that their texts are mixed."""

    expected = ("choices",)

    def event(self, event: Body, seen: int, body: Body) -> list[Body]:
        for choice in event.get("choices") or []:
            choice["index"] = 0
        return [event]


class OneChoice(Proxy):
    """Gives the same choice n times."""

    expected = ("choices",)

    def whole(self, answer: Body, body: Body) -> Body:
        first = answer["choices"][0]
        answer["choices"] = [{**first, "index": number} for number in range(len(answer["choices"]))]
        return answer


class NeedsNoKey(Proxy):
    """Whoever comes is served; the run is given a key."""

    expected = ("key",)
