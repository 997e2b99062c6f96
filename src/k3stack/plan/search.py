"""Search: every legal layout of the given GPUs, ranked for a goal, and why the others were rejected.

The ranking knows memory, topology and public experience, no speed model. Its order:

    latency        exchanges inside one NVLink domain, few stages, one replica, wide tensor parallelism
    throughput     requests of the asked context in flight, exchanges in one domain, few stages, tokens in the cache
    long-context   the longest request, exchanges in one domain, few stages, how many of that length at once

Layouts with an objection (a rule of the recipes) come after all others, with the reason.

Public runs on 16 x H200 agree with the first: one request got 55.3 tokens per second from TP8 x PP2 and 39.4 from TP16
over two nodes (github.com/mnmehta/kimi-k3; the faster run also had a faster MoE kernel).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from k3stack.errors import UsageError
from k3stack.hardware.table import Gpu
from k3stack.plan.assess import Job
from k3stack.plan.layout import Layout, Workload
from k3stack.plan.plan import Plan, Verdict, check, plan_job
from k3stack.plan.releases import release
from k3stack.plan.reserves import Reserves
from k3stack.plan.rules import Objections, no_objections, refusals
from k3stack.spec.model import ModelSpec

__all__ = ["Goal", "Rejected", "Search", "fewest_gpus", "search"]

MAX_GPUS = 256
MAX_STAGES = 16


class Goal(StrEnum):
    """What a deployment is for."""

    LATENCY = "latency"
    THROUGHPUT = "throughput"
    LONG_CONTEXT = "long-context"


@dataclass(frozen=True, slots=True)
class Rejected:
    """A layout that will not do, and the reason."""

    layout: Layout
    why: str


@dataclass(frozen=True, slots=True)
class Search:
    """The answer: plans that can be tried, best first, and what was rejected.

    Attributes:
        because: why the first is first, in words.
    """

    goal: Goal
    engine: str
    gpus: int
    plans: tuple[Plan, ...]
    rejected: tuple[Rejected, ...]
    because: str

    @property
    def yes(self) -> bool:
        """Whether anything can be tried."""
        return bool(self.plans)


def search(
    spec: ModelSpec,
    model: str,
    gpu: Gpu,
    gpus: int,
    workload: Workload,
    goal: Goal = Goal.LATENCY,
    engine: str = "vllm",
    version: str | None = None,
    reserves: Reserves | None = None,
    objections: Objections = no_objections,
) -> Search:
    """All layouts of exactly `gpus` GPUs, ranked.

    Raises:
        UsageError: no GPUs, too many, or a workload that is impossible for this model.
    """
    if not 1 <= gpus <= MAX_GPUS:
        raise UsageError(f"must be 1 to {MAX_GPUS}, not {gpus}", where="--gpus")
    check(spec, Layout(), workload)
    known = release(engine, version)
    plans, rejected = [], []
    for layout in _layouts(spec, gpu, gpus):
        refused = refusals(spec, gpu, layout, workload, engine)
        if refused:
            rejected.append(Rejected(layout, str(refused[0])))
            continue
        plan = plan_job(model, Job(spec, gpu, layout, workload, known, reserves), refused=())
        if plan.yes:
            plans.append(replace(plan, objections=objections(layout, workload)))
        else:
            rejected.append(Rejected(layout, plan.reason))
    plans.sort(key=lambda plan: (not plan.objections, *_KEYS[goal](plan)), reverse=True)
    because = _because(goal, plans[0]) if plans else "nothing fits"
    return Search(goal, engine, gpus, tuple(plans), tuple(rejected), because)


def _layouts(spec: ModelSpec, gpu: Gpu, gpus: int) -> Iterator[Layout]:
    """Layouts worth a look: tensor sizes that could cut the heads, stages and replicas that fill the GPUs."""
    for tp in range(1, gpus + 1):
        # A size that leaves GPUs idle is none of this search's; one that cuts no heads is shown as rejected once.
        if gpus % tp:
            continue
        if spec.mla.heads % tp:
            yield Layout(tp=tp, pp=1, dp=gpus // tp)
            continue
        for pp in range(1, min(gpus // tp, MAX_STAGES) + 1):
            if (gpus // tp) % pp:
                continue
            yield from _variants(gpu, Layout(tp=tp, pp=pp, dp=gpus // (tp * pp)))


def _variants(gpu: Gpu, layout: Layout) -> Iterator[Layout]:
    """With and without expert parallelism; the cache whole, or spread over all ranks of one NVLink domain."""
    spread = {1, layout.tp if layout.tp <= gpu.nvlink_gpus else gpu.nvlink_gpus}
    for dcp in sorted(size for size in spread if layout.tp % size == 0):
        yield replace(layout, dcp=dcp)
        if layout.expert_ranks > 1:
            yield replace(layout, dcp=dcp, ep=True)


def _domain(plan: Plan) -> bool:
    """Whether every layer's exchange (attention over tp, experts over tp x dp) stays inside one NVLink domain."""
    return plan.layout.expert_ranks <= plan.gpu.nvlink_gpus


