"""How well `k3 check` finds faults: each planted fault, the checks that must find it, and what else failed.

    python -m benchmarks.check [FAULT...]

Prints one line for each fault planted in a proxy before a correct scripted endpoint as soon as it is judged, with how
many are found so far; then how often the correct endpoint itself passes, one run at a time. Each fault is judged by the
full level, without the checks that wait (slow-clients, isolation, speed) where the fault is not theirs, and with
prompts of at most 8,192 tokens where it is not one of recall. A fault counts as found when every check that is meant
for it fails, or warns where its entry says that a warning is right.

Needs about 2 CPU seconds a fault, so six to eight minutes on two free cores, and more where others use them: four
processes share the faults, each with an endpoint of its own.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.verify.broken import FAULTS
from tests.verify.fake_k3 import FakeK3, serving

from k3stack.verify import Level, Status, Target, run_checks
from k3stack.verify.registry import all_checks

PROCESSES = 4
RUNS = 3
WAITING = ("slow-clients", "isolation", "speed", "soak")
KEY = "K3_BENCHMARK_KEY"


@dataclass(frozen=True, slots=True)
class Found:
    """What the checks said about one fault."""

    name: str
    expected: frozenset[str]
    told: frozenset[str]
    failed: frozenset[str]

    @property
    def all(self) -> bool:
        """Whether every check that is meant for the fault found it."""
        return self.expected <= self.told

    @property
    def line(self) -> str:
        """For people."""
        also = ", ".join(sorted(self.failed - self.expected)) or "nothing"
        missed = f"; MISSED by {', '.join(sorted(self.expected - self.told))}" if not self.all else ""
        return f"{self.name:<22} found by {', '.join(sorted(self.expected & self.told))}{missed}; also failed: {also}"


def judge(name: str) -> Found:
    """One fault before an endpoint of its own."""
    fault = FAULTS[name]
    ids = [one.id for one in all_checks() if one.id not in WAITING or one.id in fault.expected]
    key = KEY if "key" in fault.expected else None
    longest = 32_768 if {"recall", "boundaries"} & set(fault.expected) else 8_192
    os.environ[KEY] = "any"
    with serving(FakeK3().app()) as upstream, serving(fault(upstream).app()) as url:
        report = run_checks(Target(url, key_variable=key, longest=longest), Level.FULL, only=ids)
    failed = frozenset(one.id for one in report.results if one.status is Status.FAIL)
    warned = frozenset(one.id for one in report.results if one.status is Status.WARN)
    return Found(name, frozenset(fault.expected), warned if fault.only_warned else failed, failed)


@contextmanager
def judged(names: list[str]) -> Iterator[Iterator[Found]]:
    """All faults, as they are done."""
    with multiprocessing.get_context("spawn").Pool(PROCESSES) as pool:
        yield pool.imap_unordered(judge, names)


def main() -> None:
    """Print one line for each fault, then the correct endpoint."""
    wanted = sys.argv[1:] or list(FAULTS)
    good = 0
    started = time.perf_counter()
    with judged(wanted) as results:
        for done, one in enumerate(results, start=1):
            good += one.all
            print(f"{good}/{done} {one.line}", flush=True)
    seconds = time.perf_counter() - started
    print(f"{good} of {len(wanted)} faults found by the checks meant for them, in {seconds:.0f} s", flush=True)
    with serving(FakeK3().app()) as upstream:
        for level in (Level.QUICK, Level.FULL):
            started = time.perf_counter()
            passed = sum(run_checks(Target(upstream), level).passed for _ in range(RUNS))
            seconds = (time.perf_counter() - started) / RUNS
            print(f"correct endpoint, {level.value}: passed {passed} of {RUNS}, {seconds:.1f} s each", flush=True)


if __name__ == "__main__":
    main()
