"""One picture of a plan: memory of one GPU as stacked bars over context length, one panel per number of requests.

Each bar is the whole job at that size: weights, reserves, KDA states and the cache of all requests at full length. The
line is what the engine may use; a bar above it does not fit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from k3stack.errors import UnavailableError, UsageError
from k3stack.files import atomic_write, require_place
from k3stack.plan.assess import Job, assess
from k3stack.plan.plan import Plan
from k3stack.plan.releases import release
from k3stack.plan.reserves import Reserves
from k3stack.values import GB

__all__ = ["PARTS", "bars", "draw"]

PARTS = ("experts", "other weights", "workspaces, graphs", "activations", "KDA states", "MLA cache")
_COLOURS = ("#30527c", "#7da3cc", "#9a9a9a", "#c9c9c9", "#b5651d", "#e0a458")
_SHORTEST = 8_192


def bars(plan: Plan, reserves: Reserves | None = None) -> dict[int, dict[int, tuple[float, ...]]]:
    """Bytes by part for each number of requests and each context length: {requests: {context: sizes}}."""
    return {
        requests: {context: _bar(plan, requests, context, reserves) for context in _contexts(plan)}
        for requests in _requests(plan)
    }


def _contexts(plan: Plan) -> Iterator[int]:
    """Doublings from 8,192 up to the model's limit, and the context asked for."""
    found = {plan.workload.context, plan.spec.max_context}
    context = _SHORTEST
    while context < plan.spec.max_context:
        found.add(context)
        context *= 4
    yield from sorted(size for size in found if size <= plan.spec.max_context)


def _requests(plan: Plan) -> Iterator[int]:
    asked = plan.workload.concurrency
    yield from sorted({1, max(asked // 4, 1), asked})


def _bar(plan: Plan, requests: int, context: int, reserves: Reserves | None) -> tuple[float, ...]:
    """One bar: the ledger with `requests` requests of `context` tokens each, all at full length."""
    workload = replace(plan.workload, context=context, concurrency=requests)
    job = Job(plan.spec, plan.gpu, plan.layout, workload, release(plan.engine, plan.release), reserves)
    sizes = dict.fromkeys(PARTS, 0.0)
    for line in assess(job).ledger.lines:
        part = _part(line.what)
        many = workload.per_replica(plan.layout) if part == "MLA cache" else 1
        sizes[part] += line.size_bytes * many
    return tuple(sizes.values())


def _part(what: str) -> str:
    if what.startswith("weights: "):
        return "experts" if what == "weights: routed experts" else "other weights"
    if what.startswith("KDA state"):
        return "KDA states"
    if what.startswith("MLA cache"):
        return "MLA cache"
    return "activations" if what == "activations" else "workspaces, graphs"


def draw(plan: Plan, path: Path, reserves: Reserves | None = None) -> None:
    """Draw a plan into a .png or .svg file; the file appears whole or not at all.

    Raises:
        UsageError: another kind of file, a folder that is not there, or a folder.
        UnavailableError: matplotlib is not installed.
    """
    kind = path.suffix.lower().lstrip(".")
    if kind not in ("png", "svg"):
        raise UsageError(
            f"{path.name!r} is neither .png nor .svg", where="--plot", hint="Name it plan.png or plan.svg."
        )
    require_place(path, "--plot")
    figure = _figure(plan, bars(plan, reserves))
    with atomic_write(path) as file:
        figure.savefig(
            file, format=kind, dpi=150, bbox_inches="tight", metadata={"Date": None} if kind == "svg" else None
        )


def _figure(plan: Plan, data: dict[int, dict[int, tuple[float, ...]]]) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UnavailableError(
            "matplotlib is not installed", where="--plot", hint="Run: pip install 'k3stack[plot]'"
        ) from error

    figure = Figure(figsize=(3.2 + 2.9 * len(data), 4.6), layout="constrained")
    panels = figure.subplots(1, len(data), sharey=True, squeeze=False)[0]
    budget = plan.budget_bytes / GB
    top = 1.6 * budget
    for axes, (requests, row) in zip(panels, data.items(), strict=True):
        bottoms = [0.0] * len(row)
        for index, part in enumerate(PARTS):
            heights = [sizes[index] / GB for sizes in row.values()]
            axes.bar(range(len(row)), heights, bottom=bottoms, color=_COLOURS[index], label=part, width=0.75)
            bottoms = [low + high for low, high in zip(bottoms, heights, strict=True)]
        axes.axhline(budget, color="black", linewidth=1.2, linestyle="--")
        for place, total in enumerate(bottoms):
            if total > top:
                axes.text(place, top * 0.985, f"{total:,.0f}", ha="center", va="top", fontsize=8, color="white")
        axes.set_xticks(range(len(row)), [_short(context) for context in row], rotation=45)
        axes.set_title(f"{requests} request{'s' if requests > 1 else ''} at full length", fontsize=10)
        axes.set_xlabel("context, tokens")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylim(0, top)
    panels[0].set_ylabel("GB on one GPU")
    panels[0].text(-0.4, budget * 1.01, f"engine may use {budget:,.0f} GB", fontsize=8, va="bottom")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles[::-1], labels[::-1], loc="outside right center", frameon=False, fontsize=9)
    figure.suptitle(
        f"Kimi-K3 ({plan.scheme}) on {plan.layout.gpus} x {plan.gpu.name}, {plan.engine} {plan.release}, "
        f"{plan.layout.describe()}, KV {plan.workload.kv_dtype}",
        fontsize=11,
    )
    return figure


def _short(context: int) -> str:
    return f"{context / 2**20:g}M" if context % 2**20 == 0 else f"{context / 1024:g}k"
