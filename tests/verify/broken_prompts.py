"""Faults of what reaches the model: messages, parts, images and formats that are dropped, cut or mixed."""

from __future__ import annotations

import json
import re
from typing import Any

from aiohttp import web

from k3stack.verify.picture import data_address, png
from tests.verify.brain import images_of, read_png, text_of
from tests.verify.fake_k3 import tokens_of
from tests.verify.proxy import Body, Proxy


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
    held_s = 0.8


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


class SmallBodies(Proxy):
    """Takes bodies of 64 kB."""

    expected = ("recall",)

    def change_bytes(self, data: bytes) -> bytes:
        return b'{"too": "large"}' if len(data) > 65_536 else super().change_bytes(data)
