"""Starting a supervisor and holding its leash: from here on nothing can be left running by accident."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from k3stack.errors import UnavailableError
from k3stack.launch.process import Identity, activity_of, identity_of, kill_all, oom_kills, processes_of
from k3stack.launch.recognise import Ended
from k3stack.launch.start import Start

__all__ = ["GRACE_S", "Launched"]

_STARTED_S = 20.0

GRACE_S = 20.0
"""How long an engine has to end by itself once it was asked."""


class Launched:
    """A supervisor and the engine that it owns.

    Args:
        start: what to start.
        run: the run's id, the mark of all its processes.
        folder: of the run.
        log: where the engine's output goes.
    """

    def __init__(self, start: Start, run: str, folder: Path, log: Path, grace_s: float = GRACE_S) -> None:
        self.start, self.run, self.folder, self.log, self.grace_s = start, run, folder, log, grace_s
        self.ended: Ended | None = None
        self.refused: str | None = None
        self.engine: Identity | None = None
        self.cleaned = False
        self.oom_kills = oom_kills()
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._owner: Identity | None = None
        self._found: tuple[int, ...] = ()
        self._look_again = 0.0
        self._rest = b""
        # Made before the supervisor: whatever interrupts us after this, closing the leash ends everything.
        self._leash_end, self._leash = os.pipe()
        self._told, self._told_end = os.pipe()

    def begin(self) -> None:
        """Start the supervisor, and through it the engine; returns when there is a process.

        Raises:
            UnavailableError: there is no process to be had.
        """
        environment = {**os.environ, "PYTHONPATH": _own_path()}
        try:
            with (self.folder / "supervisor.log").open("ab") as own_log:
                self._supervisor = subprocess.Popen(
                    [sys.executable, "-m", "k3stack.launch.supervisor"],
                    stdin=self._leash_end,
                    stdout=self._told_end,
                    stderr=own_log,
                    start_new_session=True,
                    env={**environment, "K3STACK_SUPERVISES": self.run},
                    cwd="/",
                )
        except OSError as error:
            raise UnavailableError(f"no process could be started: {error}") from error
        self._owner = identity_of(self._supervisor.pid)
        os.close(self._leash_end)
        os.close(self._told_end)
        self._leash_end = self._told_end = -1
        wanted: dict[str, Any] = {
            "run": self.run,
            "folder": str(self.folder),
            "log": str(self.log),
            "words": list(self.start.words),
            # The engine gets our own PYTHONPATH back, unless the start sets one.
            "environment": {"PYTHONPATH": os.environ.get("PYTHONPATH", ""), **self.start.environment},
            "grace_s": self.grace_s,
            "container": self.start.container,
            "cwd": str(Path.cwd()),
        }
        os.write(self._leash, json.dumps(wanted).encode() + b"\n")
        os.set_blocking(self._told, False)
        deadline = time.monotonic() + _STARTED_S
        while self.engine is None and self.refused is None and time.monotonic() < deadline:
            time.sleep(0.02)
            self.poll()

    @property
    def supervisor(self) -> Identity | None:
        """The supervisor."""
        return self._owner

    def processes(self) -> tuple[int, ...]:
        """Every process of the engine, as of a fifth of a second ago; of longer ago where looking itself takes long."""
        now = time.monotonic()
        if now >= self._look_again:
            self._found = self._look()
            done = time.monotonic()
            self._look_again = done + max(0.2, 5 * (done - now))
        return self._found

    def _look(self) -> tuple[int, ...]:
        return processes_of(self.run, self.engine, self._owner)

    def poll(self) -> None:
        """Take what the supervisor has told since."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._told, 65_536):
                *lines, self._rest = (self._rest + data).split(b"\n")
                for line in lines:
                    self._take(json.loads(line))
        gone = self._supervisor is not None and self._supervisor.poll() is not None
        if gone and self.ended is None and self.refused is None:
            self.ended = Ended(None, 9)  # nobody but SIGKILL ends a supervisor without a word

    def _take(self, told: dict[str, Any]) -> None:
        match told["event"]:
            case "started":
                self.engine = Identity(int(told["pid"]), int(told["started"]))
            case "refused":
                self.refused = str(told["error"])
            case "ended":
                self.ended = Ended.of(int(told["code"]))
            case "cleaned":
                self.cleaned = True

    def release(self) -> None:
        """Hand the engine over: it lives on without us."""
        os.write(self._leash, b"release\n")
        self._close()
        if self._supervisor is not None:
            # It outlives us as a rule; where it does not, somebody must collect its exit status.
            threading.Thread(target=self._supervisor.wait, name="k3-supervisor", daemon=True).start()

    def end(self) -> tuple[int, ...]:
        """End everything, and make sure of it. Returns processes that even SIGKILL left; nobody expects one."""
        self._close()
        if self._supervisor is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._supervisor.terminate()  # one that was released does not mind its leash any more
                self._supervisor.wait(self.grace_s + 15.0)
        left = kill_all(self._look, 0.0) if self._look() else ()
        if self._supervisor is not None and self._supervisor.poll() is None:
            self._supervisor.kill()
            self._supervisor.wait()
        return left

    def _close(self) -> None:
        for descriptor in (self._leash, self._leash_end, self._told_end, self._told):
            if descriptor >= 0:
                with contextlib.suppress(OSError):
                    os.close(descriptor)
        self._leash = self._leash_end = self._told_end = self._told = -1

    def spared(self) -> bool:
        """Whether the kernel says that it has killed nothing for want of memory since the start."""
        return self.oom_kills is not None and self.oom_kills == oom_kills()

    def busy(self) -> tuple[int, int]:
        """Processor ticks and bytes that the engine has used so far."""
        used = activity_of(self.processes())
        return used.ticks, used.io_bytes


def _own_path() -> str:
    """A PYTHONPATH with which the supervisor finds this very k3stack."""
    here = str(Path(__file__).parents[2])
    return os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH", "")]))
