"""The small process that owns an engine: it starts it, collects every process it leaves, and ends all of them.

`k3 up` starts it with a pipe on stdin. The first line is what to start (JSON). After that the pipe is a leash: when it
closes before the word `release` came, `k3 up` is gone, however it went, and everything is ended. Released, it lives on
until the engine ends or SIGTERM comes (`k3 down`). On stdout it tells, one JSON object a line: started, ended, cleaned.

It is a subreaper: an engine's children that lose their parent become its own, so none is lost. Should it be killed
itself, the kernel kills the engine with it (PR_SET_PDEATHSIG), and mark and session find the rest.

Run as `python -m k3stack.launch.supervisor`. Standard library only, so that it starts at once.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from k3stack.launch.process import MARK, children_of, identity_of, kill_all

__all__ = ["ENDED", "main"]

ENDED = "ended.json"
"""The file in the run's folder that says how the engine ended."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_TICK_S = 0.1
_LINGER_S = 3.0
_OPEN_FILES = 1_048_576


class _Supervisor:
    """One engine, from its start until nothing of it is left."""

    def __init__(self, wanted: dict[str, Any]) -> None:
        self.wanted = wanted
        self.folder = Path(wanted["folder"])
        self.stopping = False
        self.released = False

    def run(self) -> int:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, self._stop)
        engine = self._start()
        if engine is None:
            return 1
        code = self._watch(engine)
        self._tell("ended", code=code, asked=self.stopping)
        self._write(code)
        left = self._clean(engine)
        self._tell("cleaned", left=list(left))
        return 0

    def _stop(self, number: int, frame: Any) -> None:
        self.stopping = True

    def _start(self) -> subprocess.Popen[bytes] | None:
        _raise_open_files()
        environment = {**os.environ, **self.wanted["environment"], MARK: self.wanted["run"]}
        supervisor = os.getpid()

        def die_with_supervisor() -> None:
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != supervisor:
                os._exit(1)

        try:
            with Path(self.wanted["log"]).open("ab", buffering=0) as log:
                engine = subprocess.Popen(
                    self.wanted["words"],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    preexec_fn=die_with_supervisor,
                    cwd=self.wanted.get("cwd"),
                )
        except (OSError, subprocess.SubprocessError) as error:
            self._tell("refused", error=f"{error}")
            return None
        who = identity_of(engine.pid)
        self._tell("started", pid=engine.pid, started=who.started if who else 0)
        return engine

    def _watch(self, engine: subprocess.Popen[bytes]) -> int:
        """Wait for the engine's end; asks for it when told to stop, or when the leash breaks."""
        asked = False
        while (code := engine.poll()) is None:
            self._listen()
            _collect(engine.pid)
            if self.stopping and not asked:
                asked = True
                deadline = time.monotonic() + float(self.wanted["grace_s"])
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(engine.pid, signal.SIGTERM)
                    os.killpg(engine.pid, signal.SIGCONT)
            if asked and time.monotonic() > deadline:
                for pid in (engine.pid, *children_of(os.getpid())):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
        return code

    def _listen(self) -> None:
        """One look at the leash."""
        if self.released:
            time.sleep(_TICK_S)
            return
        readable, _, _ = select.select([0], [], [], _TICK_S)
        if readable:
            word = os.read(0, 64)
            if b"release" in word:
                self.released = True
            elif not word:
                self.released = self.stopping = True

    def _clean(self, engine: subprocess.Popen[bytes]) -> tuple[int, ...]:
        """End what the engine left: its children often need a moment to see that it is gone."""

        def left() -> tuple[int, ...]:
            _collect(engine.pid)
            return children_of(os.getpid())

        deadline = time.monotonic() + min(_LINGER_S, float(self.wanted["grace_s"]) / 2)
        while left() and time.monotonic() < deadline:
            time.sleep(_TICK_S)
        found = kill_all(left, 2.0)
        container = self.wanted.get("container")
        if container:
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                subprocess.run(["docker", "rm", "--force", container], capture_output=True, timeout=60, check=False)
        return found

    def _tell(self, what: str, **more: Any) -> None:
        with contextlib.suppress(OSError):
            os.write(1, json.dumps({"event": what, "at": time.time(), **more}).encode() + b"\n")

    def _write(self, code: int) -> None:
        """How it ended, for those who ask later; a full disk must not keep us from cleaning up."""
        with contextlib.suppress(OSError):
            new = self.folder / f".{ENDED}.part"
            new.write_text(json.dumps({"code": code, "at": time.time(), "asked": self.stopping}))
            new.replace(self.folder / ENDED)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _raise_open_files() -> None:
    """The soft limit up to the hard one: shards, sockets and requests need many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _collect(engine: int) -> None:
    """Collect orphans that ended; the engine itself is left for `poll`."""
    while True:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if found is None or found.si_pid == engine:
            return
        with contextlib.suppress(ChildProcessError):
            os.waitpid(found.si_pid, os.WNOHANG)


def main() -> int:
    """Read what to start, own it, and end when nothing of it is left."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    line = b""
    while not line.endswith(b"\n"):
        more = os.read(0, 65_536)
        if not more:
            return 1  # whoever started us is gone before saying what to start
        line += more
    first, _, rest = line.partition(b"\n")
    supervisor = _Supervisor(json.loads(first))
    supervisor.released = b"release" in rest
    return supervisor.run()


if __name__ == "__main__":
    sys.exit(main())
