"""`k3 up` with a real engine on this machine: how long a start takes, and how soon the end of a part of it is told.

    python benchmarks/up.py MODEL --python ENGINE_PYTHON [--engine vllm|sglang] [--gpus N] [--kills N]
        [--part core|worker] [-- words for the engine]

MODEL is a checkpoint that this machine can serve: on a GPU one of `k3 tiny`. Beside our time to tell a killed part
stands what the engine takes by itself: until its own first process ends. vLLM has workers beside its core when it
takes several GPUs; the one that is killed is the last.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from k3stack.launch.process import Identity, alive, processes_of
from k3stack.launch.state import Run, Store
from k3stack.ports import free_port, title_of

K3 = (sys.executable, "-c", "from k3stack.cli.main import main; main()")
PARTS = {"core": ("VLLM::EngineCore", "sglang::scheduler"), "worker": ("VLLM::Worker", "sglang::scheduler")}
LOADING = "Loading model from", "Starting to load model", "Load weight begin"
PATIENCE_S = 900.0


def begin(store: Store, asked: argparse.Namespace) -> subprocess.Popen[str]:
    """`k3 up` in a process of its own; what it says goes to a file."""
    words = [*K3, "up", asked.model, "--engine", asked.engine, "--python", asked.python, "--check", "none", "--json"]
    words += ["--gpus", str(asked.gpus)] if asked.gpus else []
    words += ["--port", str(free_port()), "--state", str(store.folder), "--", *asked.words]
    with said(store).open("w") as file:
        return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=file, text=True)


def said(store: Store) -> Path:
    return store.folder / "said"


def result(store: Store, command: subprocess.Popen[str]) -> dict[str, Any]:
    out, _ = command.communicate(timeout=PATIENCE_S)
    if not out:
        sys.exit(said(store).read_text())
    found: dict[str, Any] = json.loads(out)
    return found


def part_of(run: Run, part: str) -> int:
    """The pid of the engine's core, or of its last worker."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        titles = {pid: title_of(pid) or "" for pid in processes_of(run.id, run.process, run.supervisor)}
        found = [pid for pid, title in titles.items() if title.startswith(PARTS[part])]
        if found:
            return max(found, key=titles.__getitem__)
        time.sleep(0.05)
    sys.exit(f"the engine has no {part}")


def run_that_loads(store: Store, command: subprocess.Popen[str]) -> Run:
    """The run, once its engine has begun to load."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and command.poll() is None:
        for run in store.read().runs:
            log = Path(run.log)
            if log.is_file() and any(phrase in log.read_text(errors="replace") for phrase in LOADING):
                return run
        time.sleep(0.05)
    sys.exit(f"it did not come to load: {result(store, command)['reason']}")


def kill(pid: int) -> float:
    os.kill(pid, signal.SIGKILL)
    return time.monotonic()


def told_s(store: Store, command: subprocess.Popen[str], since: float, words: str) -> float:
    """Seconds until `k3 up` says these words."""
    while words not in said(store).read_text() and command.poll() is None:
        time.sleep(0.01)
    return time.monotonic() - since


def ends_s(engine: Identity, since: float) -> float:
    """Seconds until the engine's first process is gone."""
    while alive(engine):
        time.sleep(0.01)
    return time.monotonic() - since


def down_s(store: Store) -> float:
    began = time.monotonic()
    subprocess.run([*K3, "down", "--state", str(store.folder)], check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began


def show_start(found: dict[str, Any]) -> None:
    """What a start that went well took."""
    followed = found["followed"] or {}
    if not followed.get("ready"):
        sys.exit(f"it did not become ready: {found['reason']}\n{found['log']}")
    print(f"ready after {followed['seconds']:.1f} s, first token {followed['first_token_s']:.2f} s", end=": ")
    print(", ".join(f"{name} at {at:.1f}" for name, at in followed["phases"].items()))
    for one in found["memory"]:
        print(f"  {one['quantity']}: reported {one['reported']}, predicted {one['predicted']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--python", required=True)
    parser.add_argument("--engine", default="vllm")
    parser.add_argument("--gpus", type=int)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--part", choices=tuple(PARTS), default="core")
    given = sys.argv[1:]
    cut = given.index("--") if "--" in given else len(given)
    asked = parser.parse_args(given[:cut])
    asked.words = given[cut + 1 :]
    alone, gone, told = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        show_start(result(store, begin(store, asked)))
        print(f"k3 down: {down_s(store):.2f} s")
        for _ in range(asked.kills):
            result(store, begin(store, asked))
            (run,) = store.read().runs
            assert run.process is not None
            alone.append(ends_s(run.process, kill(part_of(run, asked.part))))
            down_s(store)
            command = begin(store, asked)
            run = run_that_loads(store, command)
            killed = kill(part_of(run, asked.part))
            gone.append(told_s(store, command, killed, ") is gone"))
            told.append(told_s(store, command, killed, "failed after"))
            likely = result(store, command)["followed"]["diagnosis"]["causes"][0]
            print(f"{asked.part} killed while it loads: told as {likely['id']}: {likely['quote']}")
    if told:
        soon, why, itself = statistics.median(gone), statistics.median(told), statistics.median(alone)
        print(f"{asked.part} killed while it loads: told after {soon:.2f} s, and why after {why:.2f} s")
        print(f"{asked.part} killed when it is ready: its first process ends by itself after {itself:.2f} s")


if __name__ == "__main__":
    main()