def _settled(plan: Plan) -> bool:
    return plan.verdict is Verdict.FITS


def _in_flight(plan: Plan) -> int:
    """Requests of the asked context in flight over all replicas, as far as they were asked for."""
    return min(plan.capacity.full_requests * plan.layout.dp, plan.workload.concurrency)


def _latency(plan: Plan) -> tuple[float, ...]:
    layout = plan.layout
    return (_domain(plan), _settled(plan), -layout.pp, -layout.dp, layout.tp, not layout.ep, -layout.dcp)


def _throughput(plan: Plan) -> tuple[float, ...]:
    layout = plan.layout
    tokens = plan.capacity.kv_tokens * layout.dp
    return (_settled(plan), _in_flight(plan), _domain(plan), -layout.pp, tokens, -layout.dp)


def _long_context(plan: Plan) -> tuple[float, ...]:
    capacity, layout = plan.capacity, plan.layout
    tokens = capacity.kv_tokens * layout.dp
    at_once = min(tokens // max(capacity.longest_context, 1), plan.workload.concurrency)
    return (_settled(plan), capacity.longest_context, _domain(plan), -layout.pp, at_once, tokens, -layout.dp)


_KEYS = {Goal.LATENCY: _latency, Goal.THROUGHPUT: _throughput, Goal.LONG_CONTEXT: _long_context}


def _because(goal: Goal, plan: Plan) -> str:
    layout, capacity = plan.layout, plan.capacity
    domain = "inside one NVLink domain" if _domain(plan) else "across NVLink domains, for want of better"
    tokens = capacity.kv_tokens * layout.dp
    if goal is Goal.LATENCY:
        return f"tensor parallelism of {layout.tp} {domain}, {layout.pp} stage(s), {layout.dp} replica(s)"
    if goal is Goal.THROUGHPUT:
        return (
            f"{_in_flight(plan)} of {plan.workload.concurrency} requests at {plan.workload.context:,} tokens at once, "
            f"{tokens:,} tokens in the cache, {domain}"
        )
    return f"one request of up to {capacity.longest_context:,} tokens, {tokens:,} tokens in the cache, {domain}"


@dataclass(frozen=True, slots=True)
class Floor:
    """The fewest GPUs of a kind that hold a model: power-of-two node counts, the mildest workload.

    Attributes:
        gpus: how many; None when 256 are not enough.
        plan: how.
        short_bytes: what each GPU of the next smaller count lacks in its best layout, None for the smallest.
    """

    gpus: int | None
    plan: Plan | None
    short_bytes: int | None


def fewest_gpus(spec: ModelSpec, gpu: Gpu, engine: str = "vllm", version: str | None = None) -> Floor:
    """The fewest whole nodes (1, 2, 4, 8, ...) on which one request of 8,192 tokens fits at utilization 0.95.

    Node counts that are no power of two are not offered: no public recipe runs one.
    """
    mild = Workload(8_192, 1, prefix_caching=False, batched_tokens=4_096, utilization=0.95)
    gpus, short = gpu.gpus_per_node, None
    while gpus <= MAX_GPUS:
        found = [
            plan_job("model", Job(spec, gpu, layout, mild, release(engine, version)), refused=())
            for layout in _layouts(spec, gpu, gpus)
            if not refusals(spec, gpu, layout, mild, engine)
        ]
        fitting = [plan for plan in found if plan.yes]
        if fitting:
            return Floor(gpus, max(fitting, key=_latency), short)
        short = -max((plan.left_bytes for plan in found), default=0) or None
        gpus *= 2
    return Floor(None, None, short)
