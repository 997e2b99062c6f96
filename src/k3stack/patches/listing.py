"""The patches as a table: for a release from what is known, or for the vLLM of a Python from a probe of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from k3stack.errors import NotKnownError, UnavailableError, UsageError
from k3stack.values import Origin

from .export import PLUGIN, export
from .knowledge import known_releases, known_span
from .patch import State
from .registry import all_patches
from .switches import MASTER, Mode, Switch, mode, switch

__all__ = ["Listing", "Row", "installed_release", "known", "probed", "reach"]

_PYTHON = "Give the python of an environment with vLLM: --python PATH"
PROBE_SECONDS = 300


@dataclass(frozen=True, slots=True)
class Row:
    """One patch: what it is, the state it ends in on this release, and why."""

    number: int
    title: str
    switch: str
    state: State
    why: str
    upstream: str
    retires: str


@dataclass(frozen=True, slots=True)
class Listing:
    """The patches on one vLLM release.

    `origin` is read when the states come from our tables and measured when they come from a probe of the code.
    `warnings` say what keeps the patches from a server started in this environment.
    """

    vllm: str
    origin: Origin
    rows: tuple[Row, ...]
    warnings: tuple[str, ...] = ()

    @property
    def cannot(self) -> tuple[int, ...]:
        """The numbers of the patches that cannot apply."""
        return tuple(row.number for row in self.rows if row.state is State.CANNOT)


def known(version: str, environ: Mapping[str, str]) -> Listing:
    """The states on a release, from the tables, as the switches in `environ` leave them.

    Raises:
        NotKnownError: the tables do not cover the release.
        UsageError: a switch makes no sense.
    """
    rows = []
    for patch in all_patches():
        span = known_span(patch, version)
        if span is None:
            what = f"vLLM {version} is not in the tables, which cover {known_releases()}"
            raise NotKnownError(what, hint="Run `k3 patches probe` where it is installed")
        state, why = span.state, span.note
        try:
            wanted = Switch.OFF if mode(environ) is Mode.OFF else switch(environ, patch.switch)
        except ValueError as error:
            raise UsageError(str(error), where="environment") from error
        if wanted is Switch.OFF:
            state, why = State.DISABLED, f"{MASTER if mode(environ) is Mode.OFF else patch.switch} is off"
        elif wanted is Switch.ON and patch.optional and why.startswith("optional"):
            state, why = State.APPLIED, f"{patch.switch}=1"
        upstream = ", ".join(f"{pull.name} {pull.state}" for pull in patch.upstream)
        rows.append(Row(patch.number, patch.title, patch.switch, state, why, upstream, patch.retires))
    return Listing(version, Origin.READ, tuple(rows), reach(environ))


def probed(python: Path | None, environ: Mapping[str, str]) -> Listing:
    """The states on the vLLM of a Python (ours by default), from running every probe and patch there on the CPU.

    Raises:
        UnavailableError: that Python has no vLLM with Kimi-K3, or the probe does not end.
    """
    chosen = Path(sys.executable) if python is None else python
    with tempfile.TemporaryDirectory(prefix="k3-probe-") as folder:
        export(Path(folder) / "patches")
        path = os.pathsep.join([str(Path(folder) / "patches"), *filter(None, [environ.get("PYTHONPATH")])])
        # The folder's sitecustomize would settle the patches before the probe could time and report them.
        (Path(folder) / "patches" / "sitecustomize.py").unlink()
        own = {**environ, "PYTHONPATH": path, "VLLM_PLUGINS": "", "CUDA_VISIBLE_DEVICES": ""}
        try:
            done = subprocess.run(
                [str(chosen), "-m", "k3stack_patches.probe"],
                env=own,
                capture_output=True,
                text=True,
                timeout=PROBE_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UnavailableError(f"the probe did not run: {error}", where=chosen, hint=_PYTHON) from error
    answer = _answer(done, chosen)
    upstream = {p.number: ", ".join(f"{pull.name} {pull.state}" for pull in p.upstream) for p in all_patches()}
    retires = {p.number: p.retires for p in all_patches()}
    rows = tuple(
        Row(
            row["number"],
            row["title"],
            row["switch"],
            State(row["state"]),
            row["why"],
            upstream[row["number"]],
            retires[row["number"]],
        )
        for row in answer["patches"]
    )
    return Listing(answer["vllm"], Origin.MEASURED, rows, reach(environ))


def _answer(done: subprocess.CompletedProcess[str], python: Path) -> Any:
    try:
        answer = json.loads(done.stdout)
    except json.JSONDecodeError as error:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise UnavailableError(f"the probe failed: {last}", where=python) from error
    if "error" in answer:
        raise UnavailableError(
            answer["error"], where=python, hint="Name the Python that has vLLM: k3 patches probe --python PATH"
        )
    return answer


def installed_release(python: Path | None) -> str | None:
    """The version of the vLLM package of a Python (ours by default), without importing it; None without one.

    Raises:
        UnavailableError: the Python cannot be run.
    """
    code = "from importlib.metadata import version; print(version('vllm'))"
    chosen = sys.executable if python is None else str(python)
    try:
        done = subprocess.run([chosen, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(f"cannot be run: {error}", where=chosen, hint=_PYTHON) from error
    return done.stdout.strip() or None if done.returncode == 0 else None


def reach(environ: Mapping[str, str]) -> tuple[str, ...]:
    """What keeps the patches from a server that is started in this environment."""
    found = []
    allowed = environ.get("VLLM_PLUGINS")
    if allowed is not None and PLUGIN not in allowed.split(","):
        found.append(
            f"VLLM_PLUGINS={allowed} hides the entry point: add {PLUGIN} to it, or put the folder that "
            "`k3 patches export` writes on PYTHONPATH, whose sitecustomize needs no entry point"
        )
    if environ.get("VLLM_USE_RUST_FRONTEND", "0") not in ("", "0"):
        numbers = ", ".join(str(patch.number) for patch in all_patches() if patch.front_end)
        found.append(f"VLLM_USE_RUST_FRONTEND is on: patch {numbers} acts in the API server and cannot reach it")
    if allowed is None and not any(point.name == PLUGIN for point in entry_points(group="vllm.general_plugins")):
        found.append("this Python does not offer the entry point: install k3stack beside vLLM, or export the folder")
    return tuple(found)
