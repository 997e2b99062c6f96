"""Faults of what reaches the model and of what it says: dropped, cut, mixed, cached, rewritten."""

from __future__ import annotations

import asyncio
import html
import itertools
import json
import re
import unicodedata
from typing import Any

from aiohttp import web

from k3stack.verify.picture import data_address, png
from tests.verify.brain import images_of, read_png, text_of
from tests.verify.broken_wire import deltas
from tests.verify.fake_k3 import tokens_of
from tests.verify.proxy import Body, Proxy, message_of


class DropsSystem(Proxy):
    expected = ("messages",)

    def request(self, body: Body) -> Body:
        kept = [one for one in body["messages"] if one.get("role") != "system"]
        return {**body, "messages": kept or body["messages"]}


class KeepsFirstSystem(Proxy):
    """Drops every system message but the first."""

    expected = ("messages",)

    def request(self, body: Body) -> Body:
        seen = False
        kept = []
        for one in body["messages"]:
            if one.get("role") != "system" or not seen:
                kept.append(one)
            seen = seen or one.get("role") == "system"
        return {**body, "messages": kept}


class ForgetsTurns(Proxy):
    """Sends the system message and the last turn alone."""

    expected = ("messages",)

    def request(self, body: Body) -> Body:
        if any(message.get("tool_calls") for message in body["messages"]):
            return body
        system = [one for one in body["messages"][:-1] if one.get("role") == "system"]
        return {**body, "messages": [*system, body["messages"][-1]]}


class FirstPartOnly(Proxy):
    """Of a message in parts the first text is taken."""

    expected = ("messages",)

    def request(self, body: Body) -> Body:
        messages = []
        for message in body["messages"]:
            parts = message.get("content")
            if isinstance(parts, list):
                texts = [part for part in parts if part.get("type") == "text"]
                parts = [part for part in parts if part not in texts[1:]]
            messages.append({**message, "content": parts})
        return {**body, "messages": messages}


class CutsLastMessage(Proxy):
    """The end of a long last message is cut, and the question with it."""

    expected = ("recall",)

    def request(self, body: Body) -> Body:
        last = body["messages"][-1]
        if isinstance(last.get("content"), str) and len(last["content"]) > 20_000:
            return {**body, "messages": [*body["messages"][:-1], {**last, "content": last["content"][:20_000]}]}
        return body


class KeepsTheEnd(Proxy):
    """Only the last 60,000 characters of a prompt are read."""

    expected = ("recall",)

    def request(self, body: Body) -> Body:
        last = body["messages"][-1]
        if isinstance(last.get("content"), str) and len(last["content"]) > 60_000:
            return {**body, "messages": [*body["messages"][:-1], {**last, "content": last["content"][-60_000:]}]}
        return body


class LosesBlockEdges(Proxy):
    """The last 40 tokens of each block of 768 are not read rightly."""

    expected = ("boundaries",)

    def request(self, body: Body) -> Body:
        last = body["messages"][-1]
        text = last.get("content")
        if not isinstance(text, str) or len(text) < 3_000:
            return body
        tokens = tokens_of(text)
        for number in range(len(tokens) - 120):
            if number % 768 >= 728:
                tokens[number] = re.sub(r"\w", "x", tokens[number])
        return {**body, "messages": [*body["messages"][:-1], {**last, "content": "".join(tokens)}]}


class SwapsImages(Proxy):
    expected = ("images",)

    def request(self, body: Body) -> Body:
        last = body["messages"][-1]
        if len(images_of(last)) < 2:
            return body
        places = [number for number, part in enumerate(last["content"]) if "image_url" in part]
        parts = list(last["content"])
        for place, other in zip(places, reversed(places), strict=True):
            parts[place] = last["content"][other]
        return {**body, "messages": [*body["messages"][:-1], {**last, "content": parts}]}


