"""What streamed and whole answers share: counting attempts, deciding whether to ask again, the last resort."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from k3stack.guard.policy import OnExhausted, Policy, Problem, Verdict
from k3stack.guard.report import Report
from k3stack.guard.request import ChatRequest
from k3stack.guard.verdict import Judged

__all__ = ["Attempts", "Failure", "Step", "add_usage"]

T = TypeVar("T")
"""What a shell needs beside the verdict to send a kept answer."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An error for the client.

    Args:
        code: `tool_call_invalid`, `upstream_cut`, `upstream_malformed`, `upstream_idle`, `answer_too_large`.
        message: one sentence that says why.
        status: the HTTP status where there is still one to send.
    """

    code: str
    message: str
    status: int = 502
    problems: tuple[str, ...] = ()

    @property
    def body(self) -> dict[str, Any]:
        """The error in OpenAI's form."""
        error = {"message": self.message, "type": "k3_guard_error", "param": None, "code": self.code}
        return {"error": {**error, "problems": list(self.problems)}}


@dataclass(frozen=True, slots=True)
class Step:
    """What a shell does when an attempt is over: send `data`; with `again`, ask the same upstream once more."""

    data: bytes = b""
    again: bool = False
    status: int = 200


class Attempts(Generic[T]):
    """Counts attempts and settles how a request ends.

    Args:
        request: the client's request.
        policy: the guard's settings.
        clock: seconds, monotonic.
    """

    def __init__(self, request: ChatRequest, policy: Policy, clock: Callable[[], float] = time.monotonic) -> None:
        self.request = request
        self.policy = policy
        self.report = Report()
        self.number = 0
        self.taken_ids = set(request.known_ids)
        self.usage: dict[str, Any] = {}
        self._clock = clock
        self._began = clock()
        self._fallback: tuple[list[Judged], T] | None = None

    def may_ask_again(self) -> bool:
        """Whether one more attempt is allowed and can help."""
        late = self.policy.resample_within_s
        in_time = late is None or self._clock() - self._began < late
        return self.number < self.policy.resamples and self.request.resample_helps and in_time

    def next(self) -> None:
        """One more attempt begins."""
        self.number += 1
        self.report.resamples = self.number
        self.taken_ids = set(self.request.known_ids)

    def keep(self, judged: list[Judged], answer: T) -> None:
        """Remember an answer that may go out flagged if nothing better comes."""
        has_calls = any(each.calls for each in judged)
        if all(each.sendable for each in judged) and (has_calls or self._fallback is None):
            self._fallback = (judged, answer)

    def last_resort(self) -> tuple[list[Judged], T] | Failure:
        """What to send when no attempt was acceptable: the last one that is strict JSON, or an error."""
        if self._fallback is not None:
            judged = self._fallback[0]
            lenient = self.policy.on_exhausted is OnExhausted.PASS
            # Words alone are passed on under either policy, unless a call was asked for: nothing is withheld.
            if lenient or not any(each.calls or Problem.NO_CALL in each.problems for each in judged):
                kept, self._fallback = self._fallback, None
                return kept
        codes = tuple(sorted(self.report.problems))
        why = "; ".join(self.report.details[:3]) or ", ".join(codes)
        tries = "1 attempt" if self.number == 0 else f"{self.number + 1} attempts"
        return Failure("tool_call_invalid", f"no valid tool call in {tries}: {why}", problems=codes)

    def settle(self, *, exhausted: bool = False) -> None:
        """Set the verdict of a request that was answered."""
        if self.report.verdict in (Verdict.FAILED, Verdict.EXHAUSTED):
            return
        if exhausted:
            self.report.verdict = Verdict.EXHAUSTED
        elif self.number:
            self.report.verdict = Verdict.RESAMPLED
        else:
            self.report.verdict = Verdict.REPAIRED if self.report.repairs else Verdict.CLEAN

    def fail(self, failure: Failure) -> None:
        """Set the verdict of a request that ends with an error."""
        self.report.verdict = Verdict.FAILED
        self.report.error = failure.code


def add_usage(total: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Two usage objects added field by field; nested objects too, other values from the later one."""
    summed = dict(total)
    for name, value in more.items():
        before = summed.get(name)
        if isinstance(value, dict):
            summed[name] = add_usage(before if isinstance(before, dict) else {}, value)
        elif isinstance(value, int) and isinstance(before, int):
            summed[name] = before + value
        elif value is not None or name not in summed:
            summed[name] = value
    return summed
