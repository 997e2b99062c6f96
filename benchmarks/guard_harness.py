"""What the guard's benchmarks share: a scripted upstream, a load client, a bare proxy to compare with.

Each part runs as its own process: `python -m benchmarks.guard_harness upstream|bare PORT ...`. The upstream and
the client are written on plain asyncio protocols, so that what is measured is what stands between them.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

REPOSITORY = Path(__file__).parents[1]


def chat_chunk(delta: dict[str, Any], reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
    head = {"id": "chatcmpl-0123456789abcdef", "object": "chat.completion.chunk", "created": 1700000000}
    return b"data: " + json.dumps({**head, "model": "kimi-k3", "choices": [choice]}).encode() + b"\n\n"


def answer_chunks(tokens: int, with_call: bool) -> list[bytes]:
    """A role, half of the tokens as reasoning, half as content, perhaps a call, the finish."""
    chunks = [chat_chunk({"role": "assistant", "content": ""})]
    chunks += [chat_chunk({"reasoning": f" word{number}"}) for number in range(tokens // 2)]
    chunks += [chat_chunk({"content": f" word{number}"}) for number in range(tokens - tokens // 2)]
    if with_call:
        function = {"name": "get_weather", "arguments": '{"city": "Paris", "days": 3}'}
        call = {"index": 0, "id": "chatcmpl-tool-0123456789abcdef", "type": "function", "function": function}
        chunks.append(chat_chunk({"tool_calls": [call]}))
    return [*chunks, chat_chunk({}, "tool_calls" if with_call else "stop"), b"data: [DONE]\n\n"]


class Upstream(asyncio.Protocol):
    """Answers every POST with a stream. The path's query says how: tokens, milliseconds between them, a call."""

    cache: dict[tuple[int, bool], list[bytes]] = {}  # noqa: RUF012

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.received = bytearray()
        self.wanted = -1

    def data_received(self, data: bytes) -> None:
        self.received += data
        if self.wanted < 0:
            end = self.received.find(b"\r\n\r\n")
            if end < 0:
                return
            self.head = bytes(self.received[:end])
            length = 0
            for line in self.head.split(b"\r\n")[1:]:
                name, _, value = line.partition(b":")
                if name.lower() == b"content-length":
                    length = int(value)
            self.wanted = end + 4 + length
        if len(self.received) >= self.wanted:
            body = bytes(self.received[self.head.__len__() + 4 : self.wanted])
            del self.received[: self.wanted]
            self.wanted = -1
            asyncio.get_running_loop().create_task(self.answer(body))

    async def answer(self, body: bytes) -> None:
        tokens, pause_ms, call = 64, 0.0, True
        script = re.search(rb'"script": ?\[([^]]*)\]', body)
        if script:
            tokens, pause_ms, call = json.loads(b"[" + script[1] + b"]")
        key = (int(tokens), bool(call))
        if key not in self.cache:
            self.cache[key] = [b"%x\r\n%b\r\n" % (len(each), each) for each in answer_chunks(*key)]
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        self.transport.write(head)
        for number, chunk in enumerate(self.cache[key]):
            self.transport.write(chunk)
            if pause_ms:
                await asyncio.sleep(pause_ms / 1000)
            elif number % 4 == 3:  # an engine steps: what several requests produce together goes out together
                await asyncio.sleep(0)
        self.transport.write(b"0\r\n\r\n")


@dataclass
class Taken:
    """One request as the client saw it: seconds to the first text and to the end, and events received."""

    first_s: float
    total_s: float
    events: int


class Load(asyncio.Protocol):
    """A keep-alive HTTP/1.1 client that only looks for what it measures."""

    def __init__(self) -> None:
        self.done: asyncio.Future[Taken] | None = None
        self.received = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        if self.done is not None and not self.done.done():
            self.done.set_exception(ConnectionError("the connection closed in an answer"))

    def ask(self, request: bytes) -> asyncio.Future[Taken]:
        self.received.clear()
        self.first = 0.0
        self.done = asyncio.get_running_loop().create_future()
        self.began = time.perf_counter()
        self.transport.write(request)
        return self.done

    def data_received(self, data: bytes) -> None:
        self.received += data
        if not self.first and (b"word" in data or b"arguments" in data):
            self.first = time.perf_counter() - self.began
        if self.done is None or self.done.done():
            return
        if not self.received.startswith(b"HTTP/1.1 200"):
            self.done.set_exception(RuntimeError(bytes(self.received[:500]).decode()))
        elif self.received.endswith(b"0\r\n\r\n") and b"[DONE]" in self.received[-200:]:
            total = time.perf_counter() - self.began
            self.done.set_result(Taken(self.first, total, self.received.count(b"data: ")))


