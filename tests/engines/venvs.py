"""Virtual environments with real engines, made on first use and shared by every suite that needs one.

They live in the folder that K3_ENGINES names, by default `.engines` beside this repository's pyproject.toml, and
are told apart by engine and release: `.engines/vllm-0.33.0`. Removing the folder removes them all.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["EXTRA", "answer_of", "engine_python", "resident"]

ROOT = Path(__file__).parents[2]

EXTRA = {
    # What `import modelopt.torch.quantization` needs and its metadata leaves to extras.
    ("nvidia-modelopt", "0.47.0"): ["torch==2.13.0", "requests", "pillow", "scipy", "datasets", "numpy", "safetensors"],
    # Without it uv resolves cuda-python 12, and these releases' `import cutlass` fails.
    ("vllm", "0.32.0"): ["cuda-python>=13,<14"],
    ("vllm", "0.33.0"): ["cuda-python>=13,<14"],
    # fla-core names PyTorch only in extras; its package imports Triton, which comes with PyTorch.
    ("fla-core", "0.6.0"): ["torch==2.14.0", "numpy", "einops", "packaging"],
}


def engine_python(engine: str, release: str) -> Path:
    """The Python of an environment with exactly this release of an engine, installing it if need be.

    A first installation takes half a minute to some minutes and 5 to 8 GB; PyTorch is shared through uv's cache.
    """
    home = Path(os.environ.get("K3_ENGINES") or ROOT / ".engines")
    home.mkdir(parents=True, exist_ok=True)
    folder = home / f"{engine}-{release}"
    python = folder / "bin" / "python"
    with (home / f".{engine}-{release}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _installed(python, engine) != release:
            shutil.rmtree(folder, ignore_errors=True)
            uv = _uv()
            subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, str(folder)], check=True)
            wanted = [f"{engine}=={release}", *EXTRA.get((engine, release), [])]
            subprocess.run([uv, "pip", "install", "--quiet", "--python", str(python), *wanted], check=True)
    return python


def answer_of(
    engine: str,
    release: str,
    script: str,
    given: Any,
    timeout_s: float,
    environment: Mapping[str, str] | None = None,
) -> Any:
    """What a script beside this file answers in the environment of an engine: JSON in on stdin, JSON out on stdout.

    Args:
        environment: variables over those of this process.
    """
    ran = subprocess.run(
        [str(engine_python(engine, release)), str(Path(__file__).with_name(script))],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
        env={**os.environ, **(environment or {})},
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return json.loads(ran.stdout)


class Resident:
    """A script of an engine's environment that goes on answering: importing an engine takes longer than most questions.

    The script answers a line of JSON on stdin with a line of JSON on stdout until stdin ends.
    """

    def __init__(self, python: Path, script: str, environment: Mapping[str, str]) -> None:
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed in `end`
        self._process = subprocess.Popen(
            [str(python), str(Path(__file__).with_name(script))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            env={**os.environ, **environment},
        )

    def ask(self, given: Any, timeout_s: float) -> Any:
        """One answer; what the script said on stderr is the error where it gives none."""
        assert self._process.stdin is not None and self._process.stdout is not None
        late = threading.Timer(timeout_s, self._process.kill)
        late.start()
        try:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(json.dumps(given) + "\n")
                self._process.stdin.flush()
            line = self._process.stdout.readline()
        finally:
            late.cancel()
        self._said.seek(0)
        assert line, f"no answer within {timeout_s:.0f} s: {self._said.read()[-3000:]}"
        return json.loads(line)

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._said.close()


_RESIDENTS: dict[tuple[object, ...], Resident] = {}
"""Those of one engine's environment at a time: each holds a gigabyte."""


def resident(python: Path, script: str, environment: Mapping[str, str], name: str) -> Resident:
    """The resident of this name, started on first use; those of any other environment end."""
    for key in [key for key in _RESIDENTS if key[0] != python]:
        _RESIDENTS.pop(key).end()
    key = (python, script, tuple(sorted(environment.items())), name)
    if key not in _RESIDENTS:
        _RESIDENTS[key] = Resident(python, script, environment)
    return _RESIDENTS[key]


@atexit.register
def _end_residents() -> None:
    for one in _RESIDENTS.values():
        one.end()
    _RESIDENTS.clear()


def _installed(python: Path, engine: str) -> str | None:
    """The release in an environment, or None. An installation that was cut short has no metadata yet."""
    if not python.exists():
        return None
    code = f"from importlib.metadata import version; print(version({engine!r}))"
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def _uv() -> str:
    for candidate in (ROOT / ".tools" / "bin" / "uv", shutil.which("uv")):
        if candidate and Path(candidate).exists():
            return str(candidate)
    raise RuntimeError("uv is needed to install engines: run `make setup`")
