"""Asking upstreams: connections, failing over before the first byte, watching for silence."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import aiohttp
from yarl import URL

from k3stack.guard.attempts import Failure
from k3stack.guard.http import body_chunks
from k3stack.guard.metrics import Metrics
from k3stack.guard.settings import Settings
from k3stack.guard.sse import KEEP_ALIVE
from k3stack.guard.upstreams import Pool, Upstream

__all__ = ["Gateway", "SilentError", "UnreachableError", "Watch"]

Answer = aiohttp.ClientResponse
_NOT_OURS = frozenset({"User-Agent", "Content-Type", "Accept", "Accept-Encoding"})

_KEPT_S = 3.0
"""How long an idle connection to an upstream is kept: vLLM and SGLang close theirs after 5 s."""


class SilentError(Exception):
    """The upstream sent nothing for longer than allowed."""


class UnreachableError(Exception):
    """No upstream could be asked; `failure` is what the client is told."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Watch:
    """One answer being read: when bytes last came and went.

    Args:
        answer: the upstream's response.
        send_comment: sends a keep-alive to the client; None where comments have no place.
        now: the loop's time.
    """

    def __init__(self, answer: Answer, now: float) -> None:
        self.answer = answer
        self.comments: asyncio.Task[None] | None = None
        self.comment_allowed = False
        self.waiting = False
        self.began = False
        self.last_in = now
        self.last_out = now

    async def read(self) -> bytes:
        """The next bytes of the answer; b"" at its end.

        Raises:
            SilentError: none came for too long.
            aiohttp.ClientError: the connection broke.
        """
        content = self.answer.content
        self.waiting = True
        try:
            data = await content.readany()
        finally:
            self.waiting = False
        if self.comments is not None:
            await self.comments
            self.comments = None
        self.began = True
        self.last_in = asyncio.get_running_loop().time()
        return data


class Gateway:
    """The proxy's client side.

    Args:
        settings: of the proxy.
        metrics: to count failed connections in.
    """

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self.settings = settings
        self.pool = Pool(settings.upstreams, settings.balance)
        self._metrics = metrics
        self._session: aiohttp.ClientSession | None = None
        self._watches: dict[Watch, object] = {}
        self._pulse: asyncio.Task[None] | None = None
        for each in self.pool.upstreams:
            metrics.watch_upstream(each.url, lambda each=each: self.pool.is_up(each))  # type: ignore[misc]

    async def close(self) -> None:
        """Close all connections."""
        if self._pulse is not None:
            self._pulse.cancel()
        if self._session is not None:
            await self._session.close()

    @asynccontextmanager
    async def ask(
        self,
        order: Iterable[Upstream],
        method: str,
        path: str,
        headers: list[tuple[str, str]],
        body: bytes,
        *,
        repeatable: bool,
        decompress: bool = True,
    ) -> AsyncIterator[tuple[Upstream, Answer]]:
        """Send a request to the first of `order` that can be reached; the response's head is there, its body not.

        A connection that cannot be made is tried on the next upstream. One that breaks before any answer is, too,
        if the request is `repeatable`: the upstream may have begun to work on it.

        Raises:
            UnreachableError: none could be reached, or no answer began within `first_byte_s`.
        """
        session = self._get_session()
        last = "no upstream"
        # A kept connection may have been closed by the other side a moment ago; one more try tells.
        candidates = list(order)
        for upstream in [*candidates, *candidates[:1]] if repeatable else candidates:
            with upstream.working(len(body)):
                try:
                    asking = session.request(
                        method,
                        URL(upstream.url + path, encoded=True),
                        data=body_chunks(body) if body else None,
                        headers=[*headers, ("content-length", str(len(body)))] if body else headers,
                        allow_redirects=False,
                        auto_decompress=decompress,
                        skip_auto_headers=_NOT_OURS,
                    )
                    if self.settings.first_byte_s is None:
                        answer = await asking
                    else:
                        async with asyncio.timeout(self.settings.first_byte_s):
                            answer = await asking
                except aiohttp.ServerTimeoutError:
                    last = f"no connection within {self.settings.connect_s:g} s"
                    self._count_failure(upstream)
                    continue
                except TimeoutError:
                    message = f"no answer began within {self.settings.first_byte_s:g} s"
                    raise UnreachableError(Failure("upstream_silent", message, 504)) from None
                except aiohttp.ClientConnectorError as error:
                    last = str(error.os_error.strerror or error.os_error)
                    self._count_failure(upstream)
                    continue
                except aiohttp.ClientError as error:
                    last = str(error) or type(error).__name__
                    if not repeatable:
                        break
                    self._count_failure(upstream)
                    continue
                self.pool.answered(upstream)
                try:
                    yield upstream, answer
                finally:
                    # A body read to its end has given its connection back; any other is cut, which tells the
                    # upstream to stop.
                    answer.close()
                return
        raise UnreachableError(Failure("upstream_unreachable", f"no upstream could be reached: {last}"))

    @asynccontextmanager
    async def watching(self, answer: Answer, send: object) -> AsyncIterator[Watch]:
        """Watch an answer for silence while it is read; `send` sends keep-alives once they are allowed."""
        watch = Watch(answer, asyncio.get_running_loop().time())
        self._watches[watch] = send
        if self._pulse is None or self._pulse.done():
            self._pulse = asyncio.get_running_loop().create_task(self._beat())
        try:
            yield watch
        finally:
            del self._watches[watch]
            if watch.comments is not None:
                watch.comments.cancel()

    def _get_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, ttl_dns_cache=30, keepalive_timeout=_KEPT_S),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=self.settings.connect_s),
                cookie_jar=aiohttp.DummyCookieJar(),
                read_bufsize=2**18,
            )
        return self._session

    def _count_failure(self, upstream: Upstream) -> None:
        self.pool.failed(upstream)
        self._metrics.count(self._metrics.connection_errors, upstream.url)

    async def _beat(self) -> None:
        """One timer for all answers: comments where it is quiet, an end where it is silent for too long."""
        loop = asyncio.get_running_loop()
        settings = self.settings
        pause = min(1.0, settings.keep_alive_s / 4, settings.idle_s / 4)
        while self._watches:
            await asyncio.sleep(pause)
            now = loop.time()
            for watch, send in list(self._watches.items()):
                limit = settings.idle_s if watch.began else settings.first_byte_s
                if not watch.waiting:
                    continue
                if limit is not None and now - watch.last_in > limit:
                    watch.answer.content.set_exception(SilentError(f"the upstream was silent for {limit:g} s"))
                elif watch.comment_allowed and watch.comments is None and now - watch.last_out > settings.keep_alive_s:
                    watch.last_out = now
                    watch.comments = loop.create_task(_comment(send))


async def _comment(send: object) -> None:
    await send({"type": "http.response.body", "body": KEEP_ALIVE, "more_body": True})  # type: ignore[operator]
