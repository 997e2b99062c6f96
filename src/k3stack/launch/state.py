"""Which endpoints run here: one small JSON file, changed under a lock and replaced whole.

It lies in $XDG_STATE_HOME/k3stack (by default ~/.local/state/k3stack). Beside it is a folder for each run, with the
engine's log, how it ended, and the report.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from k3stack.errors import InputError, UnavailableError
from k3stack.files import json_value, write_text
from k3stack.launch.process import Identity, alive, identity_of, processes_of
from k3stack.values import dump, load

__all__ = ["Run", "State", "Store", "default_folder"]

_KEPT_FOLDERS = 10


@dataclass(frozen=True, slots=True)
class Run:
    """One endpoint.

    Attributes:
        id: also the mark of its processes.
        owner: the process of `k3 up` that started it.
        supervisor: the process that owns the engine.
        process: the engine's first process.
        ready: whether it answered a request, and was handed over.
        folder: of the run: log, how it ended, report.
    """

    name: str
    id: str
    engine: str
    model: str
    url: str
    folder: str
    log: str
    started_at: str
    owner: Identity
    supervisor: Identity | None = None
    process: Identity | None = None
    ready: bool = False
    container: str | None = None
    report: str | None = None

    @property
    def running(self) -> bool:
        """Whether anything of it runs."""
        owners = [one for one in (self.owner, self.supervisor) if one is not None]
        return any(alive(one) for one in owners) or bool(self.processes())

    def processes(self) -> tuple[int, ...]:
        """Every process of its engine."""
        return processes_of(self.id, self.process, self.supervisor)


@dataclass(frozen=True, slots=True)
class State:
    """Everything the file holds."""

    runs: tuple[Run, ...] = field(default=())
    version: int = 1

    def run(self, name: str) -> Run | None:
        """The run with this name."""
        return next((one for one in self.runs if one.name == name), None)

    def with_run(self, run: Run) -> State:
        """This run instead of the one with its name."""
        return replace(self, runs=(*(one for one in self.runs if one.name != run.name), run))

    def without(self, run_id: str) -> State:
        """Without a run."""
        return replace(self, runs=tuple(one for one in self.runs if one.id != run_id))


def default_folder() -> Path:
    """Where the state lies when nobody says otherwise."""
    home = os.environ.get("XDG_STATE_HOME")
    return (Path(home) if home else Path.home() / ".local" / "state") / "k3stack"


_ELSEWHERE = "Name another folder with --state."


class Store:
    """The state file of a folder.

    Args:
        folder: made when it is first written to.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()  # a supervisor works in another folder
        self.path = self.folder / "state.json"

    def read(self) -> State:
        """What the file holds; nothing when it is not there.

        Raises:
            InputError: it is damaged.
        """
        try:
            text = self.path.read_bytes()
        except FileNotFoundError:
            return State()
        except OSError as error:
            raise InputError(f"cannot be read: {error.strerror}", where=self.path, hint=_ELSEWHERE) from error
        try:
            return load(State, json_value(text))
        except (ValueError, InputError) as error:
            hint = "Remove the file; processes of a run are found by their mark all the same."
            raise InputError(f"is no state of k3stack: {error}", where=self.path, hint=hint) from error

    @contextmanager
    def change(self) -> Iterator[_Change]:
        """Read, change and write under the lock; nothing is written when the block fails.

        Raises:
            UnavailableError: the folder cannot be written.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = (self.folder / "state.lock").open("w")
        except OSError as error:
            raise UnavailableError(
                f"cannot be written: {error.strerror}", where=self.folder, hint=_ELSEWHERE
            ) from error
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            change = _Change(self.read())
            yield change
            if change.state != change.before:
                try:
                    write_text(self.path, json.dumps(dump(change.state), indent=2) + "\n")
                except OSError as error:
                    hint = f"Free space there. {_ELSEWHERE}"
                    raise UnavailableError(
                        f"cannot be written: {error.strerror}", where=self.path, hint=hint
                    ) from error

    def run_folder(self, run_id: str) -> Path:
        """The folder of a run, made when it is not there; folders of old runs go.

        Raises:
            UnavailableError: it cannot be made.
        """
        runs = self.folder / "runs"
        folder = runs / run_id
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UnavailableError(f"cannot be made: {error.strerror}", where=folder, hint=_ELSEWHERE) from error
        used = {one.id for one in self.read().runs} | {run_id}
        old = sorted((one for one in runs.iterdir() if one.name not in used), key=lambda one: one.stat().st_mtime)
        for one in old[:-_KEPT_FOLDERS]:
            shutil.rmtree(one, ignore_errors=True)
        return folder


class _Change:
    """The state within `Store.change`."""

    def __init__(self, before: State) -> None:
        self.before = before
        self.state = before


def own_identity() -> Identity:
    """This process."""
    found = identity_of(os.getpid())
    assert found is not None
    return found
