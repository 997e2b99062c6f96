"""The plan: does this model do this work on these GPUs, and if not, what would.

What is here today: vLLM, one replica, tensor and pipeline parallelism. The verdict asks for one request of the full
context and the KDA state of all concurrent ones; the tokens that remain are shared by the requests in flight.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from k3stack.errors import UsageError
from k3stack.hardware.table import Gpu
from k3stack.plan.cache import VllmBlocks, vllm_blocks
from k3stack.plan.layout import Layout, Workload
from k3stack.plan.ledger import Ledger, Line
from k3stack.plan.weights import Weights, weights_per_gpu
from k3stack.spec.model import ModelSpec
from k3stack.spec.schemes import Scheme
from k3stack.values import GIB, Origin, format_bytes

__all__ = ["Capacity", "Plan", "Verdict", "make_plan"]

TIGHT_SHARE = 0.02
"""Below this share of a GPU's memory left, a plan is called tight."""


class Verdict(StrEnum):
    """The answer of a plan."""

    FITS = "fits"
    TIGHT = "tight"
    DOES_NOT_FIT = "does not fit"
    NOT_SUPPORTED = "not supported"


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the memory left for the cache holds.

    Attributes:
        cache_bytes: memory for MLA cache and KDA state on one GPU.
        blocks: vLLM's blocks of `block_bytes` in it.
        kv_tokens: tokens that fit besides the KDA state of all concurrent requests.
        full_requests: requests of the full context that fit at once.
    """

    cache_bytes: int
    block_bytes: int
    block_tokens: int
    blocks: int
    kv_tokens: int
    full_requests: int


@dataclass(frozen=True, slots=True)
class Plan:
    """A model, a machine, a layout, a workload, and the answer.

    Attributes:
        model: what an engine is told to load: a folder or a hub id.
        ledger: one GPU (the fullest), for one full request and all KDA states.
        budget_bytes: what the engine may use of one GPU.
        left_bytes: budget less the ledger; negative is what is missing.
        reason: the verdict in a sentence.
        would_fit: the smallest changes that would, when it does not fit.
    """

    model: str
    spec: ModelSpec
    scheme: Scheme
    engine: str
    gpu: Gpu
    layout: Layout
    workload: Workload
    ledger: Ledger
    budget_bytes: int
    left_bytes: int
    capacity: Capacity
    verdict: Verdict
    reason: str
    would_fit: tuple[str, ...] = ()

    @property
    def yes(self) -> bool:
        """Whether it can be tried."""
        return self.verdict in (Verdict.FITS, Verdict.TIGHT)


def make_plan(spec: ModelSpec, model: str, gpu: Gpu, layout: Layout, workload: Workload) -> Plan:
    """Plan one replica on `layout.gpus` GPUs under vLLM.

    Raises:
        UsageError: the layout or the workload is impossible for this model.
    """
    _check(spec, layout, workload)
    plan = _assess(spec, model, gpu, layout, workload)
    if plan.yes:
        return plan
    return replace(plan, would_fit=tuple(_changes(plan)))


def _check(spec: ModelSpec, layout: Layout, workload: Workload) -> None:
    for name, heads in (("KDA", spec.kda.heads), ("MLA", spec.mla.heads)):
        if heads % layout.tp:
            raise UsageError(f"{layout.tp} does not divide the {heads} {name} heads", where="tp")
    if layout.pp > len(spec.layers):
        raise UsageError(f"{layout.pp} stages for {len(spec.layers)} layers", where="pp")
    if workload.context > spec.max_context:
        raise UsageError(f"{workload.context:,} is above the model's {spec.max_context:,} tokens", where="context")


def _assess(spec: ModelSpec, model: str, gpu: Gpu, layout: Layout, workload: Workload) -> Plan:
    budget = int(gpu.memory_bytes * workload.utilization)
    blocks = vllm_blocks(spec, layout, workload.kv_dtype)
    weights = [_weights_line(line, layout) for line in weights_per_gpu(spec, layout)]
    fixed = [*weights, *_reserves(workload)]
    cache = [_state_line(blocks, workload), _kv_line(blocks, layout, workload)]
    ledger = Ledger((*fixed, *cache))
    left = budget - ledger.total_bytes
    capacity = _capacity(blocks, layout, workload, budget - sum(line.size_bytes for line in fixed))
    verdict, reason = _verdict(gpu, ledger, budget, left)
    return Plan(
        model=model,
        spec=spec,
        scheme=spec.scheme,
        engine="vllm",
        gpu=gpu,
        layout=layout,
        workload=workload,
        ledger=ledger,
        budget_bytes=budget,
        left_bytes=left,
        capacity=capacity,
        verdict=verdict,
        reason=reason,
    )


def _weights_line(weights: Weights, layout: Layout) -> Line:
    total, share = weights.total_bytes, weights.rank_bytes
    if share == total:
        formula = "whole on every rank"
    elif abs(share * layout.gpus - total) < layout.gpus:
        formula = f"{total:,} B / {layout.gpus}"
    else:
        formula = f"of {total:,} B: cut where vLLM cuts, the rest whole"
    return Line(f"weights: {weights.component}", share, Origin.COMPUTED, formula)


def _reserves(workload: Workload) -> Iterator[Line]:
    """What an engine takes besides weights and cache; estimated from public vLLM logs of 16 x H200."""
    tokens = workload.batched_tokens
    yield Line(
        "activations",
        tokens * 288 * 1024,
        Origin.ESTIMATED,
        f"{tokens:,} batched tokens x 288 KiB (vLLM logs: 1.2 to 2.2 GiB at 4,096, 1.8 to 2.5 GiB at 8,192)",
    )
    yield Line("NCCL, CUDA context, workspaces", 2 * GIB, Origin.ESTIMATED, "2 GiB (vLLM logs: 1.2 to 2.5 GiB)")


def _state_line(blocks: VllmBlocks, workload: Workload) -> Line:
    per_sequence = blocks.state_blocks(workload.prefix_caching)
    return Line(
        f"KDA state of {workload.concurrency} requests",
        workload.concurrency * per_sequence * blocks.block_bytes,
        Origin.COMPUTED,
        f"{workload.concurrency} x {per_sequence} blocks x {blocks.block_bytes:,} B"
        + (" (prefix caching, align mode: 3 a group)" if workload.prefix_caching else ""),
    )


def _kv_line(blocks: VllmBlocks, layout: Layout, workload: Workload) -> Line:
    count = blocks.token_blocks(workload.context, layout.dcp)
    return Line(
        f"MLA cache of one {workload.context:,}-token request",
        count * blocks.block_bytes,
        Origin.COMPUTED,
        f"{count} blocks of {blocks.tokens:,} tokens x {blocks.block_bytes:,} B, on every rank",
    )


def _capacity(blocks: VllmBlocks, layout: Layout, workload: Workload, cache_bytes: int) -> Capacity:
    count = max(cache_bytes, 0) // blocks.block_bytes
    states = blocks.state_blocks(workload.prefix_caching)
    per_request = states + blocks.token_blocks(workload.context, layout.dcp)
    for_tokens = max(count - workload.concurrency * states, 0)
    return Capacity(
        cache_bytes=max(cache_bytes, 0),
        block_bytes=blocks.block_bytes,
        block_tokens=blocks.tokens * layout.dcp,
        blocks=count,
        kv_tokens=for_tokens * blocks.tokens * layout.dcp,
        full_requests=count // per_request,
    )


def _verdict(gpu: Gpu, ledger: Ledger, budget: int, left: int) -> tuple[Verdict, str]:
    need, have = format_bytes(ledger.total_bytes), format_bytes(budget)
    if left < 0:
        return (
            Verdict.DOES_NOT_FIT,
            f"each {gpu.name} needs {need} and may use {have}: {format_bytes(-left)} too much",
        )
    if left < TIGHT_SHARE * gpu.memory_bytes:
        return (
            Verdict.TIGHT,
            f"each {gpu.name} needs {need} of {have}; only {format_bytes(left)} left, under "
            f"{TIGHT_SHARE:.0%} of its memory",
        )
    return Verdict.FITS, f"each {gpu.name} needs {need} of {have}; {format_bytes(left)} left"


def _changes(plan: Plan) -> Iterator[str]:
    """The smallest changes that would fit: the fewest GPUs for a milder workload, and the fewest for this one."""
    milder = _milder(plan, plan.layout)
    if milder is not None:
        yield f"{plan.layout.gpus} x {plan.gpu.name} with {milder}"
    for layout in _others(plan):
        if _assess(plan.spec, plan.model, plan.gpu, layout, plan.workload).yes:
            yield f"{layout.gpus} x {plan.gpu.name} ({_describe(layout)}) as asked"
            return
        if milder is None:
            milder = _milder(plan, layout)
            if milder is not None:
                yield f"{layout.gpus} x {plan.gpu.name} ({_describe(layout)}) with {milder}"


def _milder(plan: Plan, layout: Layout) -> str | None:
    """The mildest change of the workload that fits: more memory for the engine, less context, fewer requests."""
    asked = plan.workload
    for concurrency in dict.fromkeys((asked.concurrency, min(asked.concurrency, 5))):
        for context in _halvings(asked.context):
            for utilization in dict.fromkeys(max(asked.utilization, share) for share in (0.0, 0.95, 0.97)):
                tried = replace(asked, context=context, concurrency=concurrency, utilization=utilization)
                if tried != asked and _assess(plan.spec, plan.model, plan.gpu, layout, tried).yes:
                    return _difference(asked, tried)
    return None


def _halvings(context: int) -> Iterator[int]:
    yield context
    while (context := context // 2) >= 8_192:
        yield context


def _difference(asked: Workload, tried: Workload) -> str:
    said = []
    if tried.utilization != asked.utilization:
        said.append(f"utilization {tried.utilization}")
    if tried.context != asked.context:
        said.append(f"context {tried.context:,}")
    if tried.concurrency != asked.concurrency:
        said.append(f"{tried.concurrency} concurrent requests")
    return ", ".join(said)


def _others(plan: Plan) -> Iterator[Layout]:
    """Other layouts of as many or more whole nodes: fewest GPUs first, wide tensor parallelism before stages."""
    for gpus in (4, 8, 16, 32, 64, 128):
        if gpus < plan.layout.gpus or gpus % plan.gpu.gpus_per_node:
            continue
        for tp in (32, 16, 8):
            cuts_heads = plan.spec.mla.heads % tp == 0 and plan.spec.kda.heads % tp == 0
            if gpus % tp == 0 and cuts_heads and (tp, gpus // tp) != (plan.layout.tp, plan.layout.pp):
                yield Layout(tp=tp, pp=gpus // tp)


def _describe(layout: Layout) -> str:
    return f"TP{layout.tp}" + (f" x PP{layout.pp}" if layout.pp > 1 else "")
