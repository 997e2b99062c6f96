"""`k3 down` and `k3 status`: ending what runs here, and saying what does."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from k3stack.errors import UsageError
from k3stack.files import json_value
from k3stack.launch.launcher import GRACE_S
from k3stack.launch.process import alive, kill_all
from k3stack.launch.recognise import Diagnosis, Ended, recognise
from k3stack.launch.state import Run, Store
from k3stack.launch.supervisor import ENDED

__all__ = ["Stopped", "Told", "down", "status"]


@dataclass(frozen=True, slots=True)
class Stopped:
    """What became of an endpoint that was to end.

    Attributes:
        was_running: whether there was anything to end.
        left: processes that even SIGKILL left.
    """

    name: str
    was_running: bool
    seconds: float
    left: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Told:
    """An endpoint as `k3 status` tells it.

    Attributes:
        state: starting, ready, not answering, or ended.
        processes: how many it has.
        why: of one that ended, the cause, if the log knows one.
    """

    name: str
    state: str
    engine: str
    model: str
    url: str
    started_at: str
    processes: int
    log: str
    report: str | None = None
    ended: str | None = None
    why: str | None = None

    @property
    def good(self) -> bool:
        """Whether it answers."""
        return self.state == "ready"


def down(
    store: Store, names: tuple[str, ...] = (), grace_s: float = GRACE_S, told: Callable[[str], None] = lambda _: None
) -> tuple[Stopped, ...]:
    """End endpoints: ask, wait, kill, and make sure that nothing is left.

    Args:
        names: which; empty for all.

    Raises:
        UsageError: there is none of that name.
    """
    state = store.read()
    for name in names:
        if state.run(name) is None:
            known = ", ".join(run.name for run in state.runs) or "nothing"
            raise UsageError("does not run here", where=name, hint=f"Running: {known}.")
    stopped = []
    for run in state.runs:
        if not names or run.name in names:
            told(f"stopping {run.name}")
            stopped.append(_end(run, grace_s))
            if not stopped[-1].left:
                with store.change() as change:
                    change.state = change.state.without(run.id)
    return tuple(stopped)


def _end(run: Run, grace_s: float) -> Stopped:
    began, was_running = time.monotonic(), run.running
    for owner in (run.owner, run.supervisor):  # `k3 up`, if it still is at work, cleans up after itself
        if owner is not None and owner.pid != os.getpid() and alive(owner):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(owner.pid, signal.SIGTERM)
    deadline = time.monotonic() + grace_s + 10.0
    while run.running and time.monotonic() < deadline:
        if run.supervisor is None or not alive(run.supervisor):
            break  # nobody is left who would clean up
        time.sleep(0.1)
    left = kill_all(run.processes, 1.0)
    if run.supervisor is not None and alive(run.supervisor) and not left:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(run.supervisor.pid, signal.SIGKILL)
    if run.container:
        with suppress(OSError, subprocess.SubprocessError):
            subprocess.run(["docker", "rm", "--force", run.container], capture_output=True, timeout=60, check=False)
    return Stopped(run.name, was_running, time.monotonic() - began, left)


def status(store: Store) -> tuple[Told, ...]:
    """Every endpoint in the state, as it is now."""
    return tuple(_told(run) for run in store.read().runs)


def _told(run: Run) -> Told:
    processes = run.processes()
    state, ended, why = "ended", None, None
    if run.running:
        state = "starting" if not run.ready else ("ready" if _answers(run.url) else "not answering")
    else:
        found = _how_it_ended(run)
        ended = None if found.ended is None else str(found.ended)
        if found.likely is not None:
            why = f"{found.likely.title}: {found.likely.quote}"
        elif found.first_error is not None:
            why = found.first_error
    about = (run.name, state, run.engine, run.model, run.url, run.started_at, len(processes), run.log, run.report)
    return Told(*about, ended, why)


def _answers(url: str) -> bool:
    import httpx

    try:
        return httpx.get(f"{url}/health", timeout=2.0, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def _how_it_ended(run: Run) -> Diagnosis:
    from k3stack.errors import K3Error
    from k3stack.launch.logfiles import read_text

    ended = None
    with suppress(OSError, ValueError, KeyError):
        ended = Ended.of(int(json_value((Path(run.folder) / ENDED).read_text())["code"]))
    try:
        text = read_text(Path(run.log))
    except K3Error:
        text = ""
    return recognise(text, ended, run.engine)
