"""HTTP to the endpoint under check: whole answers, streams, streams that are left early, raw requests.

An answer with a 4xx or 5xx status raises `Refused`; a lost connection or a silence raises `Lost`. Both say what was
sent, so a check that does not expect them needs no code for them: the runner turns them into a result.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from k3stack.errors import UsageError
from k3stack.files import json_value
from k3stack.verify.answer import Answer, shorten
from k3stack.verify.reading import StreamReader, read_answer
from k3stack.verify.report import Exchange, Target

__all__ = ["TOO_MANY", "Endpoint", "Lost", "Refused", "Reply"]

CHAT = "/v1/chat/completions"
TOO_MANY = 429
# Being told to wait is no fault of an endpoint that limits its clients; being told so five times is.
_WAITS_S = (1.0, 3.0, 6.0, 12.0)
# vLLM and SGLang close a connection that was idle for 5 s; a request that meets the close is lost.
_KEPT_S = 2.0


@dataclass(frozen=True, slots=True)
class Reply:
    """A bare HTTP answer."""

    status: int
    text: str
    seconds: float
    kind: str = ""

    def json(self) -> Any:
        """The body as JSON, or None where it is none."""
        try:
            return json_value(self.text)
        except ValueError:
            return None


class Refused(Exception):  # noqa: N818  (it is an answer, not a failure of ours)
    """The endpoint answered with an error status."""

    def __init__(self, sent: str, reply: Reply) -> None:
        super().__init__(f"HTTP {reply.status}: {shorten(reply.text, 300)}")
        self.status = reply.status
        self.text = reply.text
        self.exchange = Exchange(shorten(sent), shorten(f"HTTP {reply.status}\n{reply.text}"))


class Lost(Exception):  # noqa: N818
    """No answer: the connection was refused or cut, or nothing came for too long."""

    def __init__(self, sent: str, what: str, silent: bool) -> None:
        super().__init__(what)
        self.silent = silent
        self.exchange = Exchange(shorten(sent), what)


class Endpoint:
    """The endpoint, over one pool of connections. Use as `async with Endpoint(target) as endpoint`.

    Attributes:
        seen: every answer of a chat request so far, for the checks that look at all of them.
        answers, prompt_tokens, completion_tokens: what was asked of it; waits: how often it said HTTP 429.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self.seen: list[Answer] = []
        self.answers = self.prompt_tokens = self.completion_tokens = self.waits = 0
        self._headers, self._trusted = _headers(target), httpx.create_ssl_context()
        self._http = self._client()
        self._requests: Counter[httpx.AsyncClient] = Counter()

    def _client(self) -> httpx.AsyncClient:
        timeout = httpx.Timeout(self.target.silence_s, connect=self.target.connect_s, pool=None)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=_KEPT_S)
        return httpx.AsyncClient(
            base_url=self.target.base, timeout=timeout, limits=limits, headers=self._headers, follow_redirects=False,
            verify=self._trusted,
        )  # fmt: skip

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[httpx.AsyncClient]:
        """The client for one request; one that was left is closed with the last request that it has."""
        client = self._http
        self._requests[client] += 1
        try:
            yield client
        finally:
            self._requests[client] -= 1
            if not self._requests[client]:
                del self._requests[client]
                if client is not self._http:
                    await client.aclose()

    def _look_at(self, status: int, client: httpx.AsyncClient) -> None:
        """Use no connection again after a server's error.

        uvicorn, before vLLM and SGLang, closes a connection unsaid when the application raises after its answer: the
        next request on it would be lost, and the check that sent it blamed.
        """
        if status >= 500 and client is self._http:
            self._http = self._client()

    async def __aenter__(self) -> Endpoint:
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in {self._http, *self._requests}:
            await client.aclose()

    def forget(self, keep: int) -> None:
        """Drop all but the latest answers from `seen`: a soak makes more than memory should hold."""
        if len(self.seen) > 2 * keep:
            del self.seen[:-keep]

    async def get(self, path: str, silence_s: float = 15.0) -> Reply:
        """GET a path, whatever the status."""
        return await self._send("GET", path, None, min(silence_s, self.target.silence_s))

    async def post(
        self, path: str, content: bytes, silence_s: float | None = None, authorization: str | None = None
    ) -> Reply:
        """POST bytes as JSON, whatever the status; they need not be JSON.

        Args:
            authorization: sent in place of the key's header; empty for none.
        """
        return await self._send("POST", path, content, silence_s or self.target.silence_s, authorization)

    async def chat(self, body: dict[str, Any]) -> Answer:
        """A whole answer.

        Raises:
            Refused: an error status.
            Lost: no answer.
        """
        content = json.dumps(body, ensure_ascii=False).encode()
        for wait_s in (*_WAITS_S, None):
            reply = await self._send("POST", CHAT, content, self.target.silence_s)
            if reply.status != TOO_MANY or wait_s is None:
                break
            await self._wait(wait_s)
        if reply.status != 200:
            raise Refused(content.decode(), reply)
        return self._keep(read_answer(body, reply.text, reply.seconds, reply.kind))

    async def stream(self, body: dict[str, Any], leave_after: int | None = None) -> Answer:
        """A streamed answer, put together.

        Args:
            leave_after: close the connection once this many events have come.

        Raises:
            Refused: an error status.
            Lost: no answer, or cut in the middle.
        """
        body = {**body, "stream": True, "stream_options": {"include_usage": True}}
        for wait_s in _WAITS_S:
            try:
                return await self._stream(body, leave_after)
            except Refused as error:
                if error.status != TOO_MANY:
                    raise
                await self._wait(wait_s)
        return await self._stream(body, leave_after)

    async def _stream(self, body: dict[str, Any], leave_after: int | None) -> Answer:
        reader = StreamReader(body)
        async with self.open(body) as response:
            ended = True
            reader.kind(response.headers.get("Content-Type", ""))
            async for line in _lines(response):
                reader.line(line)
                if leave_after is not None and reader.events >= leave_after:
                    ended = False
                    break
        return self._keep(reader.finish(True)) if ended else reader.finish(False)

    def _keep(self, answer: Answer) -> Answer:
        self.seen.append(answer)
        self.answers += 1
        if answer.usage:
            self.prompt_tokens += answer.usage.prompt
            self.completion_tokens += answer.usage.completion
        return answer

    async def _wait(self, seconds: float) -> None:
        """Wait because the endpoint said that there is too much to do, and remember that it did."""
        self.waits += 1
        await asyncio.sleep(seconds)

    @property
    def work(self) -> str:
        """What was asked of the endpoint so far, for people; abandoned streams are not counted."""
        waited = f"; told {self.waits} times to wait (HTTP 429)" if self.waits else ""
        return (
            f"{self.answers:,} answers, {self.prompt_tokens:,} prompt tokens and {self.completion_tokens:,} generated "
            f"tokens by usage{waited}"
        )

    @asynccontextmanager
    async def open(self, body: dict[str, Any]) -> AsyncIterator[httpx.Response]:
        """The bare response of a streamed request, to read at one's own pace.

        Raises:
            Refused: the endpoint answers with an error status.
            Lost: the connection broke, or nothing came.
        """
        sent = json.dumps(body, ensure_ascii=False)
        headers = {"Content-Type": "application/json"}
        started = time.perf_counter()
        try:
            async with (
                self._connected() as client,
                client.stream("POST", CHAT, content=sent.encode(), headers=headers) as response,
            ):
                self._look_at(response.status_code, client)
                if response.status_code != 200:
                    text = (await response.aread()).decode(errors="replace")
                    raise Refused(sent, Reply(response.status_code, text, time.perf_counter() - started))
                yield response
        except httpx.HTTPError as error:
            raise self._lost(sent, error) from error

    async def _send(
        self, method: str, path: str, content: bytes | None, silence_s: float, authorization: str | None = None
    ) -> Reply:
        headers = {} if content is None else {"Content-Type": "application/json"}
        if authorization is not None:
            headers["Authorization"] = authorization
        timeout = httpx.Timeout(silence_s, connect=self.target.connect_s, pool=None)
        started = time.perf_counter()
        try:
            async with self._connected() as client:
                response = await client.request(method, path, content=content, headers=headers, timeout=timeout)
                self._look_at(response.status_code, client)
        except httpx.HTTPError as error:
            sent = f"{method} {path}" if content is None else content.decode(errors="replace")
            raise self._lost(sent, error, silence_s) from error
        kind = response.headers.get("Content-Type", "")
        return Reply(response.status_code, response.text, time.perf_counter() - started, kind)

    def _lost(self, sent: str, error: httpx.HTTPError, silence_s: float | None = None) -> Lost:
        if isinstance(error, httpx.ConnectTimeout):
            return Lost(sent, f"no connection within {self.target.connect_s:g} s", silent=True)
        if isinstance(error, httpx.TimeoutException):
            return Lost(sent, f"no byte for {silence_s or self.target.silence_s:g} s", silent=True)
        if isinstance(error, httpx.ConnectError):
            return Lost(sent, f"no connection: {error}", silent=False)
        return Lost(sent, f"connection lost: {error or type(error).__name__}", silent=False)


async def _lines(response: httpx.Response) -> AsyncIterator[str]:
    """Lines as events define them: only CR and LF end one. httpx's own splitter also cuts at U+2028 and others."""
    rest = ""
    async for text in response.aiter_text():
        rest += text
        *lines, rest = rest.replace("\r\n", "\n").split("\n")
        for line in lines:
            yield line
        await asyncio.sleep(0)
    if rest:
        yield rest


def _headers(target: Target) -> dict[str, str]:
    if target.key_variable is None:
        return {}
    key = os.environ.get(target.key_variable)
    if not key:
        raise UsageError(
            "is not set in the environment",
            where=target.key_variable,
            hint=f"Put the API key there: export {target.key_variable}=...",
        )
    return {"Authorization": f"Bearer {key}"}
