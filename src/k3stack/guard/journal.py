"""The proxy's log: one line of JSON for each request. Bodies, keys and query strings are never in it."""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from collections import deque
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import orjson

from k3stack.guard.report import Report

__all__ = ["Entry", "Journal", "JournalHandler"]

_PAUSE_S = 0.1


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


class Journal:
    """Writes lines to stderr from a thread of its own: a reader that is slow or gone must not stop the proxy.

    Args:
        most: lines kept waiting; more are dropped and counted.
    """

    def __init__(self, most: int = 10_000) -> None:
        self._waiting: deque[bytes] = deque()
        self._most = most
        self._thread: threading.Thread | None = None
        self.dropped = 0

    def __call__(self, fields: dict[str, Any]) -> None:
        """Write one line, or drop it when too many are waiting."""
        if len(self._waiting) >= self._most:
            self.dropped += 1
            return
        self._waiting.append(orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE))
        if self._thread is None:  # started late, so that it lives in the process that serves
            self._thread = threading.Thread(target=self._write, daemon=True, name="k3-guard-log")
            self._thread.start()

    def flush(self, seconds: float = 1.0) -> None:
        """Wait until all lines are out, for at most `seconds`."""
        deadline = time.monotonic() + seconds
        while self._waiting and time.monotonic() < deadline:
            time.sleep(0.01)

    def _write(self) -> None:
        """Write what has come in, some times a second: waking for each line would halve the requests served."""
        while True:
            time.sleep(_PAUSE_S)
            while self._waiting:
                count = len(self._waiting)
                lines = b"".join(self._waiting[place] for place in range(count))
                try:
                    sys.stderr.buffer.write(lines)
                    sys.stderr.buffer.flush()
                except (OSError, ValueError):
                    self.dropped += count
                for _ in range(count):
                    self._waiting.popleft()


class JournalHandler(logging.Handler):
    """Sends what libraries log into the journal, so that nothing else in the process writes to stderr."""

    def __init__(self, journal: Journal) -> None:
        super().__init__(logging.WARNING)
        self._journal = journal

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record as a line."""
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "kind": "log",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage()[:2000],
        }
        if record.exc_info is not None and record.exc_info[1] is not None:
            fields["exception"] = "".join(traceback.format_exception(record.exc_info[1]))[-4000:]
        self._journal(fields)
