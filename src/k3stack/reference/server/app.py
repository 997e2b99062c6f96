"""The server as an ASGI application.

POST /v1/chat/completions, /v1/completions    answers
GET  /v1/models, /v1/models/ID                the model, its context, and whether its weights are random
POST /tokenize, /detokenize                   text, or a chat, to ids and back
GET  /health                                  200 while the engine runs
GET  /metrics                                 Prometheus
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

from k3stack import __version__
from k3stack.errors import InputError
from k3stack.guard import codec
from k3stack.guard.http import Message, Receive, Scope, Send, error_body, read_body, respond
from k3stack.guard.refused import RefusedError
from k3stack.reference.server.chat import chat, prepare_prompt
from k3stack.reference.server.completions import completions
from k3stack.reference.server.fields import DetokenizeFields, TokenizeFields, checked, read_json
from k3stack.reference.server.generation import EngineFailedError
from k3stack.reference.server.host import Host

__all__ = ["ReferenceApp"]

_Endpoint = Callable[[Host, bytes, Receive, Send], Awaitable[None]]
_CODES = {404: "not_found", 405: "method_not_allowed", 413: "too_large", 429: "too_many_requests"}


class ReferenceApp:
    """The ASGI application.

    Args:
        host: everything that endpoints need.
    """

    def __init__(self, host: Host) -> None:
        self.host = host
        self._created = int(time.time())
        self._endpoints: dict[str, dict[str, _Endpoint]] = {
            "/v1/chat/completions": {"POST": chat},
            "/v1/completions": {"POST": completions},
            "/v1/models": {"GET": self._models},
            f"/v1/models/{host.settings.model}": {"GET": self._model},
            "/tokenize": {"POST": _tokenize},
            "/detokenize": {"POST": _detokenize},
            "/health": {"GET": _health},
            "/version": {"GET": _version},
            "/metrics": {"GET": _metrics},
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection event."""
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1003, "reason": "this server speaks HTTP only"})

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        began, metrics = time.perf_counter(), self.host.metrics
        noted = _Noted(send)
        metrics.in_flight += 1
        try:
            await self._answer(scope, receive, noted)
        finally:
            metrics.in_flight -= 1
            path = scope["path"] if scope["path"] in self._endpoints else "other"
            metrics.answered(path, noted.status or 499)
            if self.host.settings.log and path.startswith("/v1/") and scope["method"] == "POST":
                line = {"path": path, "status": noted.status or 499, "seconds": round(time.perf_counter() - began, 4)}
                sys.stderr.write(json.dumps(line) + "\n")

    async def _answer(self, scope: Scope, receive: Receive, send: _Noted) -> None:
        """Serve a request; errors that come before the first byte become answers."""
        try:
            endpoint = self._find(scope["path"], scope["method"])
            limit = self.host.settings.max_body_bytes
            raw = await read_body(scope, receive, limit) if scope["method"] == "POST" else b""
            await endpoint(self.host, raw, receive, send)
        except RefusedError as error:
            await _refuse(send, error)
        except EngineFailedError as error:
            await respond(send, 500, error_body(str(error), "engine_failed", kind="server_error"))
        except ConnectionResetError:
            pass
        except Exception:  # a bug: the client learns that, the operator why
            traceback.print_exc()
            if not send.status:
                body = error_body("the server failed; its log says why", "internal_error", kind="server_error")
                await respond(send, 500, body)

    def _find(self, path: str, method: str) -> _Endpoint:
        methods = self._endpoints.get(path)
        if methods is None:
            known = ", ".join(self._endpoints)
            raise RefusedError(f"no such path {path[:100]!r}", where="path", hint=f"There are {known}", status=404)
        method = "GET" if method == "HEAD" else method
        if method not in methods:
            raise RefusedError(f"{method[:20]} is not for {path}", where="method", status=405)
        busy = self.host.metrics.in_flight > self.host.settings.max_in_flight
        if busy and method == "POST":
            what = f"{self.host.settings.max_in_flight} requests are being served, the most allowed"
            raise RefusedError(what, where="server", status=429)
        return methods[method]

    def _card(self) -> dict[str, Any]:
        settings = self.host.settings
        return {
            "id": settings.model,
            "object": "model",
            "created": self._created,
            "owned_by": "k3stack",
            "root": settings.model,
            "parent": None,
            "max_model_len": settings.context,
            "random_weights": settings.random_weights,
            "engine": "k3stack reference",
        }

    async def _models(self, host: Host, raw: bytes, receive: Receive, send: Send) -> None:
        await respond(send, 200, codec.dumps({"object": "list", "data": [self._card()]}))

    async def _model(self, host: Host, raw: bytes, receive: Receive, send: Send) -> None:
        await respond(send, 200, codec.dumps(self._card()))


class _Noted:
    """`send`, noting the status."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        await self._send(message)


async def _refuse(send: Send, error: RefusedError) -> None:
    where = error.where or ""
    code = _CODES.get(error.status, "invalid_value")
    if "context" in error.what and where in ("messages", "prompt", "max_tokens"):
        code = "context_length_exceeded"
    elif error.status == 404 and where == "model":
        code = "model_not_found"
    headers = [(b"retry-after", b"1")] if error.status == 429 else []
    body = error_body(str(error), code, kind="invalid_request_error", param=where or None)
    await respond(send, error.status, body, headers)


async def _tokenize(host: Host, raw: bytes, receive: Receive, send: Send) -> None:
    body = read_json(raw)
    fields = checked(TokenizeFields, body)
    if (fields.prompt is None) == (fields.messages is None):
        raise RefusedError("give either prompt or messages", where="prompt")
    if fields.prompt is not None:
        tokens: tuple[int, ...] = tuple(host.tokenizer.encode(fields.prompt))
    else:
        tokens = (await prepare_prompt(host, raw))[2].tokens
    answer: dict[str, Any] = {"count": len(tokens), "max_model_len": host.settings.context, "tokens": tokens}
    if fields.return_token_strs:
        answer["token_strs"] = [host.tokenizer.bytes_of(each).decode(errors="replace") for each in tokens]
    await respond(send, 200, codec.dumps(answer))


async def _detokenize(host: Host, raw: bytes, receive: Receive, send: Send) -> None:
    fields = checked(DetokenizeFields, read_json(raw))
    try:
        text = host.tokenizer.decode(fields.tokens)
    except InputError as error:
        raise RefusedError(error.what, where="tokens") from None
    await respond(send, 200, codec.dumps({"prompt": text}))


async def _health(host: Host, raw: bytes, receive: Receive, send: Send) -> None:
    healthy = host.worker.healthy
    body = {"status": "ok"} if healthy else {"status": "down", "error": host.worker.failure}
    await respond(send, 200 if healthy else 503, codec.dumps(body))


async def _version(host: Host, raw: bytes, receive: Receive, send: Send) -> None:
    await respond(send, 200, codec.dumps({"version": __version__, "engine": "k3stack reference"}))


async def _metrics(host: Host, raw: bytes, receive: Receive, send: Send) -> None:
    kind = [(b"content-type", b"text/plain; version=0.0.4; charset=utf-8")]
    await respond(send, 200, host.metrics.text(), kind)
