"""Requests that the guard does not judge: passed through, body and answer as they come."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import aiohttp

from k3stack.guard.gateway import Gateway, SilentError
from k3stack.guard.http import (
    NOT_FORWARDED,
    NOT_PASSED_BACK,
    Receive,
    Scope,
    Send,
    read_body,
    request_headers,
    response_headers,
)
from k3stack.guard.journal import Entry
from k3stack.guard.upstreams import conversation_key

__all__ = ["full_path", "hang_up_ends", "relay"]

_LISTEN_AFTER_S = 0.25
_REPEATABLE = frozenset({"GET", "HEAD", "OPTIONS"})
_GENERATES = frozenset({"/v1/completions", "/v1/chat/completions"})


async def relay(gateway: Gateway, scope: Scope, receive: Receive, send: Send, entry: Entry) -> None:
    """Pass one request through.

    Raises:
        RefusedError: the body is too large.
        UnreachableError: no upstream could be reached.
        ConnectionResetError: the client hung up; the upstream has been told.
    """
    body = await read_body(scope, receive, gateway.settings.max_body_bytes)
    entry.bytes_in = len(body)
    session = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"x-session-id"), None)
    order = gateway.pool.order(conversation_key({}, session))
    method = scope["method"]
    # Text generation changes nothing on the server: asking again is safe as long as nothing has been answered.
    repeatable = method in _REPEATABLE or scope["path"] in _GENERATES

    async def work() -> None:
        headers = [*request_headers(scope, NOT_FORWARDED | {b"x-request-id"}), ("x-request-id", entry.id)]
        async with gateway.ask(
            order, method, full_path(scope), headers, body, repeatable=repeatable, decompress=False
        ) as (upstream, answer):
            entry.upstream = upstream.url
            head = response_headers(answer.raw_headers, NOT_PASSED_BACK | {b"x-request-id"})
            await send({"type": "http.response.start", "status": answer.status, "headers": head})
            async with gateway.watching(answer, send) as watch:
                while data := await watch.read():
                    await send({"type": "http.response.body", "body": data, "more_body": True})
            await send({"type": "http.response.body", "body": b""})

    try:
        await hang_up_ends(receive, work())
    except (aiohttp.ClientError, SilentError) as error:
        entry.error = "upstream_cut"
        raise _CutError(str(error)) from None


class _CutError(Exception):
    """The upstream broke off in an answer whose head is out: the client's connection is cut too."""


def full_path(scope: Scope) -> str:
    """The request's path and query as the client wrote them."""
    raw = scope.get("raw_path") or scope["path"].encode()
    query = scope.get("query_string") or b""
    text = raw.partition(b"?")[0].decode("latin-1")
    return f"{text}?{query.decode('latin-1')}" if query else text


async def hang_up_ends(receive: Receive, work: Awaitable[None]) -> None:
    """Run `work`; a client that hangs up ends it, which closes the connection to the upstream.

    To begin listening costs about 0.7 ms on granian, so it begins only once a request has lasted a while.

    Raises:
        ConnectionResetError: the client hung up.
    """
    loop = asyncio.get_running_loop()
    task = asyncio.current_task(loop)
    assert task is not None
    listener: asyncio.Task[None] | None = None
    hung_up = False

    async def listen() -> None:
        nonlocal hung_up
        while (await receive())["type"] != "http.disconnect":
            pass
        hung_up = True
        task.cancel()

    def begin() -> None:
        nonlocal listener
        listener = loop.create_task(listen())

    beginning = loop.call_later(_LISTEN_AFTER_S, begin)
    try:
        await work
    except asyncio.CancelledError:
        if not hung_up:
            raise
        task.uncancel()
        raise ConnectionResetError from None
    finally:
        beginning.cancel()
        if listener is not None:
            listener.cancel()
