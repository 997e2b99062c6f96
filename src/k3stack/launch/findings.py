"""A finding: one thing that was looked at, what was measured, and what to do. Preflight and doctor speak in these."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Finding", "Findings", "Status"]


class Status(StrEnum):
    """How a finding ended."""

    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"
    NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        id: stable, for scripts.
        title: what was looked at, or what was found.
        measured: what was seen; never a secret.
        fix: what to do when it is not a pass.
        source: where the knowledge comes from, with its date.
    """

    id: str
    title: str
    status: Status
    measured: str
    fix: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class Findings:
    """Everything that was looked at.

    Attributes:
        subject: what it is about: this machine, a log, an address, a folder.
        seconds: how long looking took.
    """

    subject: str
    findings: tuple[Finding, ...]
    seconds: float = 0.0

    @property
    def good(self) -> bool:
        """Whether nothing failed; warnings do not count."""
        return all(one.status is not Status.FAIL for one in self.findings)

    def count(self, status: Status) -> int:
        """How many findings ended so."""
        return sum(one.status is status for one in self.findings)
