"""A command's text as lines of parts, so that each flag, variable and image can carry its reason.

The parts of all lines, joined, are the text byte for byte: nothing is rendered a second time here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from k3stack.recipe.deployment import Deployment, Reason

__all__ = ["Marked", "marked"]

Part = tuple[str, int]
"""Text, and the number of its reason; -1 where there is none."""

_FLAG = re.compile(r"--(?:no-)?([A-Za-z][\w-]*)")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Marked:
    """A text in lines of parts, and the reasons its parts point to.

    Attributes:
        lines: without their line ends.
        reasons: for each number, the reasons, the one that had the last word first.
    """

    lines: tuple[tuple[Part, ...], ...]
    reasons: tuple[tuple[Reason, ...], ...]

    @property
    def text(self) -> str:
        """The text that was marked."""
        return "\n".join("".join(text for text, _ in line) for line in self.lines)


def marked(text: str, deployment: Deployment) -> Marked:
    """The text of a renderer with reasons on what a rule has set."""
    table = _Table(deployment)
    lines = tuple(tuple(_joined(table.parts(line))) for line in text.split("\n"))
    return Marked(lines, tuple(table.reasons))


def _joined(parts: Iterator[Part]) -> Iterator[Part]:
    """Neighbours with the same reason as one part."""
    text, number = "", -1
    for more, of in parts:
        if of != number and text:
            yield text, number
            text = ""
        text, number = text + more, of
    if text:
        yield text, number


class _Table:
    """Which words have reasons."""

    def __init__(self, deployment: Deployment) -> None:
        self.reasons: list[tuple[Reason, ...]] = []
        self._numbers: dict[tuple[Reason, ...], int] = {}
        self._flags: dict[str, list[tuple[str, tuple[Reason, ...]]]] = {}
        self._variables: dict[str, tuple[Reason, ...]] = {}
        self._images = {deployment.pinned_image: (deployment.image_reason,)}
        for role in deployment.roles:
            for flag in role.command.flags:
                values = [word for word in flag.words() if not word.startswith("--")]
                value = " ".join(values)
                self._flags.setdefault(flag.name, []).append((value, (flag.reason, *flag.also)))
            for variable in role.command.environment:
                known = self._variables.get(variable.name, ())
                self._variables[variable.name] = tuple(dict.fromkeys((*known, variable.reason)))

    def parts(self, line: str) -> Iterator[Part]:
        """The line cut where a reason begins and ends."""
        if line.lstrip().startswith("#"):
            yield line, -1
            return
        at = 0
        for begin, end, reasons in self._spans(line):
            if begin > at:
                yield line[at:begin], -1
            yield line[begin:end], self._number(reasons)
            at = end
        if at < len(line) or not line:
            yield line[at:], -1

    def _spans(self, line: str) -> Iterator[tuple[int, int, tuple[Reason, ...]]]:
        """Where a reason begins and ends; a flag takes its value along, up to the next flag or the line's end."""
        found = [(one.start(), one.end(), one[1], True) for one in _FLAG.finditer(line) if one[1] in self._flags]
        found += [(one.start(), one.end(), one[0], False) for one in _NAME.finditer(line) if one[0] in self._variables]
        images = [(line.find(image), line.find(image) + len(image), reason) for image, reason in self._images.items()]
        ends = sorted(begin for begin, _, _, _ in found)
        last = 0
        for begin, end, name, is_flag in sorted(found):
            if begin < last:
                continue
            stop = next((other for other in ends if other > begin), len(line))
            stop = _trimmed(line, end, stop)
            reasons = self._of_flag(name, line[end:stop]) if is_flag else self._variables[name]
            yield begin, stop, reasons
            last = stop
        if not found:
            yield from ((begin, end, reason) for begin, end, reason in images if begin >= 0)

    def _of_flag(self, name: str, rest: str) -> tuple[Reason, ...]:
        """Roles may give the same flag for different reasons: the value tells which, or all are given."""
        rows = self._flags[name]
        found = [reasons for value, reasons in rows if value and value in rest] or [reasons for _, reasons in rows]
        return tuple(dict.fromkeys(reason for reasons in found for reason in reasons))

    def _number(self, reasons: tuple[Reason, ...]) -> int:
        if reasons not in self._numbers:
            self._numbers[reasons] = len(self.reasons)
            self.reasons.append(reasons)
        return self._numbers[reasons]


def _trimmed(line: str, end: int, stop: int) -> int:
    """Without what only leads to the next word: blanks, a line's continuation or end, docker's --env."""
    rest = line[end:stop]
    for tail in (r"; fi$", r"\s*\\$", r"\s*(?:--env|--volume)?\s*$"):
        rest = re.sub(tail, "", rest)
    return end + len(rest)
