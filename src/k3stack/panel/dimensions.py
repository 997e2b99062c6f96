"""The rows of the page: which dimensions a choice has there, their values, and how one value is put in place.

A row's value is a word as it stands in a link. The layout row holds the layouts that were published for this engine,
GPU and way of serving, the common others, and the one in use; a link may carry any other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from k3stack.engines.releases import versions
from k3stack.errors import NotKnownError
from k3stack.hardware.table import Gpu, gpu, gpus
from k3stack.plan.layout import KvDtype, Layout, Workload
from k3stack.recipe.choice import (
    CARD,
    KV_STANDARD,
    UTILIZATION_STANDARD,
    Choice,
    Feature,
    Goal,
    Parsers,
    Serving,
    kv_standard,
    standard_version,
)
from k3stack.recipe.suggest import Suggestion, suggest
from k3stack.spec.schemes import Scheme

__all__ = [
    "DIMENSIONS",
    "Pair",
    "layout_word",
    "pair_word",
    "published",
    "releases",
    "start",
    "suggestion",
    "value",
    "values",
    "with_usual",
    "with_value",
]

DIMENSIONS = (
    "hardware",
    "engine",
    "version",
    "scheme",
    "goal",
    "serving",
    "layout",
    "speculation",
    "input",
    "parsers",
    "kv",
    "prefix",
    "hicache",
)
"""In the order of the page, which is also the order in which a link is gone through."""

Pair = tuple[Layout, Layout | None]
"""The layout of the server or of decode, and that of prefill."""

_COMMON = (
    Layout(tp=8),
    Layout(tp=16),
    Layout(tp=32),
    Layout(tp=8, dcp=8),
    Layout(tp=16, dcp=16),
    Layout(tp=16, ep=True),
    Layout(tp=32, ep=True),
    Layout(tp=8, pp=2),
    Layout(tp=8, dp=2),
    Layout(tp=1, dp=16, ep=True),
    Layout(tp=4, dp=4, ep=True),
)
"""Layouts that people ask for, beside those that were published."""

_DRAFTS = (Feature.DSPARK, Feature.DFLASH)


@dataclass(frozen=True, slots=True)
class Published:
    """A layout somebody published for K3, and for which goals."""

    pair: Pair
    goals: tuple[Goal, ...]
    source: str


def start() -> Choice:
    """The choice the page begins with: vLLM's newest release on eight B300."""
    kind = gpu("b300")
    return Choice(
        engine="vllm",
        version=versions("vllm")[-1],
        gpu=kind,
        scheme=Scheme.MXFP4,
        layout=suggest("vllm", kind, Serving.UNIFIED, Goal.BALANCED).layout,
        workload=Workload(kv_dtype=KV_STANDARD["vllm"], utilization=UTILIZATION_STANDARD["vllm"]),
    )


def releases(engine: str) -> tuple[str, ...]:
    """All versions of an engine that can be chosen, newest first."""
    return (*reversed(versions(engine)), *([CARD] if engine == "vllm" else []))


@lru_cache(maxsize=1_024)  # asked for every value of every row
def suggestion(engine: str, kind: Gpu, serving: Serving, goal: Goal) -> Suggestion | None:
    """The layout to start from, if one is known."""
    try:
        return suggest(engine, kind, serving, goal)
    except NotKnownError:
        return None


def published(choice: Choice) -> tuple[Published, ...]:
    """The layouts that somebody published for this engine, GPU and way of serving."""
    found: dict[Pair, Published] = {}
    for goal in Goal:
        known = suggestion(choice.engine, choice.gpu, choice.serving, goal)
        if known is not None and known.published:
            pair = (known.layout, known.prefill)
            before = found.get(pair)
            goals = (*(before.goals if before else ()), goal)
            found[pair] = Published(pair, goals, known.source)
    return tuple(found.values())


def pairs(choice: Choice) -> tuple[Pair, ...]:
    """The layouts of the layout row."""
    known = [suggestion(choice.engine, choice.gpu, choice.serving, goal) for goal in Goal]
    offered: list[Pair] = [(one.layout, one.prefill) for one in known if one is not None]
    if choice.serving is Serving.UNIFIED:
        offered += [(layout, None) for layout in _COMMON if layout.gpus % choice.gpu.gpus_per_node == 0]
    offered.append((choice.layout, choice.prefill))
    return tuple(sorted(dict.fromkeys(offered), key=_size))


def _size(pair: Pair) -> tuple[int, ...]:
    layout, prefill = pair
    whole = layout.gpus + (prefill.gpus if prefill else 0)
    return (whole, layout.pp, layout.dp, layout.ep, layout.dcp, -layout.tp)


def pair_word(pair: Pair) -> str:
    """A layout as one word of a link."""
    layout, prefill = pair
    return layout_word(layout) if prefill is None else f"{layout_word(prefill)};{layout_word(layout)}"


def layout_word(layout: Layout) -> str:
    """The same for one role's layout."""
    return f"tp{layout.tp},pp{layout.pp},dp{layout.dp},dcp{layout.dcp}" + (",ep" if layout.ep else "")


def values(choice: Choice, dimension: str) -> Iterator[str]:
    """The values of one row."""
    match dimension:
        case "hardware":
            yield from gpus()
        case "engine":
            yield from ("vllm", "sglang")
        case "version":
            yield from releases(choice.engine)
        case "scheme":
            yield from (scheme.value for scheme in Scheme)
        case "goal":
            yield from (goal.value for goal in Goal)
        case "serving":
            yield from (serving.value for serving in Serving)
        case "layout":
            yield from (pair_word(pair) for pair in pairs(choice))
        case "speculation":
            yield from ("none", *(draft.value for draft in _DRAFTS))
        case "input":
            yield from ("images", "text-only")
        case "parsers":
            yield from (parsers.value for parsers in Parsers)
        case "kv":
            yield from (KvDtype.FP8.value, KvDtype.BF16.value)
        case _:
            yield from ("on", "off")


