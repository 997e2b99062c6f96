"""Faults of engines, most of them from their bug reports: of batches, states, chances, counts and cut answers."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

from aiohttp import web

from tests.verify.brain import think
from tests.verify.broken_calls import whole_calls
from tests.verify.broken_wire import deltas, streamed_calls
from tests.verify.fake_k3 import tokens_of
from tests.verify.proxy import Body, Proxy, has_text, message_of

HELD_S = 0.03
"""How long a request is held where others must run beside it: the scripted endpoint is faster than any engine."""


def is_bound(body: Body) -> bool:
    """Whether a grammar shapes the answer."""
    return "response_format" in body or body.get("tool_choice") == "required"


def size_of(body: Body) -> int:
    return len(json.dumps(body["messages"], ensure_ascii=False))


class GrammarSpoilsNeighbours(Proxy):
    """Beside an answer that a grammar shapes, free ones may take no token but the first: vLLM pull request 22896."""

    expected = ("mixed",)
    bound = 0

    async def forward(self, request: web.Request, data: bytes) -> web.StreamResponse:
        mine = b'"response_format"' in data or b'"tool_choice": "required"' in data
        self.bound += mine
        try:
            if mine:
                await asyncio.sleep(HELD_S)
            return await super().forward(request, data)
        finally:
            self.bound -= mine

    def whole(self, answer: Body, body: Body) -> Body:
        if self.bound and not is_bound(body) and (content := message_of(answer).get("content")):
            message_of(answer)["content"] = "!" * len(content)
        return answer


class NeighboursSpoilGrammar(Proxy):
    """Beside a free answer the grammar of others is not applied: omlx issue 1823."""

    expected = ("mixed",)
    free = 0

    async def forward(self, request: web.Request, data: bytes) -> web.StreamResponse:
        bound = b'"response_format"' in data or b'"tool_choice": "required"' in data
        if bound and self.free:
            body = json.loads(data)
            data = json.dumps({k: v for k, v in body.items() if k not in ("response_format", "tool_choice")}).encode()
        self.free += not bound
        try:
            if not bound and self.in_flight > 1:
                await asyncio.sleep(HELD_S)
            return await super().forward(request, data)
        finally:
            self.free -= not bound


class LettersOfAnotherStream(Proxy):
    """Streams share a decoder, and letters of several bytes end up in another stream: LiteLLM issue 35023."""

    expected = ("mixed",)
    streams = 0
    stray = ""

    async def relay(self, request: web.Request, answer: Any, body: Body) -> web.StreamResponse:
        self.streams += 1
        try:
            return await super().relay(request, answer, body)
        finally:
            self.streams -= 1

    def event(self, event: Body, seen: int, body: Body) -> list[Body]:
        for delta in deltas(event):
            text = delta.get("content") or ""
            if self.streams > 1 and text and not text.isascii():
                delta["content"], self.stray = self.stray, text
        return [event]


class ReasoningOfAnother(Proxy):
    """Under load the reasoning is that of another request: SGLang issue 34259, about Kimi-K3."""

    expected = ("needles-32",)
    held_s = 0.1
    last = ""

    def whole(self, answer: Body, body: Body) -> Body:
        message = message_of(answer)
        mine = message.get("reasoning_content")
        if mine and self.in_flight > 3:
            message["reasoning_content"] = self.last or mine
            self.last = mine
        return answer


class AbortsNeighbours(Proxy):
    """When a client leaves, another stream that runs is ended with it, as if it were complete."""

    expected = ("mixed",)

    def __init__(self, upstream: str) -> None:
        super().__init__(upstream)
        self.running: list[Body] = []

    async def relay(self, request: web.Request, answer: Any, body: Body) -> web.StreamResponse:
        self.running.append(body)
        try:
            return await super().relay(request, answer, body)
        except BaseException:
            for other in self.running[:1]:
                other["aborted"] = other is not body
            raise
        finally:
            self.running = [one for one in self.running if one is not body]

    def event(self, event: Body, seen: int, body: Body) -> list[Body]:
        return [] if body.get("aborted") and has_text(event) else [event]


class LosesToolsOnHit(Proxy):
    """A long prompt whose front is cached comes without its tools: omlx issue 825, of a hybrid model."""

    expected = ("tool-many",)

    def __init__(self, upstream: str) -> None:
        super().__init__(upstream)
        self.known: set[str] = set()

    def request(self, body: Body) -> Body:
        tools = json.dumps(body.get("tools") or [])
        if len(tools) < 8_000:
            return body
        hit = tools in self.known
        self.known.add(tools)
        return {name: value for name, value in body.items() if name != "tools"} if hit else body


class ForgetsExtension(Proxy):
    """A conversation that goes on is answered from the state that its first turn left behind."""

    expected = ("prefix-fresh",)

    def __init__(self, upstream: str) -> None:
        super().__init__(upstream)
        self.known: list[Any] = []

    def request(self, body: Body) -> Body:
        if size_of(body) < 2_000:
            return body
        mine = body["messages"]
        earlier = [one for one in self.known if len(one) < len(mine) and mine[: len(one)] == one]
        self.known.append(mine)
        return {**body, "messages": earlier[-1]} if earlier else body


class LosesChunkEdges(Proxy):
    """The last 60 tokens of each chunk of 8,192 that a long prompt is read in are lost."""

    expected = ("boundaries",)

    def request(self, body: Body) -> Body:
        last = body["messages"][-1]
        text = last.get("content")
        if not isinstance(text, str) or len(text) < 20_000:
            return body
        tokens = tokens_of(text)
        for number in range(len(tokens) - 120):
            if number % 8_192 >= 8_132:
                tokens[number] = re.sub(r"\w", "x", tokens[number])
        return {**body, "messages": [*body["messages"][:-1], {**last, "content": "".join(tokens)}]}


class DriftsWithLength(Proxy):
    """Scales of an FP8 cache that fit short prompts: beyond 60,000 characters the last digit of a code is wrong."""

    expected = ("recall",)

    def whole(self, answer: Body, body: Body) -> Body:
        content = message_of(answer).get("content")
        if content and size_of(body) > 60_000:
            message_of(answer)["content"] = re.sub(r"\d\b", lambda m: str((int(m[0]) + 1) % 10), content)
        return answer


class IgnoresTopP(Proxy):
    """Tokens are drawn from all, whatever top_p."""

    expected = ("sampling",)

    def request(self, body: Body) -> Body:
        return {name: value for name, value in body.items() if name != "top_p"}


class StopAfterBudget(Proxy):
    """Of tokens that speculation accepts at once, max_tokens is looked at before the stop text: SGLang issue 31599."""

    expected = ("stop",)

    def whole(self, answer: Body, body: Body) -> Body:
        stops = body.get("stop") or []
        choice = answer["choices"][0]
        room = body.get("max_tokens", 1_000) - answer["usage"]["completion_tokens"]
        content = think(body).content
        cut = choice["message"].get("content") or ""
        if stops and choice["finish_reason"] == "stop" and room < 5 and len(content) > len(cut):
            choice["message"]["content"] = content[: len(cut) + 6]
            choice["finish_reason"] = "length"
        return answer


class ReasoningBeyondCompletion(Proxy):
    """Reasoning counts tokens that speculation accepted past the end: SGLang issue 39826."""

    expected = ("counts",)

    def whole(self, answer: Body, body: Body) -> Body:
        made = answer["usage"]["completion_tokens"]
        if message_of(answer).get("reasoning_content"):
            answer["usage"]["completion_tokens_details"] = {"reasoning_tokens": made + 1}
        return answer


class CutCallSaysDone(Proxy):
    """A streamed call that max_tokens cut ends with tool_calls, as if it were whole: vLLM issue 53269."""

    expected = ("tool-stream",)
    only_warned = True

    def event(self, event: Body, seen: int, body: Body) -> list[Body]:
        for choice in event.get("choices") or []:
            if choice.get("finish_reason") == "length" and body.get("tools"):
                choice["finish_reason"] = "tool_calls"
                function = {"name": body["tools"][0]["function"]["name"], "arguments": '{"title": "lo'}
                call = {"index": 0, "id": f"call_{event['id']}", "type": "function", "function": function}
                piece = {**event, "choices": [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": None}]}
                return [piece, event]
        return [event]


class CutReasoningAsContent(Proxy):
    """Reasoning that max_tokens cut stands in the content: vLLM issue 50258, about Kimi-K3."""

    expected = ("reasoning",)

    def whole(self, answer: Body, body: Body) -> Body:
        message = message_of(answer)
        if answer["choices"][0]["finish_reason"] == "length" and not message.get("content"):
            message["content"] = message.pop("reasoning_content", "")
        return answer


class LogprobsOfTheLastPiece(Proxy):
    """A stream has log probabilities in its last pieces alone: Floway issue 481, SGLang issue 26778."""

    expected = ("logprobs",)

    def event(self, event: Body, seen: int, body: Body) -> list[Body]:
        for choice in event.get("choices") or []:
            if seen < 15:
                choice["logprobs"] = None
        return [event]


class CountsOneChoice(Proxy):
    """usage has the tokens of the first choice alone."""

    expected = ("choices",)

    def whole(self, answer: Body, body: Body) -> Body:
        answer["usage"]["completion_tokens"] //= len(answer["choices"])
        answer["usage"]["total_tokens"] = answer["usage"]["prompt_tokens"] + answer["usage"]["completion_tokens"]
        return answer


class EmptyDeltasUnderLoad(Proxy):
    """With several streams at once a call's deltas are empty lists, then tool_calls: vLLM issue 54701."""

    expected = ("schema-accuracy",)
    held_s = 0.1

    def event(self, event: Body, seen: int, body: Body) -> list[Body]:
        if self.in_flight > 3 and streamed_calls(event):
            for delta in deltas(event):
                delta["tool_calls"] = []
        return [event]


