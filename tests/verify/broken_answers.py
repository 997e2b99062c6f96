"""Faults of what the model says, and of what shapes it: caches, chance, limits, filters, what is left behind."""

from __future__ import annotations

import asyncio
import html
import itertools
import json
import re
import unicodedata
from typing import Any

from aiohttp import web

from tests.verify.broken_wire import deltas
from tests.verify.proxy import Body, Proxy, message_of


class CachesByLastMessage(Proxy):
    """A gateway's cache whose key is what the user said last."""

    expected = ("messages",)

    def __init__(self, upstream: str) -> None:
        super().__init__(upstream)
        self.known: dict[str, Body] = {}

    def whole(self, answer: Body, body: Body) -> Body:
        return self.known.setdefault(json.dumps(body["messages"][-1]), answer)


class CachesSampled(Proxy):
    """A gateway's cache that answers equal requests alike, though they are to be sampled."""

    expected = ("sampling",)

    def __init__(self, upstream: str) -> None:
        super().__init__(upstream)
        self.known: dict[str, Body] = {}

    def whole(self, answer: Body, body: Body) -> Body:
        return self.known.setdefault(json.dumps(body), answer)


class IgnoresTemperature(Proxy):
    """Everything is sampled at temperature 1."""

    expected = ("sampling",)

    def request(self, body: Body) -> Body:
        return {name: value for name, value in body.items() if name not in ("temperature", "seed")}


class AlwaysGreedy(Proxy):
    """Every temperature is 0."""

    expected = ("sampling",)

    def request(self, body: Body) -> Body:
        return {**body, "temperature": 0}


class IgnoresSeed(Proxy):
    expected = ("sampling",)
    only_warned = True

    def request(self, body: Body) -> Body:
        return {name: value for name, value in body.items() if name != "seed"}


class IncludesStop(Proxy):
    """The stop text is part of the answer."""

    expected = ("stop",)

    def whole(self, answer: Body, body: Body) -> Body:
        stop = body.get("stop")
        if stop and answer["choices"][0]["finish_reason"] == "stop":
            message_of(answer)["content"] += stop if isinstance(stop, str) else stop[-1]
        return answer


class LosesTextBeforeStop(Proxy):
    expected = ("stop",)

    def whole(self, answer: Body, body: Body) -> Body:
        if body.get("stop"):
            message_of(answer)["content"] = (message_of(answer)["content"] or "")[:-6]
        return answer


class FirstStopOnly(Proxy):
    """Of several stop texts the first is passed on."""

    expected = ("stop",)

    def request(self, body: Body) -> Body:
        return {**body, "stop": body["stop"][:1]} if isinstance(body.get("stop"), list) else body


class ForgetsNewName(Proxy):
    """Knows max_tokens and drops max_completion_tokens, the name that clients use now."""

    expected = ("max-tokens",)

    def request(self, body: Body) -> Body:
        return {name: value for name, value in body.items() if name != "max_completion_tokens"}


class CapsAnswers(Proxy):
    """No answer gets more than 256 tokens, whatever was asked for."""

    expected = ("flow",)

    def request(self, body: Body) -> Body:
        return {**body, "max_tokens": min(body.get("max_tokens", 256), 256)}


class LeaksThinkTags(Proxy):
    """The end of thinking stands before the answer, as with the parser of another model."""

    expected = ("markers",)

    def whole(self, answer: Body, body: Body) -> Body:
        message = message_of(answer)
        if message.get("content") and message.get("reasoning_content") and "response_format" not in body:
            message["content"] = "</think>\n\n" + message["content"]
        return answer


class SaysItTwice(Proxy):
    """The answer is given twice: as reasoning too, as SGLang's stream does when the think channel is skipped."""

    expected = ("reasoning-twice",)
    beside = ("flow",)

    def event(self, event: Body, seen: int, body: Body) -> list[Body]:
        made = []
        for delta in deltas(event):
            if delta.get("content"):
                one = json.loads(json.dumps(event))
                one["choices"][0]["delta"] = {"reasoning_content": delta["content"]}
                made.append(one)
        return [*made, event]


class RepeatsAnswers(Proxy):
    """The whole answer, and then the whole answer again."""

    expected = ("chat",)

    def whole(self, answer: Body, body: Body) -> Body:
        message = message_of(answer)
        if message.get("content") and "response_format" not in body:
            message["content"] += message["content"]
        return answer


class EscapesHtml(Proxy):
    expected = ("verbatim",)

    def whole(self, answer: Body, body: Body) -> Body:
        if content := message_of(answer).get("content"):
            message_of(answer)["content"] = html.escape(content)
        return answer

    def event(self, event: Body, seen: int, body: Body) -> list[Body]:
        for delta in deltas(event):
            if delta.get("content"):
                delta["content"] = html.escape(delta["content"])
        return [event]


class JoinsWhiteSpace(Proxy):
    """Lines and indentation become single spaces, on the way in."""

    expected = ("verbatim",)

    def request(self, body: Body) -> Body:
        messages = [
            {**m, "content": re.sub(r"\s+", " ", m["content"])} if "exactly this text" in str(m.get("content")) else m
            for m in body["messages"]
        ]
        return {**body, "messages": messages}


class NormalisesLetters(Proxy):
    """Compatibility forms of letters become plain ones, on the way in."""

    expected = ("verbatim",)

    def request(self, body: Body) -> Body:
        text = unicodedata.normalize("NFKC", json.dumps(body["messages"], ensure_ascii=False))
        return {**body, "messages": json.loads(text)}


class MasksSecrets(Proxy):
    """A filter that takes addresses and long numbers for private data."""

    expected = ("verbatim",)

    def whole(self, answer: Body, body: Body) -> Body:
        if content := message_of(answer).get("content"):
            message_of(answer)["content"] = re.sub(r"\S+@\S+\.\w+|\b\d{10,}\b", "[REDACTED]", content)
        return answer


class SometimesEmpty(Proxy):
    """One answer of nine is empty, and says that all is well."""

    expected = ("empty",)
    beside = ("needles-32",)
    turns: Any = None

    def whole(self, answer: Body, body: Body) -> Body:
        self.turns = self.turns or itertools.count(5)
        if next(self.turns) % 9 == 0:
            answer["choices"][0]["message"] = {"role": "assistant", "content": ""}
            answer["choices"][0]["finish_reason"] = "stop"
        return answer


class DirtySlots(Proxy):
    """After a client left, the next request is answered from what was left behind."""

    expected = ("needles-32",)
    piece_s = 0.05
    left: Any = None

    def request(self, body: Body) -> Body:
        if self.left:
            body, self.left = {**body, "messages": self.left}, None
        return body

    async def relay(self, request: web.Request, answer: Any, body: Body) -> web.StreamResponse:
        try:
            return await super().relay(request, answer, body)
        except BaseException:
            self.left = body["messages"]
            raise


class GeneratesOnForWhole(Proxy):
    """Answers that are not streamed are generated to their end, whether or not the client is still there."""

    expected = ("cancel",)

    async def forward(self, request: web.Request, data: bytes) -> web.StreamResponse:
        if b'"stream": true' in data:
            return await super().forward(request, data)
        task = asyncio.create_task(self._all(request, data))
        self._tasks.add(task)
        return await asyncio.shield(task)

    async def _all(self, request: web.Request, data: bytes) -> Any:
        return await super().forward(request, data)


class IgnoresEffort(Proxy):
    """Reasons as it likes, whatever the effort."""

    expected = ("effort",)
    only_warned = True

    def request(self, body: Body) -> Body:
        return {name: value for name, value in body.items() if name != "reasoning_effort"}