def value(choice: Choice, dimension: str) -> str:
    """The value that a choice has in one row."""
    match dimension:
        case "hardware":
            return choice.gpu.id
        case "engine":
            return choice.engine
        case "version":
            return choice.version
        case "scheme":
            return choice.scheme.value
        case "goal":
            return choice.goal.value
        case "serving":
            return choice.serving.value
        case "layout":
            return pair_word((choice.layout, choice.prefill))
        case "speculation":
            return next((draft.value for draft in _DRAFTS if draft in choice.features), "none")
        case "input":
            return "text-only" if Feature.TEXT_ONLY in choice.features else "images"
        case "parsers":
            return choice.parsers.value
        case "kv":
            return choice.workload.kv_dtype.value
        case "prefix":
            return "on" if choice.workload.prefix_caching else "off"
        case _:
            return "on" if Feature.HICACHE in choice.features else "off"


def with_value(choice: Choice, dimension: str, word: str) -> Choice:
    """The choice with one row's value put in place; what was published for it comes along.

    A layout follows to what was published for the new goal, GPU, engine or way of serving if it was the published one
    before; a release comes with an engine.
    """
    match dimension:
        case "hardware":
            return _with_layout(choice, replace(choice, gpu=gpu(word)))
        case "engine":
            return _with_layout(choice, _on_engine(choice, word))
        case "version":
            return replace(choice, version=word)
        case "scheme":
            return replace(choice, scheme=Scheme(word), model="")
        case "goal":
            return _with_layout(choice, replace(choice, goal=Goal(word)))
        case "serving":
            return _served(choice, Serving(word))
        case "layout":
            layout, prefill = next(pair for pair in pairs(choice) if pair_word(pair) == word)
            return replace(choice, layout=layout, prefill=prefill)
        case "speculation":
            kept = [feature for feature in choice.features if feature not in _DRAFTS]
            return _with_features(choice, [*kept, *([] if word == "none" else [Feature(word)])])
        case "input":
            return _switched(choice, Feature.TEXT_ONLY, word == "text-only")
        case "parsers":
            return replace(choice, parsers=Parsers(word))
        case "kv":
            return replace(choice, workload=replace(choice.workload, kv_dtype=KvDtype(word)))
        case "prefix":
            return replace(choice, workload=replace(choice.workload, prefix_caching=word == "on"))
        case _:
            return _switched(choice, Feature.HICACHE, word == "on")


def _switched(choice: Choice, feature: Feature, on: bool) -> Choice:
    kept = [one for one in choice.features if one is not feature]
    return _with_features(choice, [*kept, feature] if on else kept)


def _with_features(choice: Choice, features: list[Feature]) -> Choice:
    return replace(choice, features=tuple(feature for feature in Feature if feature in features))


def _on_engine(choice: Choice, engine: str) -> Choice:
    if engine == choice.engine:
        return choice
    return replace(choice, engine=engine, version=standard_version(engine, choice.gpu, choice.scheme))


def _served(choice: Choice, serving: Serving) -> Choice:
    if serving is choice.serving:
        return choice
    known = suggestion(choice.engine, choice.gpu, serving, choice.goal)
    if known is not None:
        return replace(choice, serving=serving, layout=known.layout, prefill=known.prefill, prefill_utilization=None)
    prefill = choice.layout if serving is Serving.DISAGGREGATED else None
    return replace(choice, serving=serving, prefill=prefill, prefill_utilization=None)


def _with_layout(before: Choice, after: Choice) -> Choice:
    """The published layout stays the published one when what it was published for changes."""
    was = suggestion(before.engine, before.gpu, before.serving, before.goal)
    now = suggestion(after.engine, after.gpu, after.serving, after.goal)
    if was is None or now is None or (was.layout, was.prefill) != (before.layout, before.prefill):
        return after
    return replace(after, layout=now.layout, prefill=now.prefill)


FOLLOWING = ("kv_dtype", "utilization", "batched_tokens")
"""Settings of a workload that the engine or a published layout decides while nobody sets them otherwise."""


def usual(choice: Choice) -> dict[str, Any]:
    """Those settings as the engine usually has them, or as they were published with the layout in use."""
    return _usual(choice.engine, choice.gpu, choice.serving, choice.goal, (choice.layout, choice.prefill))


@lru_cache(maxsize=4_096)
def _usual(engine: str, kind: Gpu, serving: Serving, goal: Goal, pair: Pair) -> dict[str, Any]:
    found = {
        "kv_dtype": kv_standard(engine, kind),
        "utilization": UTILIZATION_STANDARD[engine],
        "batched_tokens": Workload().batched_tokens,
    }
    known = suggestion(engine, kind, serving, goal)
    if known is not None and (known.layout, known.prefill) == pair:
        found.update((name, value) for name, value in known.workload if name in FOLLOWING)
    return found


def with_usual(before: Choice, after: Choice) -> Choice:
    """The changed choice with those settings that were as usual as usual again."""
    was, now = usual(before), usual(after)
    if was == now:
        return after
    moved = {
        name: now[name]
        for name in FOLLOWING
        if getattr(before.workload, name) == was[name] and getattr(after.workload, name) == was[name]
    }
    return replace(after, workload=replace(after.workload, **moved))
