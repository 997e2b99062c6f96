"""What the guard counts, for Prometheus."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from k3stack.guard.report import Report

__all__ = ["Metrics"]

_MOST_OBSERVED = 10_000
_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 5)
_LONG_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
_SHARES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1.0)


class Metrics:
    """The guard's counters, in a registry of their own.

    `k3_guard_calls_valid_first_total / k3_guard_calls_total` is the share of calls that the engine got right by
    itself; the answers by verdict say what became of the rest.

    What happens with every request is tallied in plain numbers and handed to the library when somebody reads: its
    counters take locks, which together would cost more than checking a call.
    """

    def __init__(self) -> None:
        into = self.registry = CollectorRegistry()
        self.requests = Counter(
            "k3_guard_requests", "Requests by kind and HTTP status.", ["kind", "status"], registry=into
        )
        self.answers = Counter("k3_guard_answers", "Chat answers by how they ended.", ["verdict"], registry=into)
        self.calls = Counter("k3_guard_calls", "Tool calls in first attempts.", registry=into)
        self.valid_first = Counter("k3_guard_calls_valid_first", "Tool calls valid as they first came.", registry=into)
        self.sent_calls = Counter("k3_guard_calls_sent", "Tool calls given to clients.", registry=into)
        self.resamples = Counter("k3_guard_resamples", "Attempts after the first.", registry=into)
        self.problems = Counter(
            "k3_guard_problems", "What was wrong with answers, all attempts.", ["problem"], registry=into
        )
        self.repairs = Counter("k3_guard_repairs", "What was repaired, all attempts.", ["repair"], registry=into)
        self.errors = Counter("k3_guard_errors", "Errors given to clients, by code.", ["code"], registry=into)
        self.disconnects = Counter("k3_guard_disconnects", "Clients that hung up before the end.", registry=into)
        self.connection_errors = Counter(
            "k3_guard_upstream_connection_errors",
            "Connections to upstreams that failed.",
            ["upstream"],
            registry=into,
        )
        self.in_flight = Gauge("k3_guard_in_flight", "Requests being served.", registry=into)
        self.held_bytes = Gauge("k3_guard_held_bytes", "Bytes of calls and text held back now.", registry=into)
        self.lines_dropped = Gauge("k3_guard_log_lines_dropped", "Log lines nobody read in time.", registry=into)
        self.added = Histogram(
            "k3_guard_added_seconds",
            "Time the guard added before the first byte: its own work before asking and before passing on.",
            buckets=_SECONDS,
            registry=into,
        )
        self.first_byte = Histogram(
            "k3_guard_first_byte_seconds",
            "From the request to the first byte sent.",
            buckets=_LONG_SECONDS,
            registry=into,
        )
        self.held = Histogram(
            "k3_guard_hold_seconds",
            "From the first held byte to its release.",
            buckets=_LONG_SECONDS,
            registry=into,
        )
        self.prefix_repeats = Histogram(
            "k3_guard_prefix_repeat_ratio",
            "Share of a prompt's front seen before.",
            buckets=_SHARES,
            registry=into,
        )
        self.divergences = Counter(
            "k3_guard_prefix_divergences",
            "Prompts that left a known front early, by cause.",
            ["cause"],
            registry=into,
        )
        self._tallies: Tally[tuple[Counter, str | None]] = Tally()
        self._observed: list[tuple[Histogram, float]] = []
        self._upstream_up = Gauge(
            "k3_guard_upstream_up", "1 when the last connection worked.", ["upstream"], registry=into
        )

    def watch_upstream(self, url: str, is_up: Callable[[], bool]) -> None:
        """Report whether an upstream is up whenever the metrics are read."""
        self._upstream_up.labels(url).set_function(lambda: float(is_up()))

    def count(self, counter: Counter, label: str | None = None, by: int = 1) -> None:
        """Count in a counter without labels, or with one; two labels are joined by a tab."""
        self._tallies[counter, label] += by

    def observe(self, histogram: Histogram, value: float) -> None:
        """Note a value for a histogram."""
        self._observed.append((histogram, value))
        if len(self._observed) >= _MOST_OBSERVED:
            self._hand_over()

    def finished(self, report: Report) -> None:
        """Count a chat answer."""
        tallies = self._tallies
        if report.verdict is not None:
            tallies[self.answers, report.verdict] += 1
        if report.first_calls:
            tallies[self.calls, None] += report.first_calls
            tallies[self.valid_first, None] += report.first_valid
        tallies[self.sent_calls, None] += report.sent_calls
        tallies[self.resamples, None] += report.resamples
        for counter, counts in ((self.problems, report.problems), (self.repairs, report.repairs)):
            for code, number in counts.items():
                tallies[counter, code] += number
        if report.error is not None:
            tallies[self.errors, report.error] += 1
        if report.held_s:
            self.observe(self.held, report.held_s)

    def text(self) -> bytes:
        """The metrics in Prometheus's text form."""
        self._hand_over()
        return generate_latest(self.registry)

    def _hand_over(self) -> None:
        tallies, self._tallies = self._tallies, Tally()
        for (counter, label), number in tallies.items():
            (counter if label is None else counter.labels(*label.split("\t"))).inc(number)
        observed, self._observed = self._observed, []
        for histogram, value in observed:
            histogram.observe(value)
