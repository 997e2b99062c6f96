"""The rows of the page for one choice: every value, whether it can be taken, why not, and what would move with it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import urlencode

from k3stack.hardware.table import gpus
from k3stack.panel.dimensions import DIMENSIONS, Pair, pair_word, pairs, published, value, values
from k3stack.panel.follow import Move, change
from k3stack.panel.sources import address
from k3stack.plan.layout import Workload
from k3stack.recipe.choice import MODELS, Choice
from k3stack.recipe.link import to_query
from k3stack.spec.schemes import Scheme

__all__ = ["Option", "Refused", "Row", "rows", "selection"]

WORKLOAD_FIELDS = ("context", "concurrency")
"""What the sliders set; everything else of a link is the selection."""

_STANDARD = urlencode({"batched_tokens": Workload().batched_tokens}), "model="


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a value cannot be taken, what to choose instead, and who says so."""

    rule: str
    why: str
    fix: str
    source: str
    date: str
    url: str


@dataclass(frozen=True, slots=True)
class Option:
    """One value of a row.

    Attributes:
        label: its name, where it is a name and not a word of the page.
        note: a short fact beside it.
        chosen: whether it is in place.
        to: the selection that taking it leads to; empty where it cannot be taken.
        moves: what else would move.
    """

    value: str
    label: str
    note: str
    chosen: bool
    to: str = ""
    moves: tuple[Move, ...] = ()
    refused: Refused | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One dimension and its values."""

    dimension: str
    options: tuple[Option, ...]


@lru_cache(maxsize=16_384)  # every choice is what many values of other choices lead to
def selection(choice: Choice) -> str:
    """A choice without the sliders' fields, as a link's query: what a row leads to."""
    pairs = [pair.partition("=") for pair in to_query(choice).split("&")]
    return "&".join(
        f"{name}={rest}" for name, _, rest in pairs if name not in WORKLOAD_FIELDS and f"{name}={rest}" not in _STANDARD
    )


def rows(choice: Choice) -> tuple[Row, ...]:
    """All rows."""
    names = {pair_word(pair): pair for pair in pairs(choice)}
    found = []
    for dimension in DIMENSIONS:
        options = tuple(_option(choice, dimension, word, names) for word in values(choice, dimension))
        found.append(Row(dimension, options))
    return tuple(found)


def _option(choice: Choice, dimension: str, word: str, layouts: dict[str, Pair]) -> Option:
    label, note = _label(choice, dimension, word, layouts)
    if value(choice, dimension) == word:
        return Option(word, label, note, True, selection(choice))
    changed = change(choice, dimension, word)
    if changed.choice is not None:
        return Option(word, label, note, False, selection(changed.choice), changed.moves)
    assert changed.refusal is not None
    reason = changed.refusal.reason
    refused = Refused(reason.rule, reason.why, changed.refusal.fix, reason.source, reason.date, address(reason.source))
    return Option(word, label, note, False, refused=refused)


def _label(choice: Choice, dimension: str, word: str, layouts: dict[str, Pair]) -> tuple[str, str]:
    """Names of things; words of the language are the page's own."""
    if dimension == "hardware":
        kind = gpus()[word]
        return kind.name.removeprefix("NVIDIA ").removeprefix("AMD Instinct "), f"{kind.memory_bytes / 1e9:.0f} GB"
    if dimension == "scheme":
        return "", MODELS[Scheme(word)]
    if dimension == "layout":
        return _layout_label(layouts[word]), _goals(choice, layouts[word])
    return "", ""


def _layout_label(pair: Pair) -> str:
    layout, prefill = pair
    here = f"{layout.gpus} GPUs: {layout.describe()}"
    return here if prefill is None else f"{prefill.gpus} GPUs: {prefill.describe()} → {here}"


def _goals(choice: Choice, pair: Pair) -> str:
    """The goals that a layout was published for."""
    return ",".join(goal.value for one in published(choice) if one.pair == pair for goal in one.goals)
