"""What the patches cost a Python process that never imports vLLM, beside a sitecustomize that imports vLLM.

    python benchmarks/patch_startup.py [PYTHON]

PYTHON is one that has vLLM; without it the last two rows are missing. Times are the processor time of the new
process, which other work on the machine disturbs less than its wall time. Starts are interleaved, and "added" is
the median of the differences to the plain start of the same round.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from k3stack.patches.export import export

ROUNDS, VLLM_ROUNDS = 60, 3


def start_milliseconds(python: str, folder: Path | None) -> float:
    """Processor time of `python -c pass`, user and system, with a folder on its PYTHONPATH."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if folder is not None:
        environ["PYTHONPATH"] = str(folder)
    process = subprocess.Popen([python, "-c", "pass"], env=environ, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(f"python -c pass ended with {process.returncode} with {folder} on its PYTHONPATH")
    return (used.ru_utime + used.ru_stime) * 1000


def main() -> None:
    python = sys.argv[1] if len(sys.argv) > 1 else sys.executable
    with tempfile.TemporaryDirectory() as home:
        ours = Path(home) / "ours"
        export(ours)
        empty = Path(home) / "empty"
        empty.mkdir()
        (empty / "sitecustomize.py").write_text("")
        plain, with_empty, with_ours = [], [], []
        for _ in range(ROUNDS):
            plain.append(start_milliseconds(python, None))
            with_empty.append(start_milliseconds(python, empty))
            with_ours.append(start_milliseconds(python, ours))
        print(f"python -c pass, {ROUNDS} interleaved starts; processor time in ms, median (quartiles)")
        report("no sitecustomize", plain, plain)
        report("an empty sitecustomize", with_empty, plain)
        report("k3 patches export", with_ours, plain)
        if len(sys.argv) > 1:
            peers(python, Path(home), plain)


def peers(python: str, home: Path, plain: list[float]) -> None:
    for title, line in (
        ("a sitecustomize that imports vllm", "import vllm"),
        ("one that imports what it patches", "import vllm.model_executor.layers.quantization.modelopt"),
    ):
        folder = home / title.replace(" ", "-")
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(line + "\n")
        start_milliseconds(python, folder)  # the first import reads 100s of files from disk
        report(title, [start_milliseconds(python, folder) for _ in range(VLLM_ROUNDS)], plain)


def report(title: str, times: list[float], plain: list[float]) -> None:
    added = [ours - theirs for ours, theirs in zip(times, plain, strict=False)]
    low, middle, high = (statistics.quantiles(times, n=4) if len(times) > 1 else times * 3)[:3]
    print(f"{title:36} {middle:9.1f} ({low:.1f} to {high:.1f})   added {statistics.median(added):9.2f}")


if __name__ == "__main__":
    main()
