"""A streamed answer: headers with the first event, an error event if it breaks, `[DONE]` at the end."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from k3stack.guard.http import Send
from k3stack.guard.sse import DONE, event
from k3stack.reference.server.generation import EngineFailedError

__all__ = ["Stream"]

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class Stream:
    """Sends server-sent events."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._begun = False

    async def send(self, data: bytes) -> None:
        """Send whole events."""
        if not self._begun:
            self._begun = True
            await self._send({"type": "http.response.start", "status": 200, "headers": list(_HEADERS)})
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    @asynccontextmanager
    async def over(self, news: AsyncIterator[Any]) -> AsyncGenerator[AsyncIterator[Any]]:
        """Stream news to their end. A failure behind the first event becomes an event, as the status is out.

        Raises:
            EngineFailedError: before the first event.
        """
        try:
            yield news
        except EngineFailedError as error:
            if not self._begun:
                raise
            body = {"message": str(error), "type": "server_error", "param": None, "code": "engine_failed"}
            await self.send(event({"error": body}))
        finally:
            close = getattr(news, "aclose", None)
            if close is not None:
                await close()
        await self._send({"type": "http.response.body", "body": DONE, "more_body": False})
