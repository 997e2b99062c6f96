"""The smallest changes that would fit, when a plan does not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from k3stack.hardware.table import Gpu
from k3stack.plan.assess import Job, left_bytes
from k3stack.plan.layout import Layout, Workload
from k3stack.plan.plan import Plan, Verdict, Way
from k3stack.plan.releases import Release, release
from k3stack.plan.reserves import Reserves
from k3stack.plan.rules import Objections, beyond, no_objections, refusals
from k3stack.plan.same import Same

__all__ = ["in_words", "ways"]

_GPU_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128)
_TENSOR_SIZES = (32, 16, 8, 4)


def in_words(plan: Plan, way: Way) -> str:
    """A way that would fit, as it differs from what was asked."""
    place = f" ({way.layout.describe()})" if way.layout != plan.layout else ""
    how = f"with {_difference(plan.workload, way.workload)}" if way.workload != plan.workload else "as asked"
    return f"{way.layout.gpus} x {plan.gpu.name}{place} {how}"


def ways(plan: Plan, reserves: Reserves | None = None, objections: Objections = no_objections) -> Iterator[Way]:
    """A milder workload on the same GPUs, the fewest GPUs for a milder workload, and the fewest for this one.

    A layout with an objection is passed over, unless the one that was asked for has the same.
    """
    added = beyond(objections, plan.layout, plan.workload)
    milder = _milder(plan, plan.layout, reserves) if plan.verdict is not Verdict.NOT_SUPPORTED else None
    if milder is not None:
        yield Way(plan.layout, milder)
    for layout in _others(plan):
        if added(layout, plan.workload):
            continue
        if _fits(plan, layout, plan.workload, reserves):
            yield Way(layout, plan.workload)
            return
        if milder is None:
            milder = _milder(plan, layout, reserves)
            if milder is not None:
                yield Way(layout, milder)


def _fits(plan: Plan, layout: Layout, workload: Workload, reserves: Reserves | None) -> bool:
    return _job_fits(Same(plan.spec), plan.gpu, layout, workload, release(plan.engine, plan.release), reserves)


@lru_cache(maxsize=8_192)  # plans that differ a little ask for the same changes
def _job_fits(
    model: Same, gpu: Gpu, layout: Layout, workload: Workload, known: Release, reserves: Reserves | None
) -> bool:
    if refusals(model.spec, gpu, layout, workload, known.engine):
        return False
    return left_bytes(Job(model.spec, gpu, layout, workload, known, reserves)) >= 0


def _milder(plan: Plan, layout: Layout, reserves: Reserves | None) -> Workload | None:
    """The mildest change of the workload that fits: more memory for the engine, less context, fewer requests."""
    asked = plan.workload
    if not _fits(plan, layout, _mildest(asked), reserves):
        return None
    for tokens in dict.fromkeys((asked.batched_tokens, min(asked.batched_tokens, 4_096))):
        for concurrency in dict.fromkeys((asked.concurrency, min(asked.concurrency, 5))):
            for context in _halvings(asked.context):
                for utilization in dict.fromkeys(max(asked.utilization, share) for share in (0.0, 0.95, 0.97)):
                    tried = replace(
                        asked, context=context, concurrency=concurrency, utilization=utilization, batched_tokens=tokens
                    )
                    if tried != asked and _fits(plan, layout, tried, reserves):
                        return tried
    return None


def _mildest(asked: Workload) -> Workload:
    """The last change that would be tried; where it does not fit, none before it does."""
    return replace(
        asked,
        context=list(_halvings(asked.context))[-1],
        concurrency=min(asked.concurrency, 5),
        utilization=max(asked.utilization, 0.97),
        batched_tokens=min(asked.batched_tokens, 4_096),
    )


def _halvings(context: int) -> Iterator[int]:
    yield context
    while (context := context // 2) >= 8_192:
        yield context


def _difference(asked: Workload, tried: Workload) -> str:
    said = []
    if tried.utilization != asked.utilization:
        said.append(f"utilization {tried.utilization}")
    if tried.batched_tokens != asked.batched_tokens:
        said.append(f"{tried.batched_tokens:,} tokens per step")
    if tried.context != asked.context:
        said.append(f"context {tried.context:,}")
    if tried.concurrency != asked.concurrency:
        said.append(f"{tried.concurrency} concurrent requests")
    return ", ".join(said)


def _others(plan: Plan) -> Iterator[Layout]:
    """Other layouts of as many or more whole nodes: fewest GPUs first, wide tensor parallelism before stages."""
    asked = plan.layout
    for gpus in _GPU_COUNTS:
        if gpus < asked.gpus or gpus % plan.gpu.gpus_per_node:
            continue
        for tp in _TENSOR_SIZES:
            cuts_heads = plan.spec.mla.heads % tp == 0 and plan.spec.kda.heads % tp == 0
            if gpus % tp == 0 and cuts_heads:
                layout = Layout(tp=tp, pp=gpus // tp)
                if layout != asked and layout.pp <= len(plan.spec.layers):
                    yield layout
