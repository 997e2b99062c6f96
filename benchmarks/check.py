"""How well `k3 check` finds faults: each planted fault, the checks that must find it, and what else failed.

    python -m benchmarks.check [FAULT...]

Prints one line for each fault planted in a proxy before a correct scripted endpoint, then how often the correct
endpoint itself passes.
"""

from __future__ import annotations

import sys
import time

from tests.verify.broken import FAULTS
from tests.verify.fake_k3 import FakeK3, serving

from k3stack.verify import Level, Status, Target, run_checks

RUNS = 5


def main() -> None:
    wanted = sys.argv[1:] or list(FAULTS)
    with serving(FakeK3().app()) as upstream:
        found = 0
        for name in wanted:
            with serving(FAULTS[name](upstream).app()) as url:
                report = run_checks(Target(url), Level.FULL)
            failed = {one.id for one in report.results if one.status is Status.FAIL}
            expected = set(FAULTS[name].expected)
            found += expected <= failed
            also = ", ".join(sorted(failed - expected)) or "nothing"
            mark = "found" if expected <= failed else f"MISSED by {', '.join(sorted(expected - failed))}"
            print(f"{name:<22} {mark} by {', '.join(sorted(expected & failed))}; also failed: {also}", flush=True)
        print(f"{found} of {len(wanted)} faults found by the checks meant for them")
        for level in (Level.QUICK, Level.FULL):
            started = time.perf_counter()
            good = sum(run_checks(Target(upstream), level).passed for _ in range(RUNS))
            seconds = (time.perf_counter() - started) / RUNS
            print(f"correct endpoint, {level.value}: passed {good} of {RUNS}, {seconds:.1f} s each")


if __name__ == "__main__":
    main()
