"""Following a start: phases with their times, until the endpoint answers, or why it does not.

Everything is looked at several times a second: a dead or stopped process is told within two seconds. Of a part that is
gone this is told at once, and why, a moment later.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from k3stack.launch.knowledge import failures
from k3stack.launch.launcher import Launched
from k3stack.launch.parts import Parts
from k3stack.launch.phases import PhaseReader, phases_of
from k3stack.launch.process import alive, states_of
from k3stack.launch.ready import ReadyProbe
from k3stack.launch.reasons import (
    after_end,
    alarm,
    foreign_door,
    full_disks,
    lost_part,
    refused_request,
    stopped_process,
    stuck,
)
from k3stack.launch.recognise import Cause, Diagnosis, recognise
from k3stack.values import format_bytes

__all__ = ["Followed", "Patience", "death", "follow"]

_TICK_S = 0.2
_WATCH_S = 1.0
_LAST_WORD_S = 1.0
"""How long the engine's first process has to say why one of its parts is gone."""
_TAIL = 200_000


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait.

    Attributes:
        whole_s: for the whole start.
        quiet_s: without a log line, processor time or reading before it is called stuck; told after a tenth of it.
    """

    whole_s: float = 2 * 3600.0
    quiet_s: float = 600.0


@dataclass(frozen=True, slots=True)
class Followed:
    """How a start went.

    Attributes:
        phases: when each phase began, in seconds since the start.
        model: the name it answers to.
        first_token_s: how long the first request took.
        diagnosis: why it failed.
    """

    ready: bool
    seconds: float
    phases: dict[str, float]
    model: str | None = None
    first_token_s: float | None = None
    diagnosis: Diagnosis | None = None


@dataclass
class _Log:
    """The engine's log, read as it grows; the last part is kept for recognising."""

    path: Path
    reader: PhaseReader
    at: int = 0
    tail: str = ""

    def read(self, now_s: float) -> list[str]:
        """New lines; unknown ones are new lines all the same."""
        try:
            with self.path.open("rb") as file:
                file.seek(self.at)
                data = file.read()
        except OSError:
            return []
        self.at += len(data)
        text = data.decode(errors="replace")
        self.tail = (self.tail + text)[-_TAIL:]
        return self.reader.feed(text, now_s)


@dataclass
class _Watch:
    """Whether anything still moves: the log, the processors, the disks."""

    launched: Launched
    log: _Log
    moved_at: float = field(default_factory=time.monotonic)
    _last: tuple[int, int, int] = (0, 0, 0)
    _at: float = 0.0
    told: bool = False

    def quiet_s(self) -> float:
        """For how long nothing has moved; looks at most once a second."""
        now = time.monotonic()
        if now - self._at >= _WATCH_S:
            ticks, io_bytes = self.launched.busy()
            seconds = now - self._at if self._at else _WATCH_S
            before = self._last
            self._last, self._at = (self.log.at, ticks, io_bytes), now
            # An idle server wakes up now and then: five hundredths of a processor and a megabyte are no work.
            if self.log.at > before[0] or ticks - before[1] > 5 * seconds or io_bytes - before[2] > 2**20 * seconds:
                self.moved_at, self.told = now, False
        return now - self.moved_at


def follow(
    launched: Launched,
    patience: Patience = Patience(),
    size_bytes: int | None = None,
    on_line: Callable[[str], None] = lambda _: None,
    on_status: Callable[[str], None] = lambda _: None,
    on_log: Callable[[str], None] = lambda _: None,
) -> Followed:
    """Follow until the endpoint answered one request, or until it is clear that it will not.

    Args:
        size_bytes: of the weights, for the rate at which they load.
        on_line: told what stays: phases, alarms.
        on_status: told the state of things, for a line that is drawn over.
        on_log: given the tail of the log whenever a phase begins.
    """
    began = time.monotonic()
    reader = PhaseReader(launched.start.engine)
    log, probe = _Log(launched.log, reader), ReadyProbe(launched)
    watch, phase, warned, parts = _Watch(launched, log), "start", set[str](), Parts(launched)
    probe.begin()
    failures()  # read while the engine begins: who tells of an end has no time for it
    try:
        while True:
            now = time.monotonic() - began
            launched.poll()
            parts.look()
            if parts.lost is not None and "lost" not in warned:
                warned.add("lost")
                on_line(f"{now:7.1f} s  {parts.lost}")
            lines = log.read(now)
            if reader.current != phase:
                for line in _passed(reader, phase, size_bytes):
                    on_line(line)
                phase = reader.current
                on_log(log.tail)
            if probe.ready:
                reader.began_s.setdefault("ready", now)
                on_log(log.tail)
                return Followed(True, now, dict(reader.began_s), probe.model, probe.first_token_s)
            found = _over(launched, log, probe, parts) or _stalled(launched, watch, patience, now, reader)
            if found is not None:
                log.read(now)
                return Followed(False, now, dict(reader.began_s), diagnosis=replace(found, phase=reader.title))
            _warn(lines, log, warned, on_line)
            _tell_of_builds(reader, warned, on_line)
            _warn_of_full_disks(log, warned, on_line)
            if watch.quiet_s() > patience.quiet_s / 10 and not watch.told:
                watch.told = True
                on_line(f"nothing has moved for {watch.quiet_s():.0f} s in the phase: {reader.title}")
            on_status(_status(reader, now, size_bytes, probe))
            time.sleep(_TICK_S)
    finally:
        probe.end()


