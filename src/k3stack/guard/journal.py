"""The proxy's log: one line of JSON for each request. Bodies, keys and query strings are never in it."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import orjson

from k3stack.guard.report import Report

__all__ = ["Entry", "write_line"]


@dataclass(slots=True)
class Entry:
    """One request's line, filled while it is served."""

    id: str
    method: str
    path: str
    kind: str = "relay"
    upstream: str | None = None
    status: int = 0
    stream: bool = False
    bytes_in: int = 0
    bytes_out: int = 0
    first_byte_s: float | None = None
    error: str | None = None
    disconnected: bool = False
    report: Report | None = None
    began: float = field(default_factory=time.perf_counter)

    def line(self) -> dict[str, Any]:
        """The line's fields."""
        fields: dict[str, Any] = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "id": self.id,
            "kind": self.kind,
            "method": self.method,
            "path": self.path,
            "upstream": self.upstream,
            "status": self.status,
            "stream": self.stream,
            "bytes_in": self.bytes_in,
            "bytes_out": self.bytes_out,
            "seconds": round(time.perf_counter() - self.began, 4),
            "first_byte_s": None if self.first_byte_s is None else round(self.first_byte_s, 4),
        }
        if self.disconnected:
            fields["disconnected"] = True
        if self.error is not None:
            fields["error"] = self.error
        report = self.report
        if report is not None and report.verdict is not None:
            fields["verdict"] = report.verdict
            fields["calls"] = report.sent_calls
            for name, value in (("problems", report.problems), ("repairs", report.repairs)):
                if value:
                    fields[name] = dict(value)
            if report.resamples:
                fields["resamples"] = report.resamples
        return fields


def write_line(fields: dict[str, Any]) -> None:
    """Write one line to stderr. A reader that is gone is no reason to stop serving."""
    try:
        sys.stderr.buffer.write(orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE))
        sys.stderr.buffer.flush()
    except (OSError, ValueError):
        pass
