"""The guard inside the client: an httpx transport, so that the openai SDK needs no proxy.

    from openai import OpenAI, DefaultHttpxClient
    from k3stack.guard import Transport

    client = OpenAI(base_url=..., http_client=DefaultHttpxClient(transport=Transport()))

Works with httpx and with httpx2, its successor, which newer openai SDKs are built on: responses are made of the
same library as the request. Only POSTs to `.../chat/completions` are judged, everything else passes through.
"""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

from k3stack.guard import codec
from k3stack.guard.answer import AnswerGuard
from k3stack.guard.attempts import Step
from k3stack.guard.policy import Policy
from k3stack.guard.refused import RefusedError
from k3stack.guard.report import Report
from k3stack.guard.request import parse_chat_request
from k3stack.guard.stream import StreamGuard

__all__ = ["AsyncTransport", "Transport"]

_Guard = StreamGuard | AnswerGuard


class _Shared:
    """What both transports do the same way.

    Args:
        inner: the transport that really sends; the library's own by default.
        policy: the guard's settings. `Source.RAW` needs the proxy, which can ask the engine for markers.
        on_report: called with what happened once a guarded request has ended.
    """

    def __init__(
        self, inner: Any = None, policy: Policy | None = None, on_report: Callable[[Report], None] | None = None
    ) -> None:
        self._inner = inner
        self.policy = policy or Policy()
        self._on_report = on_report

    def _reported(self, guard: _Guard) -> None:
        if self._on_report is not None:
            self._on_report(guard.report)

    def _begin(self, raw: bytes) -> _Guard:
        request = parse_chat_request(raw)
        return StreamGuard(request, self.policy) if request.stream else AnswerGuard(request, self.policy)


class Transport(_Shared):
    """For `httpx.Client` and `OpenAI`."""

    def handle_request(self, request: Any) -> Any:
        """Send a request; the answer to a chat request goes through the guard."""
        library = _library(request)
        if self._inner is None:
            self._inner = library.HTTPTransport()
        if not _is_chat(request):
            return self._inner.handle_request(request)
        try:
            guard = self._begin(request.read())
        except RefusedError as error:
            return _refusal(library, request, error)
        response = self._inner.handle_request(request)
        if response.status_code != 200:
            return response
        if isinstance(guard, StreamGuard) and _is_stream(response):
            events = _stream_class(library, "SyncByteStream")(self._events(request, response, guard))
            return _response(library, request, response, stream=events)
        return self._whole(library, request, response, _whole_guard(guard, self))

    def _whole(self, library: Any, request: Any, response: Any, guard: AnswerGuard) -> Any:
        response.request = request
        step = guard.take(_read(response))
        while step.again:
            try:
                again = self._inner.handle_request(_again(library, request, guard))
                again.request = request
                data = _read(again)
                step = guard.take(data) if again.status_code == 200 else guard.failed()
            except (library.TransportError, OSError):
                step = guard.failed()
        self._reported(guard)
        return _response(library, request, response, step=step, report=guard.report)

    def _events(self, request: Any, response: Any, guard: StreamGuard) -> Iterator[bytes]:
        library = _library(request)
        response.request = request
        try:
            while True:
                broken = None
                try:
                    for data in response.iter_bytes():
                        if out := guard.feed(data):
                            yield out
                        if guard.over:
                            break
                except (library.TransportError, OSError) as error:
                    broken = f"the upstream broke off: {error or type(error).__name__}"
                response.close()
                step = guard.end(broken)
                while step.again:
                    response = self._ask_again(library, request, guard)
                    if response is not None:
                        break
                    step = guard.end("the upstream gave no answer to the resample")
                if step.data:
                    yield step.data
                if not step.again:
                    return
        finally:
            if response is not None:
                response.close()
            self._reported(guard)

    def _ask_again(self, library: Any, request: Any, guard: StreamGuard) -> Any | None:
        try:
            response = self._inner.handle_request(_again(library, request, guard))
            response.request = request
        except (library.TransportError, OSError):
            return None
        if response.status_code == 200 and _is_stream(response):
            return response
        response.close()
        return None

    def close(self) -> None:
        """Close the inner transport."""
        if self._inner is not None:
            self._inner.close()

    def __enter__(self) -> Transport:
        if self._inner is not None:
            self._inner.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncTransport(_Shared):
    """For `httpx.AsyncClient` and `AsyncOpenAI`."""

    async def handle_async_request(self, request: Any) -> Any:
        """Send a request; the answer to a chat request goes through the guard."""
        library = _library(request)
        if self._inner is None:
            self._inner = library.AsyncHTTPTransport()
        if not _is_chat(request):
            return await self._inner.handle_async_request(request)
        try:
            guard = self._begin(await request.aread())
        except RefusedError as error:
            return _refusal(library, request, error)
        response = await self._inner.handle_async_request(request)
        if response.status_code != 200:
            return response
        if isinstance(guard, StreamGuard) and _is_stream(response):
            events = _stream_class(library, "AsyncByteStream")(self._events(request, response, guard))
            return _response(library, request, response, stream=events)
        return await self._whole(library, request, response, _whole_guard(guard, self))

    async def _whole(self, library: Any, request: Any, response: Any, guard: AnswerGuard) -> Any:
        response.request = request
        step = guard.take(await _aread(response))
        while step.again:
            try:
                again = await self._inner.handle_async_request(_again(library, request, guard))
                again.request = request
                data = await _aread(again)
                step = guard.take(data) if again.status_code == 200 else guard.failed()
            except (library.TransportError, OSError):
                step = guard.failed()
        self._reported(guard)
        return _response(library, request, response, step=step, report=guard.report)

    async def _events(self, request: Any, response: Any, guard: StreamGuard) -> AsyncIterator[bytes]:
        library = _library(request)
        response.request = request
        try:
            while True:
                broken = None
                try:
                    async for data in response.aiter_bytes():
                        if out := guard.feed(data):
                            yield out
                        if guard.over:
                            break
                except (library.TransportError, OSError) as error:
                    broken = f"the upstream broke off: {error or type(error).__name__}"
                await response.aclose()
                step = guard.end(broken)
                while step.again:
                    response = await self._ask_again(library, request, guard)
                    if response is not None:
                        break
                    step = guard.end("the upstream gave no answer to the resample")
                if step.data:
                    yield step.data
                if not step.again:
                    return
        finally:
            if response is not None:
                await response.aclose()
            self._reported(guard)

    async def _ask_again(self, library: Any, request: Any, guard: StreamGuard) -> Any | None:
        try:
            response = await self._inner.handle_async_request(_again(library, request, guard))
            response.request = request
        except (library.TransportError, OSError):
            return None
        if response.status_code == 200 and _is_stream(response):
            return response
        await response.aclose()
        return None

    async def aclose(self) -> None:
        """Close the inner transport."""
        if self._inner is not None:
            await self._inner.aclose()

    async def __aenter__(self) -> AsyncTransport:
        if self._inner is not None:
            await self._inner.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def _library(request: Any) -> Any:
    """httpx or httpx2: whichever the request is made of."""
    return importlib.import_module(type(request).__module__.partition(".")[0])


