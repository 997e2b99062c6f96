"""One HTTP request's share of the engine: its choices run together, and end when the client hangs up."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
from collections.abc import AsyncIterator, Sequence

from k3stack.guard.http import Receive
from k3stack.reference.constraint import Constraint
from k3stack.reference.request import Finish, Request, Update
from k3stack.reference.worker import Worker

__all__ = ["EngineFailedError", "Generation", "new_id"]

_START, _NUMBERS = secrets.token_hex(6), itertools.count(1)


class EngineFailedError(Exception):
    """The engine ended a request with an error; a bug, or a request that it cannot hold."""


def new_id(kind: str) -> str:
    """An id for an answer, unique in this process and very probably elsewhere."""
    return f"{kind}-{_START}{next(_NUMBERS):08x}"


class Generation:
    """Requests that run together.

    Args:
        worker: the engine's.
        requests: with ids of their own.
        constraints: what each must look like, or None.
        receive: the connection's; only a hang-up is expected on it.
    """

    def __init__(
        self, worker: Worker, requests: Sequence[Request], constraints: Sequence[Constraint | None], receive: Receive
    ) -> None:
        self._worker = worker
        self._work = list(zip(requests, constraints, strict=True))
        self._receive = receive
        self._running: dict[str, int] = {}

    def stop(self, number: int) -> None:
        """Drop one of the requests: its answer is long enough."""
        for request_id, running in list(self._running.items()):
            if running == number:
                del self._running[request_id]
                self._worker.cancel(request_id)

    async def updates(self) -> AsyncIterator[tuple[int, Update]]:
        """News as (number, update) until all have ended; leaving the loop early drops what still runs.

        Raises:
            ConnectionResetError: the client hung up.
            EngineFailedError: a request ended with an error.
        """
        loop = asyncio.get_running_loop()
        news: asyncio.Queue[Update | None] = asyncio.Queue()

        def deliver(update: Update) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended, nobody listens any more
                loop.call_soon_threadsafe(news.put_nowait, update)

        async def watch() -> None:
            while (await self._receive())["type"] != "http.disconnect":
                pass
            news.put_nowait(None)

        watcher = asyncio.create_task(watch())
        try:
            for number, (request, constraint) in enumerate(self._work):
                self._running[request.id] = number
                self._worker.submit(request, constraint, deliver)
            while self._running:
                update = await news.get()
                if update is None:
                    raise ConnectionResetError
                number_or_none = self._running.get(update.id)
                if number_or_none is None:  # dropped meanwhile
                    continue
                if update.finish is not None:
                    del self._running[update.id]
                if update.finish is Finish.ERROR:
                    raise EngineFailedError(update.error)
                yield number_or_none, update
        finally:
            watcher.cancel()
            for request_id in self._running:
                self._worker.cancel(request_id)
