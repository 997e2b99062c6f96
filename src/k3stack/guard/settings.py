"""The settings of `k3 guard`, one value, readable from JSON: the server's process gets them that way."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import urlsplit

from k3stack.errors import UsageError
from k3stack.guard.images import ImageLimits
from k3stack.guard.policy import Policy
from k3stack.ports import is_address

__all__ = ["Balance", "Settings"]


class Balance(StrEnum):
    """How an upstream is chosen."""

    LEAST_LOADED = "least-loaded"
    STICKY = "sticky"


@dataclass(frozen=True, slots=True)
class Settings:
    """How the proxy behaves.

    Args:
        upstreams: base addresses without a path, such as `http://127.0.0.1:8000`.
        policy: the guard's own settings.
        images: limits on images.
        balance: least loaded, or the same upstream for the same conversation.
        max_body_bytes: a larger request body is refused with 413. A prompt of 1M tokens has about 4 MB.
        max_in_flight: requests served at a time; more are refused with 429.
        connect_s: the limit for a connection to an upstream.
        first_byte_s: the limit for the first byte of an answer; None for none, as long prompts take minutes.
        idle_s: the limit for silence within an answer once it has begun.
        keep_alive_s: silence after which a streaming client gets a comment, so that nothing in between hangs up.
        max_answer_bytes: the largest answer that is not streamed.
        log: a line of JSON on stderr for each request.
        prefixes: watch how much of each conversation's front repeats (metrics); `explain` also prints it.
        explain: print where requests diverge.
    """

    upstreams: tuple[str, ...]
    policy: Policy = field(default_factory=Policy)
    images: ImageLimits = field(default_factory=ImageLimits)
    balance: Balance = Balance.LEAST_LOADED
    max_body_bytes: int = 256 * 2**20
    max_in_flight: int = 1024
    connect_s: float = 5.0
    first_byte_s: float | None = None
    idle_s: float = 300.0
    keep_alive_s: float = 10.0
    max_answer_bytes: int = 256 * 2**20
    log: bool = True
    prefixes: bool = False
    explain: bool = False

    def __post_init__(self) -> None:
        if not self.upstreams:
            raise UsageError("at least one upstream is needed", where="--upstream")
        for upstream in self.upstreams:
            if not is_address(upstream):
                hint = "Give one like http://127.0.0.1:8000"
                raise UsageError(f"{upstream!r} is not an http or https address", where="--upstream", hint=hint)
            parts = urlsplit(upstream)
            if parts.username or parts.password:
                # The address is logged and is a metric's label.
                raise UsageError("the address holds a password; let clients send their own key", where="--upstream")
            if parts.path.rstrip("/") not in ("", "/v1"):
                raise UsageError(f"{upstream!r} has a path; give the server's address alone", where="--upstream")
        for name in ("max_body_bytes", "max_in_flight", "connect_s", "idle_s", "keep_alive_s", "max_answer_bytes"):
            if getattr(self, name) <= 0:
                raise UsageError("must be positive", where=f"Settings.{name}")