def _is_chat(request: Any) -> bool:
    return bool(request.method == "POST" and request.url.path.endswith("/chat/completions"))


def _is_stream(response: Any) -> bool:
    return bool(response.headers.get("content-type", "").startswith("text/event-stream"))


def _whole_guard(guard: _Guard, transport: _Shared) -> AnswerGuard:
    """For an answer in one piece; one that should have been a stream is never asked again."""
    if isinstance(guard, AnswerGuard):
        return guard
    return AnswerGuard(guard.request, replace(transport.policy, resamples=0))


def _read(response: Any) -> bytes:
    try:
        return bytes(response.read())
    finally:
        response.close()


async def _aread(response: Any) -> bytes:
    try:
        return bytes(await response.aread())
    finally:
        await response.aclose()


def _again(library: Any, request: Any, guard: _Guard) -> Any:
    """The request once more: the same bytes to the same place."""
    headers = [(name, value) for name, value in request.headers.raw if name.lower() != b"content-length"]
    return library.Request(
        request.method, request.url, headers=headers, content=guard.body(), extensions=request.extensions
    )


def _response(
    library: Any,
    request: Any,
    response: Any,
    *,
    stream: Any = None,
    step: Step | None = None,
    report: Report | None = None,
) -> Any:
    """The response for the client, with the upstream's headers that are still true."""
    untrue = (b"content-length", b"content-encoding", b"transfer-encoding")
    headers = [(name, value) for name, value in response.headers.raw if name.lower() not in untrue]
    if step is None:
        made = library.Response(200, headers=headers, stream=stream, request=request)
    else:
        if report is not None and report.verdict is not None:
            headers.append((b"x-k3-guard", report.verdict.encode()))
        if report is not None and report.error is not None:
            headers.append((b"x-should-retry", b"false"))
        made = library.Response(step.status, headers=headers, content=step.data, request=request)
    made.extensions = {name: value for name, value in response.extensions.items() if name != "network_stream"}
    return made


def _refusal(library: Any, request: Any, error: RefusedError) -> Any:
    body = {"message": str(error), "type": "invalid_request_error", "param": error.where, "code": "bad_request"}
    headers = {"content-type": "application/json", "x-should-retry": "false"}
    return library.Response(error.status, headers=headers, content=codec.dumps({"error": body}), request=request)


@cache
def _stream_class(library: Any, base: str) -> Any:
    """A byte stream over an iterator, of the library's own kind, as its client insists on."""

    def hold(self: Any, events: Any) -> None:
        self.events = events

    def close(self: Any) -> None:
        self.events.close()

    async def aclose(self: Any) -> None:
        await self.events.aclose()

    methods = (
        {"__iter__": lambda self: self.events, "close": close}
        if base == "SyncByteStream"
        else {"__aiter__": lambda self: self.events, "aclose": aclose}
    )
    return type(f"Guarded{base}", (getattr(library, base),), {"__init__": hold, **methods})
