"""From a log, and how its process ended, to ranked causes: the first cause, not the last symptom.

A line counts only when it is not at level INFO, WARNING or DEBUG, and when the server did not become ready after it:
what did not keep a server from starting is no cause of anything. Nor is an error of one request, after which a server
that was ready went on. Of what is left, the earliest line wins, because an error in a worker comes before the errors of
those who waited for it; in a server that was ready, the one nearest to its end.
What containers, schedulers and collectors write around the lines does not count.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache

from k3stack.launch.knowledge import Failure, failures
from k3stack.launch.loglines import LogLines, bare
from k3stack.launch.logtext import left_out, plain
from k3stack.launch.unknown import Part, first_error, part_of, places, raised_at, said_at

__all__ = ["MAX_TEXT", "Cause", "Diagnosis", "Ended", "recognise"]

MAX_TEXT = 16 * 2**20
"""A longer log is read at its beginning and at its end, half of this each: failures stand in either."""

_NEAR_LINES = 40
"""How far before a specific failure its general form may stand: eight ranks write their tracebacks into each other."""

_LAST_LINES = 400
"""How far before the end of a server that was ready its cause is looked for first."""

_NAMED = re.compile(r"\(\?P<\w+>")

_PLACE = re.compile(r"\{(\w+)\|([^}]*)\}")


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended: by an exit code, or by a signal (then the code is None)."""

    code: int | None
    signal: int | None = None

    @classmethod
    def of(cls, returncode: int) -> Ended:
        """From what `subprocess` returns, or a shell: -9 and 137 are both signal 9."""
        number = -returncode if returncode < 0 else returncode - 128
        if (returncode < 0 or returncode > 128) and number in _SIGNALS:
            return cls(None, number)
        return cls(returncode)

    def __str__(self) -> str:
        if self.signal is None:
            return f"ended with exit code {self.code}"
        return f"was ended by {_SIGNALS.get(self.signal, f'signal {self.signal}')}"


_SIGNALS = {one.value: one.name for one in signal.Signals}


