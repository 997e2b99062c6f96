"""What happened to one request: for the flag in the response, the metrics and the log."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from k3stack.guard.policy import Verdict
from k3stack.guard.verdict import Judged

__all__ = ["Report"]


@dataclass(slots=True)
class Report:
    """Filled while a request is served.

    Args:
        verdict: how it ended; None while it has not.
        answers: choices that ended with calls; `first_calls` and `first_valid` count the calls of the first
            attempt and those valid as they came.
        resamples: attempts after the first.
        problems, repairs: codes with their counts, over all attempts.
        max_held_bytes: the most that was held back at a time.
        held_s: seconds from the first held call byte to its release, the longest of all attempts.
        error: the error's code, when the client got one.
    """

    verdict: Verdict | None = None
    answers: int = 0
    first_calls: int = 0
    first_valid: int = 0
    sent_calls: int = 0
    resamples: int = 0
    problems: Counter[str] = field(default_factory=Counter)
    repairs: Counter[str] = field(default_factory=Counter)
    max_held_bytes: int = 0
    held_s: float = 0.0
    error: str | None = None
    details: tuple[str, ...] = ()

    def add(self, judged: Judged) -> None:
        """Count one finished choice."""
        self.problems.update(judged.problems)
        self.repairs.update(judged.repairs)
        if judged.details:
            self.details = judged.details
        if judged.calls:
            self.answers += 1
        if self.resamples == 0:
            self.first_calls += len(judged.calls)
            self.first_valid += sum(call.valid and not _content_repairs(call.repairs) for call in judged.calls)

    @property
    def flag(self) -> dict[str, Any] | None:
        """The `k3_guard` field of a response; None where there is nothing to tell."""
        if self.verdict is None or (self.verdict is Verdict.CLEAN and not self.problems):
            return None
        return {
            "verdict": str(self.verdict),
            "problems": sorted(self.problems),
            "repairs": sorted(self.repairs),
            "resamples": self.resamples,
        }


def _content_repairs(repairs: tuple[str, ...]) -> bool:
    """Whether a call needed more than a new id to be valid."""
    return any(code != "new_id" for code in repairs)
