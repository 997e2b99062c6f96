"""How quickly a death is told, a log is read, and a machine is looked at.

    python benchmarks/launch.py [LOG ...]

Deaths: an engine kills itself; the time from its end (as its supervisor saw it) until `follow` says why.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

from k3stack.launch.facts import Wanted
from k3stack.launch.follow import follow
from k3stack.launch.knowledge import failures
from k3stack.launch.launcher import Launched
from k3stack.launch.preflight import preflight
from k3stack.launch.recognise import recognise
from k3stack.launch.start import Start
from k3stack.launch.supervisor import ENDED

DEATHS = 20


def death_s(folder: Path, number: int) -> float:
    """Seconds from an engine's end until it is told."""
    folder.mkdir()
    words = ("sh", "-c", f"sleep 0.{number % 10}3; kill -9 $$")
    launched = Launched(Start("vllm", words, {}, "127.0.0.1", 9, None), f"bench-{number}", folder, folder / "log", 1.0)
    launched.begin()
    try:
        followed = follow(launched)
        told = time.time()
        assert followed.diagnosis and followed.diagnosis.likely, followed
        assert followed.diagnosis.likely.id in ("killed", "host-oom"), followed.diagnosis.likely.id
    finally:
        launched.end()
    return told - float(json.loads((folder / ENDED).read_text())["at"])


def main(logs: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        took = sorted(death_s(Path(folder) / str(number), number) for number in range(DEATHS))
    print(f"{DEATHS} deaths told after {statistics.median(took):.2f} s (median), {took[-1]:.2f} s (longest)")
    line = "(Worker_TP7 pid=977) ERROR 11-20 09:14:55 [x.py:1] a line of a log about nothing that is known\n"
    text = line * (2 * 2**20 // len(line)) + "OSError: [Errno 98] Address already in use\n"
    began = time.perf_counter()
    found = recognise(text)
    seconds = time.perf_counter() - began
    assert found.likely and found.likely.id == "port-in-use"
    print(f"{len(failures())} failures looked for in 2 MiB of errors: {seconds:.2f} s")
    print(f"preflight for the reference engine: {preflight(Wanted(engine='reference')).seconds:.2f} s")
    for log in logs:
        cause = recognise(Path(log).read_text(errors="replace")).likely
        print(f"{log}: {cause.id if cause else 'nothing wrong'}")


if __name__ == "__main__":
    main(sys.argv[1:])
