"""An upstream that misbehaves on purpose, and `k3 guard` in front of it, both as real servers.

A request's `model` names the script: `good`, or what goes wrong. Scripts give one answer for each attempt; the
attempts of one client request carry the same x-request-id.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web

from k3stack.ports import free_port
from tests.guard.answers import PARIS, Answer, call

GOOD = Answer("thinking", "let me look", [call()])
LEAK = (
    'why<|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|><|open|>argument key="city" '
    'type="string"<|sep|>Paris<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>'
)

RAW = (
    "why<|close|>think<|sep|><|open|>response<|sep|>ok<|close|>response<|sep|><|open|>tools<|sep|>"
    '<|open|>call tool="get_weather" index="1"<|sep|><|open|>argument key="city" type="string"<|sep|>Paris'
    "<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>"
)

SCRIPTS: dict[str, list[Answer]] = {
    "good": [GOOD],
    "text": [Answer("thinking", "It is sunny in Paris.")],
    "two_calls": [Answer("thinking", "let me look", [call(), call('{"city": "Rome"}')])],
    "same_ids": [Answer("thinking", None, [call(PARIS, "get_weather", "x:0"), call("{}", "noop", "x:0")])],
    "bad_schema": [Answer("thinking", None, [call('{"days": 3}')]), GOOD],
    "not_json": [Answer("thinking", None, [call('{"city": NaN}')]), GOOD],
    "half_json": [Answer("thinking", None, [call('{"city": "Pa')]), GOOD],
    "undeclared": [Answer("thinking", None, [call(PARIS, "rm_rf")]), GOOD],
    "coerce": [Answer("thinking", None, [call('{"city": "Paris", "days": "3"}')])],
    "leaked": [Answer(LEAK, None)],
    "length": [Answer("thinking", None, [call(), call('{"city": "Pa')], reason="length")],
    "raw": [Answer(None, RAW)],
    "always_bad": [Answer("thinking", None, [call('{"days": 3}')])] * 3,
    "always_nan": [Answer("thinking", None, [call('{"city": NaN}')])] * 3,
}


SOAK_FAULTS = ("bad_schema", "not_json", "half_json", "undeclared", "500", "cut", "malformed", "always_nan")


class ScriptedUpstream:
    """The upstream, in a thread of its own. What it saw is in its counters."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self.attempts: Counter[str] = Counter()
        self.headers: dict[str, str] = {}
        self.last_body = b""
        self.cancelled = threading.Event()
        self.port = free_port()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> ScriptedUpstream:
        self._thread.start()
        wait_for(self.port)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        app = web.Application(client_max_size=2**30)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_route("*", "/{path:.*}", self._other)
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
        self._loop.run_until_complete(runner.setup())
        site = web.TCPSite(runner, "127.0.0.1", self.port, backlog=1024)
        self._loop.run_until_complete(site.start())
        self._loop.run_forever()
        self._loop.run_until_complete(runner.cleanup())
        self._loop.close()

    async def _other(self, request: web.Request) -> web.StreamResponse:
        self.seen[request.path] += 1
        if request.path == "/v1/models":
            return web.json_response({"object": "list", "data": [{"id": "k3", "object": "model"}]})
        if request.path == "/health":
            return web.Response()
        if request.path == "/v1/completions":
            body = await request.read()
            return web.json_response({"id": "1", "object": "text_completion", "choices": [], "echo": len(body)})
        return web.Response(status=418, text=f"{request.method} {request.path_qs}", headers={"x-from": "upstream"})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        self.last_body = await request.read()
        self.headers = {name.title(): value for name, value in request.headers.items()}
        body = json.loads(self.last_body)
        key = request.headers.get("x-request-id", "")
        attempt = self.attempts[key]
        self.attempts[key] += 1
        script = body["model"]
        self.seen[script] += 1
        try:
            return await self._play(request, script, attempt, body.get("stream") is True)
        except (asyncio.CancelledError, ConnectionResetError):
            self.cancelled.set()
            raise

    async def _play(self, request: web.Request, script: str, attempt: int, stream: bool) -> web.StreamResponse:
        if script in SCRIPTS:
            answers = SCRIPTS[script]
            answer = answers[min(attempt, len(answers) - 1)]
            if stream:
                return await self._send(request, list(answer.chunks(4, 3)))
            return web.Response(body=answer.whole(), content_type="application/json")
        if script.startswith("soak:"):
            return await self._soak(request, script[5:], attempt, stream)
        if script == "500":
            return web.json_response({"error": {"message": "engine died", "type": "x", "code": 500}}, status=500)
        if script == "html":
            return web.Response(text="<html>no</html>", content_type="text/html")
        if script == "hang":
            await asyncio.sleep(60)
        if script == "bad_then_500":
            if attempt:
                return web.json_response({"error": {"message": "engine died"}}, status=500)
            return await self._play(request, "bad_schema", 0, stream)
        if not stream:
            return await self._whole_fault(request, script)
        return await self._stream_fault(request, script)

    async def _soak(self, request: web.Request, nonce: str, attempt: int, stream: bool) -> web.StreamResponse:
        """One request in twenty goes wrong; every good answer carries the request's own number."""
        number = int(nonce)
        good = Answer(f"thinking {nonce}", f"looking {nonce}", [call(json.dumps({"city": nonce}))])
        fault = SOAK_FAULTS[number // 20 % len(SOAK_FAULTS)] if number % 20 == 7 else "none"
        if fault in ("500", "cut", "malformed", "always_nan"):
            return await self._play(request, fault, attempt, stream)
        if fault != "none" and attempt == 0:
            return await self._play(request, fault, 0, stream)
        if stream:
            return await self._send(request, [b"".join(good.chunks())])
        return web.Response(body=good.whole(), content_type="application/json")

    async def _whole_fault(self, request: web.Request, script: str) -> web.StreamResponse:
        whole = GOOD.whole()
        if script == "malformed":
            return web.Response(body=whole[:-20], content_type="application/json")
        if script == "slow":
            await asyncio.sleep(0.5)
            return web.Response(body=whole, content_type="application/json")
        response = web.StreamResponse(headers={"content-type": "application/json"})
        response.content_length = len(whole)
        await response.prepare(request)
        await response.write(whole[:40])
        return self._cut(request, response)

    async def _stream_fault(self, request: web.Request, script: str) -> web.StreamResponse:
        *chunks, finish, done = GOOD.chunks(4, 3)
        if script == "slow":
            return await self._send(request, [*chunks, finish, done], pause_s=0.05)
        if script == "endless":
            return await self._send(request, chunks[:4] * 5000, pause_s=0.01)
        if script == "malformed":
            return await self._send(request, [*chunks, b'data: {"choices": [{]}\n\n', finish, done])
        if script == "silent":
            return await self._send(request, chunks[:4], then_s=60)
        if script == "flood":
            big = list(Answer(None, "x" * 65536).chunks(65536))[1]
            return await self._send(request, [big] * 2000)
        if script == "no_done":
            return await self._send(request, [*chunks, finish])
        if script == "no_finish":
            return await self._send(request, chunks)
        response = await self._send(request, [*chunks, finish[:30]], end=False)
        return self._cut(request, response)

    async def _send(
        self, request: web.Request, chunks: list[bytes], pause_s: float = 0, then_s: float = 0, end: bool = True
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        for chunk in chunks:
            await response.write(chunk)
            self.seen["chunks"] += 1
            if pause_s:
                await asyncio.sleep(pause_s)
        if then_s:
            await asyncio.sleep(then_s)
        if end:
            await response.write_eof()
        return response

    def _cut(self, request: web.Request, response: web.StreamResponse) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.close()
        return response


def wait_for(port: int, child: subprocess.Popen[bytes] | None = None, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 0.2).close()
            return
        except OSError:
            if child is not None and child.poll() is not None:
                raise RuntimeError(f"it ended with {child.returncode}") from None
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


class Guard:
    """A running `k3 guard`."""

    def __init__(self, port: int, child: subprocess.Popen[bytes], log: Any) -> None:
        self.port = port
        self.child = child
        self._log = log

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def log_lines(self) -> list[dict[str, Any]]:
        # The child writes through the same open file: reading must not move its place.
        text = os.pread(self._log.fileno(), 2**24, 0)
        return [json.loads(line) for line in text.splitlines() if line.startswith(b"{")]

    def output(self) -> str:
        """Everything it printed so far."""
        return os.pread(self._log.fileno(), 2**24, 0).decode()

    def metric(self, name: str) -> float:
        """A metric's value, over all labels that are not named."""
        import httpx

        text = httpx.get(self.url + "/metrics").text
        return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(name))


@contextmanager
def running_guard(upstreams: list[int], log: Any, *options: str) -> Iterator[Guard]:
    """`k3 guard` as its own process, its log going to the file `log`."""
    port = free_port()
    command = [sys.executable, "-c", "from k3stack.cli.main import main; main()", "guard", "--port", str(port)]
    for each in upstreams:
        command += ["--upstream", f"http://127.0.0.1:{each}"]
    child = subprocess.Popen([*command, *options], stdout=log, stderr=log, env=os.environ)
    try:
        wait_for(port, child)
        yield Guard(port, child, log)
    finally:
        child.terminate()
        try:
            child.wait(15)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