@dataclass(frozen=True, slots=True)
class Cause:
    """A known failure that was recognised.

    Attributes:
        line: of the log, from 1; None when it was told from how the process ended.
        quote: that line.
        symptom: it only says that something else failed.
        when: month, day and time of that line, or of the last one before it that has them.
    """

    id: str
    title: str
    cause: str
    fix: str
    source: str
    date: str
    line: int | None
    quote: str
    symptom: bool = False
    when: str = ""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What a log says about a failure.

    Attributes:
        causes: the likeliest first; empty when nothing known was found.
        first_error: the first line that is an error by its form, if no known failure is in the log.
        part: the part of the engine that it was raised in, where its traceback tells.
        of_a_request: the first error after the server was ready, where it went on: some request's, no failure.
        ready: whether the log says that the server became ready.
        ended: how the process ended, if that is known.
        phase: where it was when the log ended.
    """

    causes: tuple[Cause, ...]
    first_error: str | None
    ready: bool
    ended: Ended | None = None
    phase: str | None = None
    part: Part | None = None
    of_a_request: str | None = None

    @property
    def failed(self) -> bool:
        """Whether anything speaks of a failure."""
        return bool(self.causes) or self.first_error is not None

    @property
    def likely(self) -> Cause | None:
        """The likeliest cause."""
        return self.causes[0] if self.causes else None


def recognise(text: str, ended: Ended | None = None, engine: str | None = None) -> Diagnosis:
    """The causes that a log speaks of.

    Args:
        text: the log, whole or its beginning and end.
        ended: how the process ended; None when that is not known.
        engine: vllm or sglang; None to try all failures.
    """
    log = LogLines.of(plain(_cut(text)))
    found = {match.id: match for match in _matches(log, engine)}
    _leave_out_echoes(found)
    _leave_out_general(found)
    causes = _ranked(log, list(found.values()))
    if ended is not None and ended.signal is not None and all(cause.symptom for cause in causes):
        causes = [*_from_signal(ended, engine), *causes]
    if _went_on(log, causes, ended):
        said, part = _unknown(log, by_level=False)
        return Diagnosis((), None, True, ended, part=part, of_a_request=said)
    first, part = (None, None) if any(not cause.symptom for cause in causes) else _unknown(log)
    return Diagnosis(tuple(_told(log, cause) for cause in causes), first, log.ready_at >= 0, ended, part=part)


def _unknown(log: LogLines, by_level: bool = True) -> tuple[str | None, Part | None]:
    """What the first error says, and the part of the engine that it lies in."""
    at = first_error(log, _is_echo, by_level)
    return (None, None) if at is None else (said_at(log, at), part_of(places(log, at)))


def _told(log: LogLines, cause: Cause) -> Cause:
    if cause.line is None:
        return cause
    place = raised_at(log, cause.line) if bare(cause.quote).strip().isidentifier() else ""
    why = f"{cause.cause} Raised{place[:300]}." if place else cause.cause
    return replace(cause, cause=why, line=log.told(cause.line), when=log.when(cause.line))


def _leave_out_echoes(found: dict[str, Cause]) -> None:
    """Without those that a more specific one replaces."""
    for one in failures():
        if one.id in found:
            for other in one.instead_of:
                if other in found and found[other].line is not None and _speaks_of(found[one.id], found[other]):
                    del found[other]


def _leave_out_general(found: dict[str, Cause]) -> None:
    """Without those that only name a kind, where another one speaks of the same."""
    general = {one.id for one in failures() if one.general}
    specific = [cause for cause in found.values() if cause.id not in general and not cause.symptom]
    for name in general & found.keys():
        if any(_speaks_of(cause, found[name]) for cause in specific):
            del found[name]


def _ranked(log: LogLines, causes: list[Cause]) -> list[Cause]:
    """The likeliest first: the earliest; of a server that was ready, what stands near its end."""
    ends = [cause.line for cause in causes if cause.symptom and cause.line is not None]
    near = min(ends) - _LAST_LINES if log.ready_at >= 0 and ends else 0
    return sorted(causes, key=lambda cause: (cause.symptom, (cause.line or 0) < near, cause.line or 0))


def _went_on(log: LogLines, causes: list[Cause], ended: Ended | None) -> bool:
    """Whether the server was ready and nothing says that it ended: then errors after that are those of requests."""
    if log.ready_at < 0 or (ended is not None and ended.code != 0):
        return False
    last = {one.id for one in failures() if one.ends}
    return not any(cause.symptom or cause.id in last for cause in causes)


def _cut(text: str) -> str:
    if len(text) <= MAX_TEXT:
        return text
    half = MAX_TEXT // 2
    middle = text[half:-half]
    return f"{text[:half]}\n{left_out(middle.count(chr(10)))}\n{text[-half:]}"


def _speaks_of(specific: Cause, general: Cause) -> bool:
    """Whether the general failure is the echo of the specific one, and not an earlier one of its own."""
    return specific.line is not None and general.line is not None and general.line >= specific.line - _NEAR_LINES


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.MULTILINE)


def _matches(log: LogLines, engine: str | None) -> Iterator[Cause]:
    for one in failures():
        if engine in ("vllm", "sglang") and one.engine not in ("any", engine):
            continue
        cause = _first_match(one, log)
        if cause is not None:
            yield cause


def _first_match(one: Failure, log: LogLines) -> Cause | None:
    best: tuple[int, re.Match[str]] | None = None
    for pattern in one.patterns:
        for match in _compiled(pattern).finditer(log.text):
            number = log.number(match.start())
            if best is not None and number >= best[0]:
                break
            if _counts(one, log, match, number):
                best = number, match
                break
    if best is None:
        return None
    number, match = best
    return _cause(one, number, log.line(number).strip()[:400], match.groupdict())


def _counts(one: Failure, log: LogLines, match: re.Match[str], number: int) -> bool:
    line = log.line(number)
    if match.start() < log.ready_at or bare(line).startswith("    "):
        return False  # a traceback quotes its source, messages and all, four columns in
    if not one.around and not one.unless:
        return True
    before = log.before(number, one.within)
    if any(_compiled(pattern).search(before) for pattern in one.unless):
        return False
    return not one.around or any(_compiled(pattern).search(before) for pattern in one.around)


def _cause(one: Failure, line: int | None, quote: str, values: Mapping[str, str | None]) -> Cause:
    return Cause(
        id=one.id,
        title=one.title,
        cause=_filled(one.cause, values),
        fix=_filled(one.fix, values),
        source=one.source,
        date=one.date.isoformat(),
        line=line,
        quote=quote,
        symptom=one.symptom,
    )


def _filled(text: str, values: Mapping[str, str | None]) -> str:
    """{name|words} with the pattern's group `name` (or name2, name3, ...), or else the words."""

    def fill(match: re.Match[str]) -> str:
        groups = [value for name, value in values.items() if re.fullmatch(match.group(1) + r"\d*", name) and value]
        return groups[0].strip().rstrip(".") if groups else match.group(2)

    return _PLACE.sub(fill, text)


def _from_signal(ended: Ended, engine: str | None) -> Iterator[Cause]:
    for one in failures():
        if ended.signal in one.signals and one.engine in ("any", engine):
            yield _cause(one, None, f"the process {ended}", {})


def _is_echo(line: str) -> bool:
    """Whether a line only says that something else failed."""
    return _echoes().search(line) is not None


@cache
def _echoes() -> re.Pattern[str]:
    """What any symptom says, as one pattern: it is asked of every line of an error that nobody knows."""
    patterns = [pattern for one in failures() if one.symptom for pattern in one.patterns]
    return re.compile("|".join(f"(?:{_NAMED.sub('(?:', pattern)})" for pattern in patterns), re.MULTILINE)
