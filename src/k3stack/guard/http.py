"""Small HTTP matters of the proxy: headers, bodies, errors in OpenAI's form."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from k3stack.guard import codec
from k3stack.guard.refused import RefusedError

__all__ = [
    "NOT_FORWARDED",
    "NOT_PASSED_BACK",
    "Message",
    "Receive",
    "Scope",
    "Send",
    "body_chunks",
    "error_body",
    "read_body",
    "request_headers",
    "respond",
    "response_headers",
]

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

_HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding "
    b"upgrade".split()
)
NOT_FORWARDED = _HOP_BY_HOP | {b"host", b"content-length"}
"""Request headers that belong to the client's connection."""
NOT_PASSED_BACK = _HOP_BY_HOP | {b"date", b"server"}
"""Response headers that belong to the upstream's connection."""
_PIECE_BYTES = 256 * 1024


def request_headers(scope: Scope, leave_out: frozenset[bytes]) -> list[tuple[str, str]]:
    """The client's headers for the upstream, at least without `NOT_FORWARDED`. Keys and cookies pass unread."""
    headers = scope["headers"]
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers if name not in leave_out]


def response_headers(headers: Iterable[tuple[bytes, bytes]], leave_out: frozenset[bytes]) -> Headers:
    """The upstream's headers for the client, at least without `NOT_PASSED_BACK`."""
    return [(low, value) for name, value in headers if (low := name.lower()) not in leave_out]


async def read_body(scope: Scope, receive: Receive, limit_bytes: int) -> bytes:
    """The whole request body.

    Raises:
        RefusedError: it is larger than the limit, which its headers may say before it comes.
        ConnectionResetError: the client hung up.
    """
    said = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
    if said.isdigit() and int(said) > limit_bytes:
        raise _too_large(int(said), limit_bytes)
    parts: list[bytes] = []
    total = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionResetError
        part = message.get("body", b"")
        total += len(part)
        if total > limit_bytes:
            raise _too_large(total, limit_bytes)
        parts.append(part)
        if not message.get("more_body"):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def _too_large(size: int, limit: int) -> RefusedError:
    return RefusedError(f"the body has {size:,} bytes or more, over the limit of {limit:,}", where="body", status=413)


def body_chunks(body: bytes) -> bytes | AsyncIterator[memoryview]:
    """A body for the upstream: large ones go out in pieces, so that other streams get their turn in between."""
    return body if len(body) <= 2 * _PIECE_BYTES else _pieces(body)


async def _pieces(body: bytes) -> AsyncIterator[memoryview]:
    view = memoryview(body)
    for start in range(0, len(body), _PIECE_BYTES):
        yield view[start : start + _PIECE_BYTES]


async def respond(send: Send, status: int, body: bytes, headers: Headers | None = None) -> None:
    """A whole response; JSON unless the headers say otherwise."""
    headers = [(name, value) for name, value in headers or () if name != b"content-length"]
    if not any(name == b"content-type" for name, _ in headers):
        headers.append((b"content-type", b"application/json"))
    headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def error_body(message: str, code: str, *, kind: str = "k3_guard_error", param: str | None = None) -> bytes:
    """An error in OpenAI's form."""
    return codec.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}})
