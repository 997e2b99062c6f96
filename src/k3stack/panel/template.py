"""A command's text with the sliders' numbers left open.

A text depends on the sliders only through the places that rules may name (`recipe.build.places`). It is rendered
with numbers that stand nowhere else, which are then cut out; what each place holds at every stop of a slider is
asked of the same function. A second rendering with other numbers must give the same template, else it is a bug.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from k3stack.panel.about import CONCURRENCIES, CONTEXTS
from k3stack.plan.layout import Layout
from k3stack.recipe.build import places
from k3stack.recipe.choice import Choice

__all__ = ["MARKERS", "Hole", "Markers", "Template", "holes"]

_FIRST_HOLE = 0xE000


@dataclass(frozen=True, slots=True)
class Markers:
    """Numbers that stand nowhere else in a command."""

    short: int
    long: int
    concurrency: int
    ratio: float

    def mark(self, choice: Choice, long: bool, ratio: bool) -> Choice:
        """The choice with the sliders at these numbers."""
        marked = choice.at(self.long if long else self.short, self.concurrency)
        return replace(marked, workload=replace(marked.workload, state_ratio=self.ratio if ratio else None))


MARKERS = (Markers(181_943, 917_503, 3_947, 0.78137), Markers(193_771, 886_019, 3_329, 0.61483))


@dataclass(frozen=True, slots=True)
class Hole:
    """A number left open: its axis (c: context, n: concurrency, r: the plan's ratio) and its value at each stop."""

    axis: str
    values: tuple[Any, ...]


class Template:
    """Cuts the markers' numbers out of texts."""

    def __init__(self, choice: Choice, markers: Markers, long: bool, ratio: bool) -> None:
        self.choice = markers.mark(choice, long, ratio)
        self._open = holes(choice, self.choice)
        self.holes = tuple(self._open.values())
        words = sorted(self._open, key=len, reverse=True)
        self._pattern = re.compile(rf"(?<![\d.])(?:{'|'.join(map(re.escape, words))})(?![\d.])")
        self._characters = {word: chr(_FIRST_HOLE + number) for number, word in enumerate(self._open)}

    def cut(self, text: str) -> str:
        """The text with a character for each number left open."""
        return self._pattern.sub(lambda found: self._characters[found[0]], text)


def holes(choice: Choice, marked: Choice) -> dict[str, Hole]:
    """Each number as it stands in a marked text, and what it is at every stop of its slider."""
    found: dict[str, Hole] = {}
    for name, layout in marked.roles():
        nodes = marked.facts(name, layout)["nodes"]
        for place, axis in _axes(marked, layout, nodes):
            word = str(places(marked, layout, nodes)[place])
            hole = Hole(axis, () if axis == "r" else tuple(_stops(choice, layout, nodes, place, axis)))
            if found.setdefault(word, hole) != hole:
                raise AssertionError(f"{word} stands for two places of {layout}: take other markers")
    return found


def _axes(marked: Choice, layout: Layout, nodes: int) -> Iterator[tuple[str, str]]:
    """The places that depend on a slider, and on which."""
    work = marked.workload
    here = places(marked, layout, nodes)
    longer = places(marked.at(work.context - 1_000, work.concurrency), layout, nodes)
    more = places(marked.at(work.context, work.concurrency - 1_000), layout, nodes)
    for place, value in here.items():
        if place == "state_ratio":
            if value is not None:
                yield place, "r"
        elif value != longer[place]:
            yield place, "c"
        elif value != more[place]:
            yield place, "n"


def _stops(choice: Choice, layout: Layout, nodes: int, place: str, axis: str) -> list[Any]:
    if axis == "c":
        moved = [choice.at(context, 1) for context in CONTEXTS]
    else:
        moved = [choice.at(CONTEXTS[0], concurrency) for concurrency in CONCURRENCIES]
    return [places(one, layout, nodes)[place] for one in moved]
