"""Processes of a run, wherever they went.

A pid alone is no name: it may belong to another process by now; a pid with its start time is one. A run's processes are
told by a mark in their environment, by their session (an engine that sets its own title overwrites the environment that
the kernel shows), and by being below one of those. Linux only, as the engines are. Standard library only: the
supervisor imports this.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "MARK",
    "Activity",
    "Identity",
    "activity_of",
    "alive",
    "children_of",
    "identity_of",
    "kill_all",
    "oom_kills",
    "states_of",
]

MARK = "K3STACK_RUN"
"""The environment variable that holds the run's id in every process of a run."""

_CHECK_S = 0.05


@dataclass(frozen=True, slots=True)
class Identity:
    """A process that cannot be mistaken for another: its pid, and when it started (clock ticks since boot)."""

    pid: int
    started: int


@dataclass(frozen=True, slots=True)
class Activity:
    """What processes have used so far: processor ticks, and bytes read and written. Growth means that they work."""

    ticks: int
    io_bytes: int


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat behind the name, which may hold anything; field 3 of proc(5) is at 0."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def identity_of(pid: int) -> Identity | None:
    """The identity of a running process; None when there is none, or only its exit status is left."""
    fields = _stat(pid)
    return None if fields is None or fields[0] in "ZX" else Identity(pid, int(fields[19]))


def alive(one: Identity) -> bool:
    """Whether this very process runs."""
    return identity_of(one.pid) == one


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 - only names are needed


def processes_of(run_id: str, engine: Identity | None = None, supervisor: Identity | None = None) -> tuple[int, ...]:
    """Every running process of a run; the supervisor itself is none of them.

    Args:
        engine: the engine's first process; it leads the session.
        supervisor: whose descendants all belong to the run.
    """
    stats = {pid: fields for pid in _pids() if (fields := _stat(pid)) is not None and fields[0] not in "ZX"}
    mark = f"{MARK}={run_id}".encode()
    found = {pid for pid, fields in stats.items() if _in_session(fields, engine) or mark in _environment(pid)}
    above = {*found, supervisor.pid} if supervisor is not None and alive(supervisor) else {*found}
    found |= set(_below(above, {pid: int(fields[1]) for pid, fields in stats.items()}))
    return tuple(sorted(found - {os.getpid(), supervisor.pid if supervisor else 0}))


def _in_session(fields: list[str], engine: Identity | None) -> bool:
    """Whether a process is in the engine's session; a later session of that number began with another leader."""
    if engine is None or int(fields[3]) != engine.pid or int(fields[19]) < engine.started:
        return False
    leader = identity_of(engine.pid)
    return leader is None or leader == engine


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def children_of(pid: int) -> tuple[int, ...]:
    """Every descendant of a process."""
    stats = ((one, _stat(one)) for one in _pids())
    return _below({pid}, {one: int(fields[1]) for one, fields in stats if fields is not None})


def _below(roots: Iterable[int], parent_of: dict[int, int]) -> tuple[int, ...]:
    """Every process below these."""
    children: dict[int, list[int]] = {}
    for pid, parent in parent_of.items():
        children.setdefault(parent, []).append(pid)
    found, queue = list[int](), list(roots)
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return tuple(found)


def states_of(pids: Iterable[int]) -> dict[int, str]:
    """The state letters of processes: R, S, D, T (stopped), Z (dead, not collected)."""
    stats = ((pid, _stat(pid)) for pid in pids)
    return {pid: fields[0] for pid, fields in stats if fields is not None}


def oom_kills() -> int | None:
    """How many processes the kernel has killed for want of memory since it booted; None where it does not say."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        rows = dict(line.split() for line in Path("/proc/vmstat").read_text().splitlines())
        return int(rows["oom_kill"])
    return None


def activity_of(pids: Iterable[int]) -> Activity:
    """What these processes have used together."""
    ticks = io_bytes = 0
    for pid in pids:
        fields = _stat(pid)
        if fields is not None:
            ticks += int(fields[11]) + int(fields[12])
        with contextlib.suppress(OSError, ValueError):
            rows = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
            io_bytes += int(rows["rchar"]) + int(rows["wchar"]) + int(rows["read_bytes"])
    return Activity(ticks, io_bytes)


def kill_all(find: Callable[[], Iterable[int]], grace_s: float) -> tuple[int, ...]:
    """Ask processes to end, wait, then kill; looks again until none is found. Returns what even that left.

    Args:
        find: the processes that must go, as they are now.
        grace_s: how long they have to end by themselves.
    """
    _signal(find(), signal.SIGTERM)
    if _gone(find, grace_s):
        return ()
    deadline = time.monotonic() + 5.0
    while time.monotonic() < deadline:
        _signal(find(), signal.SIGKILL)
        if _gone(find, 0.3):
            return ()
    return tuple(find())


def _gone(find: Callable[[], Iterable[int]], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while True:
        if not tuple(find()):
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(_CHECK_S)


def _signal(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
            if number == signal.SIGTERM:
                os.kill(pid, signal.SIGCONT)  # a stopped process would never see it