def request_bytes(port: int, tokens: int, pause_ms: float, with_call: bool, filler_bytes: int = 0) -> bytes:
    tool = {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["city"],
            },
        },
    }
    filler = "The quick brown fox jumps over the lazy dog. " * (filler_bytes // 45)
    body = {
        "script": [tokens, pause_ms, int(with_call)],
        "model": "kimi-k3",
        "stream": True,
        "messages": [
            {"role": "system", "content": "You are helpful."},
            {"role": "user", "content": filler or "Hi"},
        ],
        "tools": [tool],
    }
    data = json.dumps(body).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n"
        f"authorization: Bearer sk-benchmark\r\ncontent-length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


async def load(port: int, request: bytes, count: int, concurrency: int) -> tuple[list[Taken], float]:
    """`count` requests over `concurrency` connections; the requests and the seconds they took together."""
    loop = asyncio.get_running_loop()
    taken: list[Taken] = []
    left = count

    async def worker() -> None:
        nonlocal left
        _, client = await loop.create_connection(Load, "127.0.0.1", port)
        while left > 0:
            left -= 1
            taken.append(await asyncio.wait_for(client.ask(request), 60))
        client.transport.close()

    began = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(concurrency)))
    return taken, time.perf_counter() - began


def run_load(port: int, request: bytes, count: int, concurrency: int) -> tuple[list[Taken], float]:
    import uvloop

    return uvloop.run(load(port, request, count, concurrency))


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def median(values: list[float]) -> float:
    return statistics.median(values)


def free_port() -> int:
    with socket.socket() as each:
        each.bind(("127.0.0.1", 0))
        return int(each.getsockname()[1])


def tree_cpu_seconds(pid: int) -> float:
    """User and system time of a process, its threads and its children so far."""
    total, ticks = 0, os.sysconf("SC_CLK_TCK")
    for path in Path("/proc").iterdir():
        if not path.name.isdigit():
            continue
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(path.name) == pid or int(fields[1]) == pid:
            total += int(fields[11]) + int(fields[12])
    return total / ticks


@contextmanager
def process(command: list[str], port: int, environment: dict[str, str] | None = None) -> Iterator[int]:
    """Run a server until the block ends; yields its process id once the port answers."""
    # A file and not a pipe: a pipe that nobody reads stops a server that logs.
    errors = tempfile.TemporaryFile()  # noqa: SIM115
    child = subprocess.Popen(
        command,
        cwd=REPOSITORY,
        env={**os.environ, **(environment or {})},
        stdout=subprocess.DEVNULL,
        stderr=errors,
    )
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 0.2).close()
                break
            except OSError:
                if child.poll() is not None or time.monotonic() > deadline:
                    child.kill()
                    errors.seek(0)
                    raise RuntimeError(errors.read().decode()[-2000:]) from None
                time.sleep(0.1)
        yield child.pid
    finally:
        child.terminate()
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        errors.close()


def part(name: str, port: int, *arguments: object) -> list[str]:
    return [sys.executable, "-m", "benchmarks.guard_harness", name, str(port), *map(str, arguments)]


class AiohttpBare:
    """The least a proxy can do on aiohttp: body in, stream out, nothing looked at."""

    def __init__(self, upstream: str) -> None:
        self.upstream = upstream
        self.session: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        import aiohttp

        if scope["type"] != "http":
            return
        if self.session is None:
            connector = aiohttp.TCPConnector(limit=0)
            self.session = aiohttp.ClientSession(
                connector=connector, auto_decompress=False, timeout=aiohttp.ClientTimeout(total=None)
            )
        body = await read_body(receive)
        headers = {"content-type": "application/json"}
        async with self.session.post(self.upstream + scope["path"], data=body, headers=headers) as answer:
            kind = answer.headers.get("content-type", "").encode()
            start = {"type": "http.response.start", "status": answer.status, "headers": [(b"content-type", kind)]}
            await send(start)
            async for data in answer.content.iter_any():
                await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


class HttpxBare(AiohttpBare):
    """The same on httpx."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        import httpx

        if scope["type"] != "http":
            return
        if self.session is None:
            self.session = httpx.AsyncClient(timeout=None, limits=httpx.Limits(max_connections=None))
        body = await read_body(receive)
        headers = {"content-type": "application/json"}
        async with self.session.stream("POST", self.upstream + scope["path"], content=body, headers=headers) as answer:
            kind = answer.headers.get("content-type", "").encode()
            start = {
                "type": "http.response.start",
                "status": answer.status_code,
                "headers": [(b"content-type", kind)],
            }
            await send(start)
            async for data in answer.aiter_raw():
                await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def read_body(receive: Any) -> bytes:
    parts = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


def serve_upstream(port: int) -> None:
    import uvloop

    async def main() -> None:
        server = await asyncio.get_running_loop().create_server(Upstream, "127.0.0.1", port)
        await server.serve_forever()

    uvloop.run(main())


# Granian imports its application by name.
application = AiohttpBare(os.environ.get("BARE_UPSTREAM", ""))
if os.environ.get("BARE_CLIENT") == "httpx":
    application = HttpxBare(os.environ["BARE_UPSTREAM"])


def serve_bare(port: int, server: str) -> None:
    if server == "granian":
        from granian import Granian
        from granian.constants import Interfaces, Loops

        Granian(
            "benchmarks.guard_harness:application",
            address="127.0.0.1",
            port=port,
            interface=Interfaces.ASGINL,
            loop=Loops.uvloop,
            log_enabled=False,
        ).serve()
        return
    import uvicorn

    uvicorn.run(application, host="127.0.0.1", port=port, log_level="error", access_log=False, lifespan="off",
                loop="uvloop", http="httptools")  # fmt: skip


if __name__ == "__main__":
    if sys.argv[1] == "upstream":
        serve_upstream(int(sys.argv[2]))
    else:
        serve_bare(int(sys.argv[2]), sys.argv[3])
