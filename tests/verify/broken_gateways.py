"""Faults of routers, gateways and templates, most of them from bug reports: of what they drop, cast, join or repeat."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from aiohttp import web

from k3stack.verify.picture import data_address, png
from tests.verify.brain import read_png
from tests.verify.broken_calls import whole_calls
from tests.verify.proxy import Body, Proxy, type_of


class DropsDeveloper(Proxy):
    """Messages of the role developer are left out by the template: SGLang issue 40082, and Moonshot's own encoder."""

    expected = ("developer",)
    only_warned = True

    def request(self, body: Body) -> Body:
        kept = [one for one in body["messages"] if one.get("role") != "developer"]
        return {**body, "messages": kept or body["messages"]}


class KeepsLastOfUsers(Proxy):
    """Of two user messages in a row the last is kept, as for APIs in which roles take turns."""

    expected = ("messages",)

    def request(self, body: Body) -> Body:
        mine = body["messages"]
        roles = [one.get("role") for one in mine]
        kept = [one for n, one in enumerate(mine) if not (roles[n] == "user" and roles[n + 1 : n + 2] == ["user"])]
        return {**body, "messages": kept}


class LosesResultParts(Proxy):
    """A tool's result that comes in parts is empty: a template that knows results as text alone."""

    expected = ("tool-turns",)

    def request(self, body: Body) -> Body:
        messages = [
            {**one, "content": ""} if one.get("role") == "tool" and isinstance(one.get("content"), list) else one
            for one in body["messages"]
        ]
        return {**body, "messages": messages}


class DropsContentBesideCalls(Proxy):
    """What an assistant said beside its calls is left out of the history."""

    expected = ("history",)

    def request(self, body: Body) -> Body:
        messages = [{**one, "content": None} if one.get("tool_calls") else one for one in body["messages"]]
        return {**body, "messages": messages}


class DropsReasoningBesideCalls(Proxy):
    """Reasoning of earlier turns is taken back, but for turns with calls, which are those that agents make."""

    expected = ("history",)

    def request(self, body: Body) -> Body:
        dropped = ("reasoning", "reasoning_content")
        messages = [
            {k: v for k, v in one.items() if k not in dropped} if one.get("tool_calls") else one
            for one in body["messages"]
        ]
        return {**body, "messages": messages}


class DropsDefinitions(Proxy):
    """Definitions that a tool's schema refers to are dropped, as in autogen pull request 7594."""

    expected = ("tool-schemas",)

    def request(self, body: Body) -> Body:
        if not isinstance(body.get("tools"), list):
            return body
        tools = json.loads(json.dumps(body["tools"]))
        for tool in tools:
            tool["function"]["parameters"].pop("$defs", None)
        return {**body, "tools": tools}


class RoundsIntegers(Proxy):
    """A gateway in JavaScript, where integers beyond 2^53 are rounded."""

    expected = ("tool-nested",)

    def whole(self, answer: Body, body: Body) -> Body:
        for call in whole_calls(answer):
            value = json.loads(call["function"]["arguments"], parse_int=lambda text: int(float(text)))
            call["function"]["arguments"] = json.dumps(value)
        return answer


class IntegersAsFloats(Proxy):
    """Integers of arguments arrive as 3.0, which strict clients refuse."""

    expected = ("tool-nested",)

    def whole(self, answer: Body, body: Body) -> Body:
        for call in whole_calls(answer):
            call["function"]["arguments"] = json.dumps(json.loads(call["function"]["arguments"], parse_int=float))
        return answer


class DropsNulls(Proxy):
    """Arguments that are null are left out, as by a gateway that writes no empty fields."""

    expected = ("tool-nested",)

    def whole(self, answer: Body, body: Body) -> Body:
        for call in whole_calls(answer):
            arguments = json.loads(call["function"]["arguments"])
            kept = {name: value for name, value in arguments.items() if value is not None}
            call["function"]["arguments"] = json.dumps(kept)
        return answer


class SwapsChannels(Proxy):
    """Images are read as blue, green, red."""

    expected = ("images",)

    def request(self, body: Body) -> Body:
        last = body["messages"][-1]
        if not isinstance(last.get("content"), list):
            return body
        parts = []
        for part in last["content"]:
            try:
                side, (red, green, blue) = read_png(part["image_url"]["url"])
                part = {"type": "image_url", "image_url": {"url": data_address(png((blue, green, red), side))}}
            except (KeyError, ValueError):
                pass
            parts.append(part)
        return {**body, "messages": [*body["messages"][:-1], {**last, "content": parts}]}


class OverstatesContext(Proxy):
    """A router lists four times the context that the engine behind it was started with."""

    expected = ("overflow",)
    only_warned = True

    async def forward(self, request: web.Request, data: bytes) -> web.StreamResponse:
        if not request.path.endswith("/models"):
            return await super().forward(request, data)
        async with self.client.get(self.upstream + request.path) as answer:
            known = await answer.json()
        known["data"][0]["max_model_len"] *= 4
        return web.json_response(known)


class ErrorsWith200UnderLoad(Proxy):
    """More than six requests at once get an error with HTTP 200: Fastllm-proxy issue 28."""

    expected = ("needles-8",)
    held_s = 0.02

    async def forward(self, request: web.Request, data: bytes) -> web.StreamResponse:
        if self.in_flight > 6 and request.method == "POST":
            return web.json_response({"error": {"message": "worker limit reached", "code": 502}})
        return await super().forward(request, data)


class DeadReplica(Proxy):
    """One of twelve replicas is gone, and the balancer has not noticed."""

    expected = ("needles-32",)
    posts = 0

    async def forward(self, request: web.Request, data: bytes) -> web.StreamResponse:
        self.posts += request.method == "POST"
        if self.posts % 12 == 11 and request.method == "POST":
            self.posts += 1
            return web.Response(status=503, text="no healthy upstream")
        return await super().forward(request, data)


class CutsLongWaits(Proxy):
    """A balancer whose time-out ends answers that are not streamed and take long: here, 300 tokens."""

    expected = ("flow",)

    async def forward(self, request: web.Request, data: bytes) -> web.StreamResponse:
        response: Any = await super().forward(request, data)
        text = getattr(response, "text", None) or ""
        if '"chat.completion"' in text and json.loads(text)["usage"]["completion_tokens"] > 300:
            return web.Response(status=504, text="upstream request timeout")
        return response  # type: ignore[no-any-return]


class CoalescesRequests(Proxy):
    """Equal requests that run at the same time are sent on as one, though each is to be drawn by itself."""

    expected = ("sampling",)

    def __init__(self, upstream: str) -> None:
        super().__init__(upstream)
        self.running: dict[bytes, asyncio.Task[Any]] = {}

    async def forward(self, request: web.Request, data: bytes) -> web.StreamResponse:
        if request.method != "POST" or b'"stream": true' in data:
            return await super().forward(request, data)
        if data not in self.running:
            self.running[data] = asyncio.create_task(self._one(request, data))
        status, text = await self.running[data]
        return web.Response(status=status, text=text, content_type="application/json")

    async def _one(self, request: web.Request, data: bytes) -> tuple[int, str]:
        try:
            await asyncio.sleep(0.01)
            async with self.client.post(self.upstream + request.path, data=data, headers=type_of(request)) as answer:
                return answer.status, await answer.text()
        finally:
            del self.running[data]
