"""Chat requests: one client request, as many upstream attempts as the core asks for."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import aiohttp

from k3stack.guard import codec
from k3stack.guard.answer import AnswerGuard
from k3stack.guard.attempts import Failure, Step
from k3stack.guard.gateway import Answer, Gateway, SilentError, UnreachableError, Watch
from k3stack.guard.http import (
    NOT_FORWARDED,
    NOT_PASSED_BACK,
    Receive,
    Scope,
    Send,
    read_body,
    request_headers,
    respond,
    response_headers,
)
from k3stack.guard.journal import Entry
from k3stack.guard.metrics import Metrics
from k3stack.guard.policy import Source
from k3stack.guard.prefix import PrefixReporter
from k3stack.guard.relay import full_path, hang_up_ends
from k3stack.guard.report import Report
from k3stack.guard.request import ChatRequest, parse_chat_request
from k3stack.guard.settings import Settings
from k3stack.guard.stream import StreamGuard
from k3stack.guard.upstreams import Upstream, conversation_key

__all__ = ["Chat"]

FLAG_HEADER = b"x-k3-guard"
_NOT_FORWARDED = NOT_FORWARDED | {b"accept-encoding", b"content-encoding", b"x-request-id"}
_NOT_PASSED_BACK = NOT_PASSED_BACK | {b"content-length", b"content-encoding", b"x-request-id"}
_READ_OUT_S = 1.0


class Chat:
    """Serves chat requests.

    Args:
        gateway: to the upstreams.
        metrics: to count in.
        settings: of the proxy.
    """

    def __init__(self, gateway: Gateway, metrics: Metrics, settings: Settings) -> None:
        self._gateway = gateway
        self._metrics = metrics
        self._settings = settings
        self._prefixes = PrefixReporter(metrics, settings.explain) if settings.prefixes else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send, entry: Entry) -> None:
        """Serve one request.

        Raises:
            RefusedError: it is answered at the door.
            UnreachableError: no upstream could be reached.
            ConnectionResetError: the client hung up; the upstream has been told.
        """
        body = await read_body(scope, receive, self._settings.max_body_bytes)
        received = time.perf_counter()
        entry.bytes_in = len(body)
        request = parse_chat_request(body, self._settings.images)
        if self._settings.policy.source is Source.RAW:
            request = _with_markers(request)
        entry.stream = request.stream
        if self._prefixes is not None:
            self._prefixes.look_at(request, _api_key(scope))
        serving = _Serving(self._gateway, self._metrics, self._settings, request, entry, send)
        await hang_up_ends(receive, serving.run(scope, received))


def _api_key(scope: Scope) -> str:
    return next((value.decode("latin-1") for name, value in scope["headers"] if name == b"authorization"), "")


def _with_markers(request: ChatRequest) -> ChatRequest:
    """Ask the engine to leave the control tokens in the text, as they were written; the prompt stays as it is.

    vLLM 0.33.0 puts spaces between them unless told not to (v1/engine/detokenizer.py).
    """
    body = {**request.body, "skip_special_tokens": False, "spaces_between_special_tokens": False}
    return replace(request, body=body, raw=codec.dumps(body))


class _Serving:
    """One request being served."""

    def __init__(
        self,
        gateway: Gateway,
        metrics: Metrics,
        settings: Settings,
        request: ChatRequest,
        entry: Entry,
        send: Send,
    ) -> None:
        self._gateway = gateway
        self._metrics = metrics
        self._settings = settings
        self._request = request
        self._entry = entry
        self._send = send
        self._head_sent = False
        self._all_sent = False
        self._added_s = 0.0

    async def run(self, scope: Scope, received: float) -> None:
        headers = [*request_headers(scope, _NOT_FORWARDED), ("x-request-id", self._entry.id)]
        session = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"x-session-id"), None)
        pool = self._gateway.pool
        key = conversation_key(self._request.body, session) if len(pool.upstreams) > 1 else None
        path = full_path(scope)
        guard: StreamGuard | AnswerGuard
        if self._request.stream:
            guard = StreamGuard(self._request, self._settings.policy)
        else:
            guard = AnswerGuard(self._request, self._settings.policy)
        self._entry.report = guard.report
        self._added_s = time.perf_counter() - received
        try:
            order = pool.order(key)
            while True:
                try:
                    async with self._gateway.ask(order, "POST", path, headers, guard.body(), repeatable=True) as (
                        upstream,
                        answer,
                    ):
                        again = await self._answer(guard, upstream, answer)
                except UnreachableError as error:
                    if not guard.report.resamples:
                        raise
                    step = _no_answer(guard, error.failure)
                    again = await self._step(step, guard.report, [])
                if not again:
                    return
                order = [upstream]  # the others have not seen this prompt: theirs would be a whole prefill
        finally:
            self._metrics.finished(guard.report)

    async def _answer(self, guard: StreamGuard | AnswerGuard, upstream: Upstream, answer: Answer) -> bool:
        """Serve one attempt's answer; whether another attempt is wanted."""
        self._entry.upstream = upstream.url
        headers = response_headers(answer.raw_headers, _NOT_PASSED_BACK)
        if answer.status != 200:
            if guard.report.resamples:
                failure = Failure("upstream_error", f"the upstream answered with status {answer.status}")
                return await self._step(_no_answer(guard, failure), guard.report, headers)
            await respond(self._send, answer.status, await self._whole_body(answer), headers)
            return False
        if isinstance(guard, StreamGuard):
            if answer.content_type == "text/event-stream":
                return await self._stream(guard, answer, headers)
            return await self._answered_whole(guard, answer, headers)
        try:
            step = guard.take(await self._whole_body(answer))
        except (aiohttp.ClientError, SilentError) as error:
            failure = Failure("upstream_cut", f"the upstream broke off: {error or type(error).__name__}")
            if not guard.report.resamples:
                raise UnreachableError(failure) from None
            step = _no_answer(guard, failure)
        return await self._step(step, guard.report, headers)

    async def _answered_whole(self, guard: StreamGuard, answer: Answer, headers: list[tuple[bytes, bytes]]) -> bool:
        """An upstream that answers a request for a stream in one piece: an error with status 200, most likely."""
        body = await self._whole_body(answer)
        if guard.report.resamples:
            failure = Failure("upstream_malformed", "the upstream did not stream its answer")
            return await self._step(_no_answer(guard, failure), guard.report, headers)
        whole = AnswerGuard(replace(self._request, n=2), self._settings.policy)  # several choices: no resamples
        step = whole.take(body)
        self._entry.report = guard.report = whole.report
        await self._step(step, whole.report, headers)
        return False

    async def _stream(self, guard: StreamGuard, answer: Answer, headers: list[tuple[bytes, bytes]]) -> bool:
        broken: str | None = None
        first = True
        async with self._gateway.watching(answer, self._send) as watch:
            await self._start(200, headers)
            watch.comment_allowed = True
            held_before = 0
            try:
                while not guard.over:
                    data = await watch.read()
                    if not data:
                        break
                    began = time.perf_counter() if first else 0.0
                    out = guard.feed(data)
                    if out:
                        await self._send_on(out, watch, last=guard.over)
                    if first:
                        first = False
                        self._note_first(time.perf_counter() - began, guard.report)
                    held_before = self._note_held(guard.held_bytes, held_before)
            except (aiohttp.ClientError, SilentError, ConnectionError) as error:
                broken = f"the upstream broke off: {error or type(error).__name__}"
            finally:
                self._note_held(0, held_before)
        step = guard.end(broken)
        if step.data:
            await self._send({"type": "http.response.body", "body": step.data, "more_body": True})
        if not step.again and not self._all_sent:
            await self._send({"type": "http.response.body", "body": b""})
        if broken is None and guard.report.error is None:
            await _read_out(answer)
        return step.again

    async def _send_on(self, out: bytes, watch: Watch, last: bool) -> None:
        self._all_sent = last
        await self._send({"type": "http.response.body", "body": out, "more_body": not last})
        watch.last_out = watch.last_in

    def _note_first(self, seconds: float, report: Report) -> None:
        if report.resamples == 0:
            self._metrics.observe(self._metrics.added, self._added_s + seconds)
            self._metrics.observe(self._metrics.first_byte, time.perf_counter() - self._entry.began)

    def _note_held(self, now: int, before: int) -> int:
        if now != before:
            self._metrics.held_bytes.inc(now - before)
        return now

    async def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        if not self._head_sent:
            self._head_sent = True
            await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def _step(self, step: Step, report: Report, headers: list[tuple[bytes, bytes]]) -> bool:
        """Carry out a step of an answer that is whole, or of a stream whose next attempt came to nothing."""
        if step.again:
            return True
        if self._head_sent:
            await self._send({"type": "http.response.body", "body": step.data, "more_body": True})
            await self._send({"type": "http.response.body", "body": b""})
            return False
        if report.verdict is not None:
            headers = [*headers, (FLAG_HEADER, report.verdict.encode())]
        if report.error is not None:
            # The openai SDK would ask again by itself, and each time the guard would have tried its own attempts.
            headers = [(name, value) for name, value in headers if name != b"content-type"]
            headers.append((b"x-should-retry", b"false"))
            self._entry.error = report.error
        await respond(self._send, step.status, step.data, headers)
        return False

    async def _whole_body(self, answer: Answer) -> bytes:
        """The answer's body, watched for silence.

        Raises:
            UnreachableError: it passes the limit.
        """
        parts: list[bytes] = []
        total = 0
        async with self._gateway.watching(answer, self._send) as watch:
            while data := await watch.read():
                parts.append(data)
                total += len(data)
                if total > self._settings.max_answer_bytes:
                    limit = f"{self._settings.max_answer_bytes:,} bytes"
                    raise UnreachableError(Failure("answer_too_large", f"the upstream's answer passes {limit}"))
        return b"".join(parts)


async def _read_out(answer: Answer) -> None:
    """Read what follows the last event: only a connection whose answer is read to its end can be used again."""
    if answer.content.at_eof():
        return
    try:
        async with asyncio.timeout(_READ_OUT_S):
            while await answer.content.readany():
                pass
    except (aiohttp.ClientError, TimeoutError):
        pass


def _no_answer(guard: StreamGuard | AnswerGuard, failure: Failure) -> Step:
    """A later attempt that gave no answer."""
    return guard.failed() if isinstance(guard, AnswerGuard) else guard.end(failure.message)
