"""How long `k3 --help`, `import k3stack` and `k3 inspect` of Kimi-K3's index take: whole processes, median of 10.

    .venv/bin/python benchmarks/startup.py

The peer in the same run is the interpreter itself (`python -c pass`): what no Python program can go below.
"""

import statistics
import subprocess
import sys
import time
from pathlib import Path

RUNS = 10
K3 = str(Path(sys.executable).with_name("k3"))
INDEX = Path(__file__).resolve().parents[2] / "shared" / "data" / "k3"


def times(commands: dict[str, list[str]]) -> dict[str, list[float]]:
    """Seconds of each command, taken in turn so that a slow moment of the machine falls on all of them."""
    taken: dict[str, list[float]] = {name: [] for name in commands}
    for turn in range(RUNS + 1):
        for name, command in commands.items():
            begin = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            if turn:  # the first one warms the disk
                taken[name].append(time.perf_counter() - begin)
    return taken


def main() -> None:
    """Print the table."""
    commands = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "import k3stack": [sys.executable, "-c", "import k3stack"],
        "k3 --help": [K3, "--help"],
        "k3 inspect kimi-k3": [K3, "inspect", "kimi-k3"],
    }
    if INDEX.is_dir():
        commands["k3 inspect (Moonshot's config and index)"] = [K3, "inspect", str(INDEX)]
    for name, taken in times(commands).items():
        middle, least = statistics.median(taken) * 1000, min(taken) * 1000
        print(f"{name:42} median {middle:7.0f} ms   min {least:7.0f} ms   (measured)")


if __name__ == "__main__":
    main()
