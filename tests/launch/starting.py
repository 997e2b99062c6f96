"""Starting the fake engine as `k3 up` would start vLLM."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from k3stack.launch.chosen import Asked
from k3stack.launch.follow import Patience
from k3stack.launch.process import processes_of
from k3stack.launch.state import Store
from k3stack.launch.up import Options, Steps, Up, up
from k3stack.ports import free_port

__all__ = ["Bench", "bench"]


class Bench:
    """A folder with a model that is none, a Python that is none, and a state of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = Store(folder / "state")
        self.model = folder / "model"
        self.model.mkdir()
        (self.model / "config.json").write_text('{"model_type": "llama"}')
        (self.model / "x.safetensors").write_bytes(bytes(100))
        self.python = folder / "python"
        fake = Path(__file__).with_name("fake_engine.py")
        self.python.write_text(
            f'#!/bin/sh\n[ "$1" = -c ] && exec echo 0.33.0\nshift 3\nexec {sys.executable} {fake} "$@"\n'
        )
        self.python.chmod(0o755)
        self.lines: list[str] = []
        self.at: list[float] = []
        self.port = free_port()

    def asked(self, fake: str) -> Asked:
        return Asked(str(self.model), engine="vllm", python=str(self.python), port=self.port, extra=("--fake", fake))

    def up(self, fake: str = "good", name: str = "k3", quiet_s: float = 600.0, grace_s: float = 0.4) -> Up:
        options = Options(name=name, level=None, patience=Patience(60.0, quiet_s), grace_s=grace_s)
        return up(self.asked(fake), options, self.store, replace(Steps(), line=self._hear))

    def _hear(self, line: str) -> None:
        self.lines.append(line)
        self.at.append(time.time())

    def heard_at(self, part: str) -> float:
        """When a line with this in it was told (time.time)."""
        return next(at for line, at in zip(self.lines, self.at, strict=True) if part in line)

    def command(self, fake: str = "good", *more: str) -> list[str]:
        """The same as a command."""
        code = "from k3stack.cli.main import main; main()"
        words = ["up", str(self.model), "--engine", "vllm", "--python", str(self.python), "--port", str(self.port)]
        words += ["--check", "none", "--state", str(self.store.folder), *more, "--", "--fake", fake]
        return [sys.executable, "-c", code, *words]

    def run_ids(self) -> list[str]:
        runs = self.store.folder / "runs"
        return [one.name for one in runs.iterdir()] if runs.is_dir() else []

    def left(self) -> list[int]:
        """Processes of any run here that are still there."""
        return [pid for run_id in self.run_ids() for pid in processes_of(run_id)] + _strays(self.folder)

    def log(self) -> str:
        """What the engine of the last run wrote."""
        (folder,) = (self.store.folder / "runs").iterdir()
        return (folder / "engine.log").read_text()

    def ended(self) -> dict[str, object]:
        """What the supervisor wrote about the last run."""
        (folder,) = (self.store.folder / "runs").iterdir()
        found: dict[str, object] = json.loads((folder / "ended.json").read_text())
        return found


def _strays(folder: Path) -> list[int]:
    """Processes with no mark at all: the fake's strays are sleepers that are below nobody."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes()
                cwd = (entry / "cwd").readlink()
            except OSError:
                continue
            if b"SIG_IGN" in words and cwd == folder:
                found.append(int(entry.name))
    return found


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.chdir(tmp_path)
    made = Bench(tmp_path)
    yield made
    from k3stack.launch.down import down

    down(made.store, (), 0.5)
    assert made.left() == [] and made.store.read().runs == ()