class DropsSecondImage(Proxy):
    expected = ("images",)

    def request(self, body: Body) -> Body:
        last = body["messages"][-1]
        if len(images_of(last)) < 2:
            return body
        first = next(part for part in last["content"] if "image_url" in part)
        parts = [part for part in last["content"] if "image_url" not in part or part is first]
        return {**body, "messages": [*body["messages"][:-1], {**last, "content": parts}]}


class StaleImages(Proxy):
    """A cache of images that knows them by their place and their size."""

    expected = ("images",)

    def __init__(self, upstream: str) -> None:
        super().__init__(upstream)
        self.known: dict[tuple[int, int], Any] = {}

    def request(self, body: Body) -> Body:
        last = body["messages"][-1]
        if len(images_of(last)) < 2:
            return body
        parts = []
        for number, part in enumerate(last["content"]):
            if "image_url" in part:
                side = read_png(part["image_url"]["url"])[0]
                part = self.known.setdefault((number, side), part)
            parts.append(part)
        return {**body, "messages": [*body["messages"][:-1], {**last, "content": parts}]}


class ShrinksImages(Proxy):
    """All images are made 56 pixels wide, whatever they show."""

    expected = ("images",)

    def request(self, body: Body) -> Body:
        last = body["messages"][-1]
        parts = last.get("content")
        if not isinstance(parts, list):
            return body
        made = []
        for part in parts:
            try:
                colour = read_png(part["image_url"]["url"])[1]
                made.append({"type": "image_url", "image_url": {"url": data_address(png(colour, 56))}})
            except (KeyError, ValueError):
                made.append(part)
        return {**body, "messages": [*body["messages"][:-1], {**last, "content": made}]}


class IgnoresFormatInStreams(Proxy):
    expected = ("json-mode", "json-schema")

    def request(self, body: Body) -> Body:
        return {k: v for k, v in body.items() if k != "response_format"} if body.get("stream") else body


class ForgetsSchemas(Proxy):
    """json_schema is treated as json_object."""

    expected = ("json-schema",)

    def request(self, body: Body) -> Body:
        return {**body, "response_format": {"type": "json_object"}} if "response_format" in body else body


class MixesAboveSixteen(Proxy):
    """Wrong only when more than 16 requests run."""

    expected = ("needles-32",)
    least = 16
    held_s = 0.05
    last: Any = None
    turn = 0

    async def forward(self, request: web.Request, data: bytes) -> web.StreamResponse:
        await asyncio.sleep(self.held_s)  # an engine takes longer than the scripted one, and so has more at a time
        return await super().forward(request, self.mixed(data) if self.in_flight > self.least else data)

    def mixed(self, data: bytes) -> bytes:
        """Every fifth request is answered from the state of the one before."""
        self.turn += 1
        if self.turn % 5 == 0 and self.last:
            data = self.last
        self.last = data
        return data


class MixesAboveSixty(MixesAboveSixteen):
    """Wrong only when more than 60 requests run."""

    expected = ("needles-128",)
    least = 60
    held_s = 0.5


class MixesSharedPrefixes(Proxy):
    """Two requests that run at the same time and begin alike are taken for one."""

    expected = ("prefix-shared",)

    def __init__(self, upstream: str) -> None:
        super().__init__(upstream)
        self.running: dict[str, list[Any]] = {}

    async def forward(self, request: web.Request, data: bytes) -> web.StreamResponse:
        try:
            body = json.loads(data)
            front = "".join(text_of(message) for message in body["messages"])[:600]
        except (ValueError, RecursionError, TypeError, KeyError, AttributeError):
            return await super().forward(request, data)
        if len(front) < 600:
            return await super().forward(request, data)
        mine = self.running.setdefault(front, [])
        if mine and self.number % 3 == 0:
            data = json.dumps({**body, "messages": mine[0]}).encode()
        mine.append(body["messages"])
        try:
            return await super().forward(request, data)
        finally:
            mine.pop()


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


class SmallBodies(Proxy):
    """Takes bodies of 64 kB."""

    expected = ("recall",)

    def change_bytes(self, data: bytes) -> bytes:
        return b'{"too": "large"}' if len(data) > 65_536 else super().change_bytes(data)
