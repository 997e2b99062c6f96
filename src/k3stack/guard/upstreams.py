"""The servers behind the guard: which one to ask, which ones are down, how much each has to do."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from k3stack.guard import codec
from k3stack.guard.settings import Balance

__all__ = ["Pool", "Upstream", "conversation_key"]

_LONGEST_PAUSE_S = 30.0
_REQUEST_WEIGHT_BYTES = 4096
"""What a request weighs beside its prompt: decoding has a cost of its own."""


@dataclass(slots=True)
class Upstream:
    """One server.

    Args:
        url: base address, without a path.
        in_flight: requests it is working on for us.
        in_flight_bytes: their bodies' bytes, which stand for prompt tokens.
        failures: connections that failed since the last that did not.
        down_until: the moment, on the pool's clock, until which it is asked only if all are down.
    """

    url: str
    in_flight: int = 0
    in_flight_bytes: int = 0
    failures: int = 0
    down_until: float = 0.0

    @property
    def load(self) -> int:
        """How much it has to do, for comparing."""
        return self.in_flight_bytes + self.in_flight * _REQUEST_WEIGHT_BYTES

    @contextmanager
    def working(self, body_bytes: int) -> Iterator[None]:
        """Count a request while it is served."""
        self.in_flight += 1
        self.in_flight_bytes += body_bytes
        try:
            yield
        finally:
            self.in_flight -= 1
            self.in_flight_bytes -= body_bytes


class Pool:
    """Chooses an upstream for each request.

    Args:
        urls: base addresses.
        balance: how to choose.
        clock: seconds, monotonic.
    """

    def __init__(self, urls: tuple[str, ...], balance: Balance, clock: Callable[[], float] = time.monotonic) -> None:
        self.upstreams = [Upstream(_base(url)) for url in urls]
        self.balance = balance
        self._clock = clock

    def order(self, key: str | None = None) -> list[Upstream]:
        """All upstreams, the one to ask first in front. `key` names the conversation, for sticky choice."""
        if len(self.upstreams) == 1:
            return self.upstreams
        now = self._clock()
        if self.balance is Balance.STICKY and key is not None:
            return sorted(self.upstreams, key=lambda each: (each.down_until > now, _rank(each.url, key)))
        return sorted(self.upstreams, key=lambda each: (each.down_until > now, each.load))

    def failed(self, upstream: Upstream) -> None:
        """A connection failed: leave it alone for a while, longer each time."""
        upstream.failures += 1
        upstream.down_until = self._clock() + min(_LONGEST_PAUSE_S, 2.0**upstream.failures)

    def answered(self, upstream: Upstream) -> None:
        """It answered."""
        upstream.failures = 0
        upstream.down_until = 0.0

    def is_up(self, upstream: Upstream) -> bool:
        """Whether its last connection did not fail, or long enough ago."""
        return upstream.down_until <= self._clock()


def _base(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _rank(url: str, key: str) -> bytes:
    """Rendezvous hashing: a server that comes or goes moves only its own conversations."""
    return hashlib.blake2b(f"{url}\0{key}".encode(), digest_size=8).digest()


def conversation_key(body: dict[str, Any], session: str | None) -> str | None:
    """What names a conversation: the client's own session id, or the model and its first two messages."""
    named = session or body.get("prompt_cache_key") or body.get("user")
    if isinstance(named, str):
        return named
    messages = body.get("messages")
    if not isinstance(messages, list):
        return None
    front = codec.dumps([body.get("model"), messages[:2]])[:65536]
    return hashlib.blake2b(front, digest_size=16).hexdigest()
