"""Where a start is and how far, told from the engine's log lines. Patterns in data/phases.yaml."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import date
from functools import lru_cache
from importlib.resources import files

import yaml
from pydantic import BaseModel, ConfigDict

from k3stack.errors import NotKnownError

__all__ = ["Phase", "PhaseReader", "Progress", "phases_of"]


class Phase(BaseModel):
    """One phase of a start: it begins at the first line that a pattern finds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    title: str
    patterns: tuple[str, ...]


class _Engine(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    source: str
    date: date
    phases: tuple[Phase, ...]
    progress: dict[str, tuple[str, ...]]
    builds: tuple[str, ...] = ()


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    engines: dict[str, _Engine]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a phase is: a share between 0 and 1, and when that was read (seconds since the start)."""

    share: float
    at_s: float


@lru_cache(maxsize=1)
def _table() -> _Table:
    return _Table.model_validate(yaml.safe_load(files("k3stack.launch").joinpath("data/phases.yaml").read_text()))


def phases_of(engine: str) -> tuple[Phase, ...]:
    """The phases of an engine's start, in their order.

    Raises:
        NotKnownError: no such engine.
    """
    return _engine(engine).phases


def _engine(name: str) -> _Engine:
    found = _table().engines.get(name)
    if found is None:
        raise NotKnownError(f"{name!r} is no engine whose log is known", hint=f"Known: {', '.join(_table().engines)}.")
    return found


_SPLIT = re.compile(r"\r\n|\n|\r")


@dataclass
class PhaseReader:
    """Fed with text as it comes, knows the current phase, when each began, and how far it is.

    Progress bars end their lines with a carriage return, so that counts as a line's end too.

    Attributes:
        builds: what the engine began to compile that others have built, by name.
    """

    engine: str
    current: str = "start"
    began_s: dict[str, float] = field(default_factory=lambda: {"start": 0.0})
    progress: dict[str, Progress] = field(default_factory=dict)
    builds: list[str] = field(default_factory=list)
    _rest: str = ""
    _order: dict[str, int] = field(default_factory=dict)
    _starts: list[tuple[str, re.Pattern[str]]] = field(default_factory=list)
    _shares: dict[str, list[re.Pattern[str]]] = field(default_factory=dict)
    _builds: list[re.Pattern[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        known = _engine(self.engine)
        self._order = {phase.id: at for at, phase in enumerate(known.phases)}
        self._starts = [
            (phase.id, re.compile("|".join(f"(?:{one})" for one in phase.patterns)))
            for phase in known.phases
            if phase.patterns
        ]
        self._shares = {name: [re.compile(one) for one in patterns] for name, patterns in known.progress.items()}
        self._builds = [re.compile(one) for one in known.builds]

    @property
    def title(self) -> str:
        """The current phase in words."""
        return next(phase.title for phase in phases_of(self.engine) if phase.id == self.current)

    def feed(self, text: str, now_s: float) -> list[str]:
        """Take more of the log; returns its complete lines."""
        *lines, self._rest = _SPLIT.split(self._rest + text)
        for line in lines:
            self._read(line, now_s)
        if self._rest:
            self._read_progress(self._rest, now_s)  # a bar that redraws itself has no end of line yet
        return lines

    def _read(self, line: str, now_s: float) -> None:
        for name, pattern in self._starts:
            if self._order[name] > self._order[self.current] and pattern.search(line):
                self.current = name
                self.began_s[name] = now_s
        self.builds += [match["what"] for one in self._builds if (match := one.search(line))]
        self._read_progress(line, now_s)

    def _read_progress(self, line: str, now_s: float) -> None:
        for pattern in self._shares.get(self.current, ()):
            match = pattern.search(line)
            if match is None:
                continue
            found = match.groupdict()
            if found.get("done") and int(found["total"] or 0):
                share = int(found["done"] or 0) / int(found["total"] or 1)
            else:
                share = int(found["percent"] or 0) / 100
            if share >= self.progress.get(self.current, Progress(-1.0, 0.0)).share:
                self.progress[self.current] = Progress(min(share, 1.0), now_s)
            return

    def left_s(self, now_s: float) -> float | None:
        """Seconds left in the current phase if it goes on at its average rate; None when that is not known."""
        done = self.progress.get(self.current)
        if done is None or not 0 < done.share < 1:
            return None
        spent = max(done.at_s - self.began_s[self.current], 0.001)
        return max(spent / done.share * (1 - done.share) - (now_s - done.at_s), 0.0)
