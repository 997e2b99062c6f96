"""The proxy as an ASGI application: chat through the guard, everything else as it is.

POST /v1/chat/completions   through the guard, streamed or not
GET  /health                200 while at least one upstream answers its own /health
GET  /metrics               the guard's Prometheus metrics
anything else               passed through, streamed both ways
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections.abc import Awaitable, Callable

from k3stack.guard import codec
from k3stack.guard.chat import Chat
from k3stack.guard.gateway import Gateway, UnreachableError
from k3stack.guard.http import Message, Receive, Scope, Send, error_body, respond
from k3stack.guard.journal import Entry, Journal
from k3stack.guard.metrics import Metrics
from k3stack.guard.refused import RefusedError
from k3stack.guard.relay import relay
from k3stack.guard.settings import Settings

__all__ = ["GuardApp"]

CHAT_PATH = "/v1/chat/completions"
_HEALTH_S = 2.0
_START, _NUMBERS = secrets.token_hex(6), itertools.count(1)


class GuardApp:
    """The ASGI application.

    Args:
        settings: of the proxy.
        log: where a request's line goes; stderr by default.
    """

    def __init__(self, settings: Settings, log: Callable[[dict[str, object]], None] | None = None) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.gateway = Gateway(settings, self.metrics)
        self._chat = Chat(self.gateway, self.metrics, settings)
        self.journal = Journal()
        self._log = log or self.journal
        self.metrics.lines_dropped.set_function(lambda: self.journal.dropped)
        self._in_flight = 0
        self.metrics.in_flight.set_function(lambda: self._in_flight)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection event."""
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1003, "reason": "the guard speaks HTTP only"})

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                await self.gateway.close()
                self.journal.flush()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if path == "/health":
            return await self._health(send)
        if path == "/metrics":
            kind = [(b"content-type", b"text/plain; version=0.0.4; charset=utf-8")]
            return await respond(send, 200, self.metrics.text(), kind)
        if self._in_flight >= self.settings.max_in_flight:
            self.metrics.count(self.metrics.requests, "refused\t429")
            body = error_body(f"{self._in_flight} requests are being served, the most allowed", "too_many_requests")
            return await respond(send, 429, body, [(b"retry-after", b"1")])
        self._in_flight += 1
        entry = Entry(_request_id(scope), scope["method"], path)
        try:
            await self._serve(scope, receive, send, entry)
        finally:
            self._in_flight -= 1
            self.metrics.count(self.metrics.requests, f"{entry.kind}\t{entry.status}")
            if self.settings.log:
                self._log(entry.line())

    async def _serve(self, scope: Scope, receive: Receive, send: Send, entry: Entry) -> None:
        """Serve a request; errors that come before the first byte become responses."""
        counted = _Counted(send, entry)
        is_chat = scope["path"] == CHAT_PATH and scope["method"] == "POST"
        try:
            if is_chat:
                entry.kind = "chat"
                await self._chat(scope, receive, counted, entry)
            else:
                await relay(self.gateway, scope, receive, counted, entry)
        except RefusedError as error:
            entry.error = "refused"
            body = error_body(str(error), "bad_request", kind="invalid_request_error", param=error.where)
            await respond(counted, error.status, body)
        except UnreachableError as error:
            entry.error = error.failure.code
            if entry.status:  # the response has begun: cut it, so that nobody takes it for whole
                raise
            await respond(counted, error.failure.status, codec.dumps(error.failure.body))
        except ConnectionResetError:
            entry.disconnected = True
            self.metrics.count(self.metrics.disconnects)

    async def _health(self, send: Send) -> None:
        """Ask every upstream's own /health."""

        async def probe(url: str) -> bool:
            upstream = next(each for each in self.gateway.pool.upstreams if each.url == url)
            try:
                async with (
                    asyncio.timeout(_HEALTH_S),
                    self.gateway.ask([upstream], "GET", "/health", [], b"", repeatable=False) as (_, answer),
                ):
                    return answer.status == 200
            except (UnreachableError, TimeoutError):
                return False

        urls = [each.url for each in self.gateway.pool.upstreams]
        up = await asyncio.gather(*map(probe, urls))
        body = codec.dumps({"status": "ok" if any(up) else "down", "upstreams": dict(zip(urls, up, strict=True))})
        await respond(send, 200 if any(up) else 503, body)


class _Counted:
    """`send`, noting what went out."""

    __slots__ = ("_entry", "_send")

    def __init__(self, send: Send, entry: Entry) -> None:
        self._send = send
        self._entry = entry

    def __call__(self, message: Message) -> Awaitable[None]:
        entry = self._entry
        if message["type"] == "http.response.start":
            entry.status = message["status"]
            message["headers"].append((b"x-request-id", entry.id.encode("latin-1")))
        else:
            body = message["body"]
            entry.bytes_out += len(body)
            if entry.first_byte_s is None and body:
                entry.first_byte_s = time.perf_counter() - entry.began
        return self._send(message)


def _request_id(scope: Scope) -> str:
    """The client's own request id if it is a plain one, or a new one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and 0 < len(value) <= 128 and value.isascii() and value.decode().isprintable():
            return str(value.decode())
    return f"{_START}-{next(_NUMBERS):x}"
