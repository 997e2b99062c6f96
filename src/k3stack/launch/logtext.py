"""A log as the engine wrote it: without what terminals, containers, schedulers and collectors put around its lines.

Docker, Kubernetes, journald, Slurm, MPI and pdsh write a time, a host or a rank before each line; collectors make a
JSON object of it. What stands behind that is the engine's line, with its own indentation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Plain", "left_out", "plain"]

_COLOURS = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|#033\[[0-9;]*m")

_BREAK = re.compile(r"\r\n|\n|\r")

_LEFT_OUT = re.compile(r"\[\.\.\. ([\d,]+) lines left out \.\.\.\]$")

_DAY = r"\d{4}-\d\d-\d\d"
_CLOCK = r"\d\d:\d\d:\d\d(?:[.,]\d+)?"
_ENGINE = r'Traceback |  File "|[({\[]|(?:ERROR|INFO|WARNING|DEBUG|CRITICAL)\b|[\w.]+(?:Error|Exception)\b'
"""How a line of an engine begins: what stands before it is somebody's name."""

_AROUND = (
    rf"{_DAY}T{_CLOCK} ?(?:Z|[+-]\d\d:?\d\d)?(?: [A-Z]{{3,4}})? (?:std(?:out|err) [FP] )?",  # docker -t, kubectl, CRI
    rf"{_DAY} {_CLOCK} - [\w.]+ - (?:INFO|WARNING|ERROR|DEBUG) - ",  # a Python program that runs the engine
    rf"{_DAY} {_CLOCK} (?=\(|ERROR|INFO|WARNING|DEBUG|CRITICAL|Traceback|  |\[)",
    rf"\[{_DAY}[T ]{_CLOCK}(?:Z|[+-]\d\d:?\d\d)?\] (?=\[|\(|ERROR|INFO|WARNING|Traceback|  File)",
    r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d+)? (?:[\w.-]+ [\w.@/-]+(?:\[\d+\])?: )?",  # syslog, journalctl
    r"(?=\S)[\w.-]+ [\w.@/-]+\[\d+\]: ",  # journalctl -o short-iso, behind the time
    r"[\w.-]* +\| ?",  # docker compose
    r"\[pod/[^\]\n]+\] ",  # kubectl logs --prefix
    r"\[\d+,\d+\]<std(?:out|err|diag)>: ?",  # mpirun --tag-output
    r" {0,4}\d{1,4}: ",  # srun --label
    r"\[(?:rank|default)\d+\]: ?",  # torch, torchrun
    rf"(?![\w.]*(?:Error|Exception|Warning)\b)[\w.-]+: (?={_ENGINE})",  # pdsh, clush
    rf"[a-z0-9.-]+ [a-z0-9-]+ (?={_ENGINE})",  # stern
)

_PREFIX = re.compile("|".join(_AROUND))

_MESSAGES = ("message", "msg", "log", "textPayload", "MESSAGE", "text", "event", "body")
_LEVELS = ("levelname", "level", "severity", "lvl", "levelName")
_TRACES = ("exc_info", "exception", "exc_text", "stack_trace", "traceback", "error.stack_trace")
_CALM = {"DEBUG", "INFO", "WARNING", "WARN", "TRACE", "NOTICE"}

_MOST_PREFIXES = 4


@dataclass(frozen=True, slots=True)
class Plain:
    """The lines that the engine wrote.

    Attributes:
        text: them, with line ends of Unix.
        numbers: of each line in the log, from 1; empty where that is the line's place in the text.
    """

    text: str
    numbers: tuple[int, ...] = ()


def left_out(lines: int) -> str:
    """The line that stands for lines that were not read."""
    return f"[... {lines:,} lines left out ...]"


def plain(text: str) -> Plain:
    """The engine's own lines of a log."""
    if "\x1b" in text or "#033[" in text:
        text = _COLOURS.sub("", text)
    lines: list[str] = []
    numbers: list[int] = []
    number, moved = 1, False
    for line, ends in _broken(text):
        skipped = _LEFT_OUT.match(line)
        said = [line] if skipped else _unwrapped(line)
        moved = moved or skipped is not None or len(said) != 1 or not ends
        lines += said
        numbers += [number] * len(said)
        number += int(skipped.group(1).replace(",", "")) if skipped else ends
    return Plain("\n".join(lines), tuple(numbers) if moved else ())


def _broken(text: str) -> Iterator[tuple[str, int]]:
    """Each line, and whether a line of the log ends with it: a lone carriage return only draws over what was there."""
    at = 0
    for match in _BREAK.finditer(text):
        yield text[at : match.start()], int(match.group() != "\r")
        at = match.end()
    yield text[at:], 1


def _unwrapped(line: str) -> list[str]:
    for _ in range(_MOST_PREFIXES):
        if line.startswith("{") and line.rstrip().endswith("}"):
            return _from_json(line)
        match = _PREFIX.match(line)
        if match is None or not match.end():
            break
        line = line[match.end() :]
    return [line]


def _from_json(line: str) -> list[str]:
    """What a collector's object says; calm lines get their level in front, as an engine writes it."""
    try:
        entry = json.loads(line)
    except ValueError:
        return [line]
    if not isinstance(entry, dict):
        return [line]
    inner = entry.get("jsonPayload")
    if isinstance(inner, dict):
        entry = {**entry, **inner}
    message = _first(entry, _MESSAGES)
    if message is None:
        return [line]
    trace = _first(entry, _TRACES)
    level = (_first(entry, _LEVELS) or "").upper()
    said = [*message.rstrip("\n").split("\n"), *(trace.rstrip("\n").split("\n") if trace else ())]
    if level in _CALM and trace is None:
        return [f"{level.removesuffix('ING')}{'ING' if level.startswith('WARN') else ''}: {one}" for one in said]
    return [one for part in said for one in _unwrapped(part)]


def _first(entry: dict[str, object], names: tuple[str, ...]) -> str | None:
    return next((value for name in names if isinstance(value := entry.get(name), str) and value), None)