class AnswersInReasoningWhenOff(Proxy):
    """With reasoning turned off the parser takes the answer for reasoning: SGLang pull request 20586."""

    expected = ("empty",)

    def whole(self, answer: Body, body: Body) -> Body:
        message = message_of(answer)
        if body.get("reasoning_effort") == "none" and message.get("content"):
            message["reasoning_content"], message["content"] = message["content"], ""
        return answer


class ReadsTextAsNumbers(Proxy):
    """Arguments that are text and look like numbers, true, or null become these."""

    expected = ("tool-nested",)

    def whole(self, answer: Body, body: Body) -> Body:
        for call in whole_calls(answer):
            arguments = json.loads(call["function"]["arguments"])
            call["function"]["arguments"] = json.dumps({name: as_value(value) for name, value in arguments.items()})
        return answer


def as_value(text: Any) -> Any:
    try:
        return json.loads(text) if isinstance(text, str) and not text.startswith(("{", "[", '"')) else text
    except ValueError:
        return text


class StopTailLeaks(Proxy):
    """What was held back for a stop text that never came is sent past the parser, and half a marker with it: smg
    pull request 2203, about Kimi-K3."""

    expected = ("stop",)

    def event(self, event: Body, seen: int, body: Body) -> list[Body]:
        stops = body.get("stop") or []
        ends = any(choice.get("finish_reason") for choice in event.get("choices") or [])
        if ends and stops and not any(stop in think(body).content for stop in stops):
            piece = json.loads(json.dumps(event))
            piece["choices"][0] |= {"delta": {"content": "ep|>"}, "finish_reason": None}
            return [piece, event]
        return [event]