def _over(launched: Launched, log: _Log, probe: ReadyProbe, parts: Parts) -> Diagnosis | None:
    """Why it is over, if it is."""
    if launched.refused is not None or launched.ended is not None:
        return after_end(launched, log.path, parts.lost)
    if parts.lost is not None and time.monotonic() - parts.lost.at > _LAST_WORD_S:
        return lost_part(launched, log.path, parts.lost)
    if probe.foreign is not None:
        return foreign_door(launched, probe.foreign)
    if probe.refused is not None:
        # An engine that dies in its first request says why in its log, a moment later.
        time.sleep(_WATCH_S)
        launched.poll()
        return after_end(launched, log.path, parts.lost) if launched.ended else refused_request(launched, probe.refused)
    if launched.engine is not None:
        stopped = [pid for pid, state in states_of(launched.processes()).items() if state in "Tt"]
        if stopped:
            return stopped_process(stopped)
    return None


def death(launched: Launched, parts: Parts, suspected: bool = False) -> Diagnosis | None:
    """Why an engine that was ready is no more; None while it lives. Waits a moment for its last word.

    Args:
        suspected: something failed, so look for a second: who is killed may still be seen for some milliseconds.
    """
    until = time.monotonic() + (_LAST_WORD_S if suspected else 0.0)
    while not _is_gone(launched, parts):
        if time.monotonic() >= until:
            return None
        time.sleep(_TICK_S)
    deadline = time.monotonic() + 5 * _LAST_WORD_S
    while launched.ended is None and time.monotonic() < deadline:
        time.sleep(_TICK_S)
        launched.poll()
    if launched.ended is None and parts.lost is not None:
        return lost_part(launched, launched.log, parts.lost)
    return after_end(launched, launched.log, parts.lost)


def _is_gone(launched: Launched, parts: Parts) -> bool:
    launched.poll()
    parts.look()
    runs = launched.engine is not None and alive(launched.engine)
    return launched.ended is not None or parts.lost is not None or not runs


def _stalled(
    launched: Launched, watch: _Watch, patience: Patience, now: float, reader: PhaseReader
) -> Diagnosis | None:
    if watch.quiet_s() > patience.quiet_s:
        return stuck(launched, f"nothing moved for {watch.quiet_s():.0f} s", reader.title)
    if now > patience.whole_s:
        return stuck(launched, f"not ready after {now:.0f} s", reader.title)
    return None


def _warn(lines: list[str], log: _Log, warned: set[str], on_line: Callable[[str], None]) -> None:
    """Tell at once what the log says is wrong; the process itself may take minutes to end."""
    if not any(alarm(line) for line in lines):
        return
    for cause in recognise(log.tail).causes:
        if not cause.symptom and cause.id not in warned:
            warned.add(cause.id)
            on_line(f"the log says: {cause.title}: {_short(cause)}")


def _tell_of_builds(reader: PhaseReader, warned: set[str], on_line: Callable[[str], None]) -> None:
    """A kernel that is compiled at the first start moves nothing that one sees, for minutes."""
    for name in reader.builds:
        if f"builds {name}" not in warned:
            warned.add(f"builds {name}")
            on_line(f"FlashInfer compiles {name}: the first start can stand here for minutes, later ones have it built")


def _warn_of_full_disks(log: _Log, warned: set[str], on_line: Callable[[str], None]) -> None:
    """A full disk is told when it fills: what an engine writes after that is lost."""
    for folder in full_disks((log.path.parent, Path(tempfile.gettempdir()))):
        if str(folder) not in warned:
            warned.add(str(folder))
            on_line(f"the disk of {folder} is full")


def _short(cause: Cause) -> str:
    return cause.quote if len(cause.quote) <= 160 else f"{cause.quote[:157]}..."


def _passed(reader: PhaseReader, before: str, size_bytes: int | None) -> Iterator[str]:
    """A line for every phase that is over since `before` began, with the one that follows it."""
    titles = {phase.id: phase.title for phase in phases_of(reader.engine)}
    known = list(reader.began_s)
    for one, following in pairwise(known[known.index(before) :]):
        began = reader.began_s[following]
        took = began - reader.began_s[one]
        rate = ""
        if one == "load" and size_bytes and took > 0.5:
            rate = f", {format_bytes(round(size_bytes / took))}/s"
        yield f"{began:7.1f} s  {titles[one]} took {took:.1f} s{rate}; {titles[following]}"


def _status(reader: PhaseReader, now: float, size_bytes: int | None, probe: ReadyProbe) -> str:
    said = f"{now:7.1f} s  {reader.title}"
    done = reader.progress.get(reader.current)
    if done is not None and 0 < done.share < 1:
        said += f" {done.share:.0%}"
        spent = done.at_s - reader.began_s[reader.current]
        if reader.current == "load" and size_bytes and spent > 0.5:
            said += f" at {format_bytes(round(done.share * size_bytes / spent))}/s"
        left = reader.left_s(now)
        if left is not None:
            said += f", {left:.0f} s left"
    return f"{said}, waiting for the first token" if probe.healthy else said
