"""From a log, and how its process ended, to ranked causes: the first cause, not the last symptom.

A line counts only when it is not at level INFO, WARNING or DEBUG, and when the server did not become ready after it:
what did not keep a server from starting is no cause of anything. Nor is an error of one request, after which a server
that was ready went on. Of what is left, the earliest line wins, because an
error in a worker comes before the errors of those who waited for it.
"""

from __future__ import annotations

import re
import signal
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from k3stack.launch.knowledge import Failure, failures

__all__ = ["MAX_TEXT", "Cause", "Diagnosis", "Ended", "recognise"]

MAX_TEXT = 16 * 2**20
"""A longer log is read at its beginning and at its end, half of this each: failures stand in either."""

_AROUND_LINES = 200

_READY = re.compile(r"Application startup complete|The server is fired up and ready to roll")

_CALM = re.compile(
    r"^(?:\([^)]*\) *)*(?:\[[^\]]*\] *)?(?:INFO|WARNING|DEBUG|TRACE)\b(?: \d\d-\d\d |:|\s)|\b(?:User|Future)Warning\b"
)

_PROCESS = re.compile(r"^(?:\([^)\n]*\) *)+|^\[[^\]\n]* (?:DP\d+ )?(?:PP\d+ )?TP\d+[^\]\n]*\] *")

_LEVEL = re.compile(r"^(?:ERROR|CRITICAL|INFO|WARNING) \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]*\] ?")

_ERROR_LINE = re.compile(
    r"^(?:[a-zA-Z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|Timeout|Refused|Interrupt)\b(?::.*)?$|^[\w./-]+: error: .*|"
    r"^(?:fatal|panic|thread '[^']*' panicked)\b.*",
    re.MULTILINE,
)

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


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What a log says about a failure.

    Attributes:
        causes: the likeliest first; empty when nothing known was found.
        first_error: the first line that is an error by its form, if no known failure is in the log.
        ready: whether the log says that the server became ready.
        ended: how the process ended, if that is known.
        phase: where it was when the log ended.
    """

    causes: tuple[Cause, ...]
    first_error: str | None
    ready: bool
    ended: Ended | None = None
    phase: str | None = None

    @property
    def failed(self) -> bool:
        """Whether anything speaks of a failure."""
        return bool(self.causes) or self.first_error is not None

    @property
    def likely(self) -> Cause | None:
        """The likeliest cause."""
        return self.causes[0] if self.causes else None


@dataclass
class _Text:
    """A log with its line starts, and where it last said that it was ready."""

    text: str
    starts: list[int] = field(default_factory=list)
    ready_at: int = -1

    def __post_init__(self) -> None:
        self.starts = [0, *(match.end() for match in re.finditer("\n", self.text))]
        self.ready_at = max((match.start() for match in _READY.finditer(self.text)), default=-1)

    def number(self, position: int) -> int:
        return bisect_right(self.starts, position)

    def line(self, number: int) -> str:
        end = self.starts[number] if number < len(self.starts) else len(self.text) + 1
        return self.text[self.starts[number - 1] : end - 1].rstrip("\r")

    def before(self, number: int) -> str:
        """The lines before this one that come from the same process or from none, and this one.

        Not those at a calm level: what vLLM prints of its settings names everything that could ever fail.
        """
        prefix = _PROCESS.match(self.line(number))
        lines = [self.line(one) for one in range(max(1, number - _AROUND_LINES), number + 1)]
        lines = [one for one in lines if not _CALM.search(one)]
        if prefix is None:
            return "\n".join(lines)
        own = prefix.group(0).rstrip()
        return "\n".join(one for one in lines if own in one or _PROCESS.match(one) is None)


def recognise(text: str, ended: Ended | None = None, engine: str | None = None) -> Diagnosis:
    """The causes that a log speaks of.

    Args:
        text: the log, whole or its beginning and end.
        ended: how the process ended; None when that is not known.
        engine: vllm or sglang; None to try all failures.
    """
    log = _Text(_cut(text))
    found = {match.id: match for match in _matches(log, engine)}
    for one in failures():
        if one.id in found:
            for other in one.instead_of:
                if other in found and found[other].line is not None and _speaks_of(found[one.id], found[other]):
                    del found[other]
    causes = sorted(found.values(), key=lambda cause: (cause.symptom, cause.line or 0))
    if ended is not None and ended.signal is not None and all(cause.symptom for cause in causes):
        causes = [*_from_signal(ended, engine), *causes]
    if _went_on(log, causes, ended):
        return Diagnosis((), None, True, ended)
    first = None if any(not cause.symptom for cause in causes) else _first_error(log)
    return Diagnosis(tuple(causes), first, log.ready_at >= 0, ended)


def _went_on(log: _Text, causes: list[Cause], ended: Ended | None) -> bool:
    """Whether the server was ready and nothing says that it ended: then errors after that are those of requests."""
    if log.ready_at < 0 or (ended is not None and ended.code != 0):
        return False
    return not any(cause.symptom for cause in causes)


def _cut(text: str) -> str:
    if len(text) <= MAX_TEXT:
        return text
    half = MAX_TEXT // 2
    return f"{text[:half]}\n[... left out ...]\n{text[-half:]}"


def _speaks_of(specific: Cause, general: Cause) -> bool:
    """Whether the general failure is the echo of the specific one, and not an earlier one of its own."""
    return specific.line is not None and general.line is not None and general.line >= specific.line - 2


@lru_cache(maxsize=512)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def _matches(log: _Text, engine: str | None) -> Iterator[Cause]:
    for one in failures():
        if engine in ("vllm", "sglang") and one.engine not in ("any", engine):
            continue
        cause = _first_match(one, log)
        if cause is not None:
            yield cause


def _first_match(one: Failure, log: _Text) -> Cause | None:
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


def _counts(one: Failure, log: _Text, match: re.Match[str], number: int) -> bool:
    line = log.line(number)
    if match.start() < log.ready_at or _CALM.search(line) or _bare(line).startswith("    "):
        return False  # a traceback quotes its source, messages and all, four columns in
    if not one.around:
        return True
    before = log.before(number)
    return any(_compiled(pattern).search(before) for pattern in one.around)


def _bare(line: str) -> str:
    """A line without the names of processes and the level in front of it."""
    return _LEVEL.sub("", _PROCESS.sub("", line))


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
    patterns = (pattern for one in failures() if one.symptom for pattern in one.patterns)
    return any(_compiled(pattern).search(line) for pattern in patterns)


def _first_error(log: _Text) -> str | None:
    """The first line with the form of an error, past the log's prefixes."""
    for number in range(log.number(max(log.ready_at, 0)), len(log.starts) + 1):
        line = log.line(number)
        if _CALM.search(line):
            continue
        bare = _bare(line).strip()
        if _ERROR_LINE.match(bare) and not _is_echo(bare):
            return bare[:400]
    return None
