from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]
SOURCE = Path(__file__).parents[2] / "src"


@pytest.fixture
def fake_vllm(tmp_path: Path) -> Path:
    """A folder with a package `vllm` that has K3's model and nothing that the patches know."""
    folder = tmp_path / "engine"
    model = folder / "vllm" / "models" / "kimi_k3" / "nvidia"
    model.mkdir(parents=True)
    for package in (model, model.parent, model.parent.parent):
        (package / "__init__.py").touch()
    (folder / "vllm" / "__init__.py").write_text('__version__ = "0.99.0"\n')
    (model / "model.py").write_text("LOADED_BY = __loader__\n")
    return folder


@pytest.fixture
def run() -> Run:
    """Run Python code in a process of its own, with given folders on PYTHONPATH and variables set."""

    def run_code(code: str, *folders: Path, **environ: str) -> subprocess.CompletedProcess[str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("K3_", "KIMI_", "VLLM_"))}
        clean |= {"PYTHONPATH": os.pathsep.join(map(str, folders)), **environ}
        return subprocess.run([sys.executable, "-c", code], env=clean, capture_output=True, text=True, check=False)

    return run_code
