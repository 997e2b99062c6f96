"""One file of an exported site: every choice of one GPU, engine and release, with its answers.

A state's record holds numbers into the pool of its shard:

    rows   for each row its dimension and options: [value, label and note], chosen, where it leads, moves, refusal
    grid   verdict, memory and what was not counted, over the sliders' grid (`compact`)
    texts  the commands and what comes with them, for short and long contexts, and with SGLang's ratio set
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any

from k3stack.panel.about import CONCURRENCIES, CONTEXTS
from k3stack.panel.answer import Written, describe, remembered, written
from k3stack.panel.compact import compact, pooled
from k3stack.panel.equivalent import recipe_words
from k3stack.panel.figures import measured
from k3stack.panel.files import call
from k3stack.panel.pool import Pool
from k3stack.panel.rows import Option, Row, rows, selection
from k3stack.panel.template import MARKERS, Template
from k3stack.plan.reserves import Reserves
from k3stack.plan.site import saved
from k3stack.recipe.build import build
from k3stack.recipe.choice import LONG, Choice
from k3stack.recipe.deployment import Deployment
from k3stack.recipe.fit import Fit, fit
from k3stack.recipe.render import Form
from k3stack.values import dump

__all__ = ["Shard", "name_of", "shard"]

_PER_CELL = ("verdict", "memory", "unknown")
_OWN = ("selection", "context", "concurrency", "rows", "figures", "written", "forms", "command")
_CHECK_EVERY = 16


def name_of(choice: Choice) -> str:
    """The shard that a choice is in."""
    return f"{choice.gpu.id}-{choice.engine}-{choice.version}"


@dataclass(frozen=True, slots=True)
class Shard:
    """What a file holds: JSON values in lines, so that a browser need only read those it shows.

    Attributes:
        pool: values that others point to by number.
        states: a record for each choice.
    """

    pool: tuple[str, ...]
    states: tuple[str, ...]

    def script(self, name: str) -> str:
        """The file."""
        return call("shard", name, len(self.pool), "\n".join((*self.pool, *self.states)))


def shard(choices: Iterable[Choice], held: Collection[str]) -> Shard:
    """The answers of one GPU, engine and release.

    Args:
        held: the selections that the site holds; others cannot be taken.
    """
    making = _Shard(held)
    records = [[making.pool.add(selection(choice)), *making.record(choice)] for choice in choices]
    return Shard(tuple(making.pool.values), tuple(json.dumps(record, separators=(",", ":")) for record in records))


class _Shard:
    def __init__(self, held: Collection[str]) -> None:
        self.pool = Pool()
        self._held = held
        self._grids: dict[Any, tuple[int, frozenset[tuple[bool, bool]]]] = {}
        self._reserves: dict[tuple[str, str], Reserves | None] = {}
        self._texts_of: dict[str, int] = {}

    def record(self, choice: Choice) -> list[Any]:
        grid, variants = self._grid(choice)
        texts = {
            ("l" if long else "s") + ("r" if ratio else ""): self._texts(choice, long, ratio)
            for long, ratio in sorted(variants)
        }
        figures = self.pool.add(dump_all(measured(choice)))
        return [[self._row(row) for row in rows(choice)], grid, figures, texts]

    # --- rows

    def _row(self, row: Row) -> int:
        return self.pool.add([row.dimension, [self._option(option) for option in row.options]])

    def _option(self, option: Option) -> list[int]:
        to, moves, refused = option.to, dump_all(option.moves), None if option.refused is None else dump(option.refused)
        if to and not option.chosen and to not in self._held:
            to, moves, refused = "", [], _NOT_HERE
        shown = [option.value, option.label, option.note]
        return [
            self.pool.add(shown),
            int(option.chosen),
            self.pool.add(to) if to else -1,
            self.pool.add(moves) if moves else -1,
            self.pool.add(refused) if refused else -1,
        ]

    # --- memory

    def _grid(self, choice: Choice) -> tuple[int, frozenset[tuple[bool, bool]]]:
        key = tuple(self._asked(choice.at(context, 1)) for context in (CONTEXTS[0], CONTEXTS[-1]))
        if key not in self._grids:
            self._grids[key] = self._planned(choice)
        return self._grids[key]

    def _asked(self, choice: Choice) -> Any:
        """What the planner was asked: two choices that ask the same have the same grid."""
        found = self._fit(choice)
        return (
            found.unknown,
            choice.version,
            tuple((one.role, one.plan.scheme, one.plan.layout, one.plan.workload) for one in found.roles),
        )

    def _planned(self, choice: Choice) -> tuple[int, frozenset[tuple[bool, bool]]]:
        variants: set[tuple[bool, bool]] = set()
        cells: list[list[Any]] = []
        for context in CONTEXTS:
            line: list[Any] = []
            for concurrency in CONCURRENCIES:
                found = self._fit(choice.at(context, concurrency))
                ratio = found.choice.workload.state_ratio
                variants.add((context > LONG, ratio is not None))
                planned = remembered(found)
                line.append({**planned, "fits": found.yes, "ratio": None if ratio is None else str(ratio)})
            cells.append(line)
        return self.pool.add(pooled(compact(cells), self.pool.add)), frozenset(variants)

    def _fit(self, choice: Choice) -> Fit:
        return fit(choice, reserves=self._saved(choice))

    def _saved(self, choice: Choice) -> Reserves | None:
        site = choice.engine, choice.gpu.id
        if site not in self._reserves:
            self._reserves[site] = saved(*site)
        return self._reserves[site]

    # --- texts

    def _texts(self, choice: Choice, long: bool, ratio: bool) -> int:
        """The texts of one kind of sliders' places; choices that come to the same deployment share them."""
        template = Template(choice, MARKERS[0], long, ratio)
        deployment = build(template.choice, refuse=False)
        key = repr((deployment, template.holes))
        if key not in self._texts_of:
            value = self._written_out(template, deployment)
            if len(self._texts_of) % _CHECK_EVERY == 0:
                self._check(choice, value, Template(choice, MARKERS[1], long, ratio))
            self._texts_of[key] = self.pool.add(value)
        unmarked = replace(template.choice, workload=replace(template.choice.workload, state_ratio=None))
        command = template.cut(recipe_words(unmarked, Form.SHELL).removesuffix(Form.SHELL.value))
        return self.pool.add([self._texts_of[key], self.pool.add(command)])

    def _check(self, choice: Choice, value: Any, again: Template) -> None:
        if self._written_out(again, build(again.choice, refuse=False)) != value:
            raise AssertionError(f"a number of {selection(choice)} is not open in its template: mend template.py")

    def _written_out(self, template: Template, deployment: Deployment) -> Any:
        answer = dump(describe(template.choice, Fit(template.choice, ()), deployment, Form.SHELL, ()))
        rest = {name: value for name, value in answer.items() if name not in (*_PER_CELL, *_OWN)}
        return {
            "rest": self.pool.add(json.loads(template.cut(json.dumps(rest, ensure_ascii=False)))),
            "forms": self.pool.add(answer["forms"]),
            "holes": self.pool.add([[hole.axis, list(hole.values)] for hole in template.holes]),
            "written": {form.value: self._lines(template, written(deployment, form)) for form in Form},
        }

    def _lines(self, template: Template, command: Written) -> Any:
        if command.refused:
            return command.refused
        reasons = [self.pool.add(dump_all(one)) for one in command.reasons]
        lines = []
        for line in command.lines:
            parts = [[template.cut(text), -1 if number < 0 else reasons[number]] for text, number in line]
            lines.append(self.pool.add(parts))
        return self.pool.chunked(lines)


def dump_all(values: Any) -> list[Any]:
    """A tuple of values as JSON."""
    return [dump(value) for value in values]


_NOT_HERE = {
    "rule": "not-in-site",
    "why": "This site does not hold it.",
    "fix": "Run k3 panel, which holds everything.",
    "source": "k3stack",
    "date": "",
    "url": "",
}
