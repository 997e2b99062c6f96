"""A proxy in front of a correct endpoint. A fault is a small subclass that breaks one thing."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from aiohttp import ClientSession, web

Body = dict[str, Any]


class Proxy:
    """Passes everything on. A fault changes the request, the whole answer, or the events of a stream."""

    expected: tuple[str, ...] = ()
    """The checks that must find it; others may find it too."""
    beside: tuple[str, ...] = ()
    """Checks whose answers the expected ones look back on."""
    only_warned = False
    """Whether it is a warning: some endpoints do it by intent, or rounding looks alike."""
    content_type = "text/event-stream"
    ending = b"\n\n"
    held_s = 0.0
    """How long a request waits beside others: an engine takes longer than the scripted one, and has more at a time."""
    piece_s = 0.0
    """How long each piece of a stream takes."""

    def __init__(self, upstream: str) -> None:
        self.upstream = upstream
        self.in_flight = 0
        self.number = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def app(self) -> web.Application:
        app = web.Application(client_max_size=64 * 2**20)
        app.cleanup_ctx.append(self._client)
        app.router.add_route("*", "/{path:.*}", self.handle)
        return app

    async def _client(self, app: web.Application) -> Any:
        self.client = ClientSession(read_bufsize=2**22)
        yield
        for task in self._tasks:
            task.cancel()
        await self.client.close()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        data = await request.read()
        self.in_flight += 1
        self.number += 1
        try:
            data = self.change_bytes(data)
            if self.held_s and self.in_flight > 1:
                await asyncio.sleep(self.held_s)
            return await self.forward(request, data)
        except ConnectionResetError:
            return web.Response()
        finally:
            self.in_flight -= 1

    def change_bytes(self, data: bytes) -> bytes:
        try:
            body = json.loads(data)
        except (ValueError, RecursionError):
            return data
        return json.dumps(self.request(body)).encode() if well_formed(body) else data

    async def forward(self, request: web.Request, data: bytes) -> web.StreamResponse:
        url = self.upstream + request.path_qs
        async with self.client.request(request.method, url, data=data, headers=type_of(request)) as answer:
            if answer.content_type == "text/event-stream":
                return await self.relay(request, answer, json.loads(data))
            text = await answer.text()
            status = await self.status(answer.status)
            content_type = answer.content_type
            if request.path.endswith("/chat/completions"):
                if answer.status == 200:
                    text = json.dumps(self.whole(json.loads(text), json.loads(data)))
                else:
                    text, content_type = self.error(text, content_type)
            return web.Response(status=status, text=text, content_type=content_type)

    async def relay(self, request: web.Request, answer: Any, body: Body) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": self.content_type})
        await response.prepare(request)
        seen = 0
        async for line in answer.content:
            if not line.startswith(b"data:"):
                continue
            if not line.startswith(b"data: {"):
                await self.write(response, line.strip() + self.ending)
                continue
            event = json.loads(line[6:])
            seen += has_text(event)
            for one in self.event(event, seen, body):
                await self.write(response, b"data: " + json.dumps(one).encode() + self.ending)
        return response

    async def write(self, response: web.StreamResponse, data: bytes) -> None:
        if self.piece_s:
            await asyncio.sleep(self.piece_s)
        await response.write(data)

    def request(self, body: Body) -> Body:
        return body

    def whole(self, answer: Body, body: Body) -> Body:
        return answer

    def event(self, event: Body, seen: int, body: Body) -> list[Body]:
        return [event]

    async def status(self, status: int) -> int:
        return status

    def error(self, text: str, content_type: str) -> tuple[str, str]:
        return text, content_type


def has_text(event: Body) -> bool:
    delta = event["choices"][0]["delta"] if event.get("choices") else {}
    return bool(delta.get("content") or delta.get("reasoning_content"))


def well_formed(body: Any) -> bool:
    """Whether it is a request that a fault knows how to change; others pass as they are."""
    messages = body.get("messages") if isinstance(body, dict) else None
    return (
        isinstance(messages, list)
        and bool(messages)
        and all(isinstance(one, dict) and isinstance(one.get("content") or "", str | list) for one in messages)
    )


def type_of(request: web.Request) -> dict[str, str]:
    return {"Content-Type": request.headers.get("Content-Type", "application/json")}


def message_of(answer: Body) -> Body:
    return answer["choices"][0]["message"]  # type: ignore[no-any-return]
