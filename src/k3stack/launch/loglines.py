"""The lines of a log that may tell of a failure: not the calm ones, with who wrote each and when."""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass

from k3stack.launch.logtext import Plain

__all__ = ["LogLines", "bare"]

_READY = re.compile(r"Application startup complete|The server is fired up and ready to roll")

_CALM = re.compile(
    r"^(?:\([^)]*\) *)*(?:\[[^\]]*\] *)?(?:INFO|WARNING|DEBUG|TRACE)\b(?: \d\d-\d\d |:|\s)|"
    r"\b(?:User|Future)Warning\b(?!: CUDA initialization: .*Error 80\d)|"
    r"^(?:\[[^\]]*\] *)?(?:Decode batch|Prefill batch|Ignore import error|Warning: |LMCache (?:INFO|WARNING|DEBUG)\b)|"
    r"^\[?[IW]\d{3,8} [\d:.]+ |^\[W ?\w+\.cpp:\d+\]|^\S+ \[\d+\] NCCL (?:INFO|TRACE) "  # glog, PyTorch, NCCL
)

_PROCESS = re.compile(r"^(?:\([^)\n]*\) ?)+|^\[[^\]\n]* (?:DP\d+ )?(?:PP\d+ )?TP\d+[^\]\n]*\] *")

_LEVEL = re.compile(
    r"^(?:ERROR|CRITICAL|INFO|WARNING) (?:\d{4}-)?\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)? (?:\[[^\]]*\]|[\w./]+:\d+\]) ?"
)

_DATE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?")

_TIMED_LINES = 200

_TIME = re.compile(r"\b(\d\d-\d\d)[ T](\d\d:\d\d:\d\d)")


@dataclass(frozen=True)
class LogLines:
    """The lines of a log that may tell of a failure, and where it last said that it was ready.

    Not those at a calm level: they are nearly all of a log, and what vLLM prints of its settings names everything that
    could ever fail.
    """

    text: str
    numbers: tuple[int, ...]
    starts: tuple[int, ...]
    ready_at: int = -1

    @classmethod
    def of(cls, read: Plain) -> LogLines:
        """The lines of a log that was read."""
        kept: list[str] = []
        numbers: list[int] = []
        starts = [0]
        ready_at = -1
        for at, line in enumerate(read.text.split("\n")):
            if _READY.search(line):
                ready_at = starts[-1]
            if not _CALM.search(line):
                kept.append(line)
                numbers.append(read.numbers[at] if read.numbers else at + 1)
                starts.append(starts[-1] + len(line) + 1)
        return cls("\n".join(kept), tuple(numbers), tuple(starts[:-1]) or (0,), ready_at)

    def number(self, position: int) -> int:
        """The number of the line at this place of the text, from 1."""
        return bisect_right(self.starts, position)

    def told(self, number: int) -> int:
        """The number of this line in the log that was given."""
        return self.numbers[number - 1]

    def when(self, number: int) -> str:
        """When this line was written, as far as the lines before it say."""
        for one in range(number, max(0, number - _TIMED_LINES), -1):
            if match := _TIME.search(self.line(one)):
                return f"{match.group(1)} {match.group(2)}"
        return ""

    def line(self, number: int) -> str:
        """The line of this number."""
        end = self.starts[number] if number < len(self.starts) else len(self.text) + 1
        return self.text[self.starts[number - 1] : end - 1]

    def before(self, number: int, within: int) -> str:
        """The lines before this one that come from the same process or from none, and this one."""
        own = _who(self.line(number))
        first = max(1, number - within)
        if not own:
            return self.text[self.starts[first - 1] : self.starts[number - 1] + len(self.line(number))]
        lines = (self.line(one) for one in range(first, number + 1))
        return "\n".join(one for one in lines if own in one or not _who(one))


def _who(line: str) -> str:
    """The process that a line names at its beginning, without the time; empty for none."""
    prefix = _PROCESS.match(line)
    return _DATE.sub("", prefix.group(0)).strip(" []") if prefix else ""


def bare(line: str) -> str:
    """A line without the names of processes and the level in front of it."""
    return _LEVEL.sub("", _PROCESS.sub("", line))
