"""Assess one layout: the ledger of every pipeline stage, what is left, and what the cache holds.

The ledger asks for one request of the full context and the KDA state of all requests in flight; what remains is shared
by the requests. Stages differ (layers, embedding, head), so each is summed up and the one with the least left is shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

from k3stack.hardware.table import Gpu
from k3stack.plan.cache import VllmBlocks, vllm_blocks
from k3stack.plan.draft import dspark_rank_bytes
from k3stack.plan.layout import Layout, Workload
from k3stack.plan.ledger import Ledger, Line
from k3stack.plan.releases import Release
from k3stack.plan.reserves import Reserves, reserve_lines
from k3stack.plan.sglang import DEFAULT_RATIO, PAGE_TOKENS, SglangPools, sglang_pools
from k3stack.plan.stages import Stage, stages
from k3stack.plan.weights import Weights, weights_by_stage
from k3stack.spec.model import ModelSpec
from k3stack.values import Origin

__all__ = ["Assessment", "Capacity", "Job", "assess", "left_bytes"]


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be assessed, all of it: a model on GPUs under an engine with a workload."""

    spec: ModelSpec
    gpu: Gpu
    layout: Layout
    workload: Workload
    release: Release
    reserves: Reserves | None = None

    @property
    def budget_bytes(self) -> int:
        """What the engine may use of one GPU (vLLM: gpu-memory-utilization; SGLang: mem-fraction-static)."""
        return int(self.gpu.memory_bytes * self.workload.utilization)


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the memory left for the cache holds, per data-parallel replica.

    Attributes:
        cache_bytes: memory for MLA cache and KDA state on one GPU of the stage that decides.
        block_bytes: vLLM: one physical block; SGLang: one state slot.
        block_tokens: tokens of one block over all DCP ranks; SGLang: of one page.
        blocks: vLLM: blocks in the pool; SGLang: state slots in theirs.
        kv_tokens: tokens that fit besides the KDA state of all requests in flight.
        full_requests: requests of the full context that fit at once.
        printed_tokens: what the engine will print: vLLM "GPU KV cache size", SGLang max_total_num_tokens.
        longest_context: the longest single request that fits, up to the model's limit.
        state_requests: requests whose KDA state alone fits.
        limited_by: what ends first when more requests of the full context arrive.
        state_ratio: SGLang's mamba-full-memory-ratio in use; None for vLLM.
        balanced_ratio: the ratio at which both of SGLang's pools run out together when all requests are at full
            context.
    """

    cache_bytes: int
    block_bytes: int
    block_tokens: int
    blocks: int
    kv_tokens: int
    full_requests: int
    printed_tokens: int = 0
    longest_context: int = 0
    state_requests: int = 0
    limited_by: str = ""
    state_ratio: float | None = None
    balanced_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class Assessment:
    """The ledger of the decisive stage, memory left in it (negative: missing), and the capacity."""

    ledger: Ledger
    left_bytes: int
    capacity: Capacity
    notes: tuple[str, ...] = ()


def assess(job: Job) -> Assessment:
    """Sum up every stage of a layout."""
    fixed = _fixed(job)
    return (_vllm if job.release.engine == "vllm" else _sglang)(job, fixed)


def left_bytes(job: Job) -> int:
    """What `assess` would say is left, without ledger and capacity: a search for what would fit asks nothing else."""
    fixed = _fixed(job)
    if job.release.engine == "vllm":
        return min(_vllm_left(job, _blocks(job, fixed.found), fixed.free))
    return min(_sglang_split(job, fixed.found, fixed.free)[2])


def _fixed(job: Job) -> _Fixed:
    found = stages(len(job.spec.layers), job.layout.pp, job.release.engine)
    weights = weights_by_stage(job.spec, job.layout, job.release, found, job.workload.vision)
    return _Fixed(job, found, weights, tuple(_reserved(job)))


def _reserved(job: Job) -> Iterator[Line]:
    """Reserves that count against the budget, the same on every stage."""
    other, activations, graphs = reserve_lines(job.workload, job.workload.per_replica(job.layout), job.reserves)
    yield other
    if job.release.engine == "vllm":
        yield activations
        if job.release.graphs_in_budget:
            yield graphs


@dataclass(frozen=True, slots=True)
class _Fixed:
    """What does not depend on requests, per stage: weights, draft, reserves. Lines are written for one stage only."""

    job: Job
    found: tuple[Stage, ...]
    weights: list[tuple[Weights, ...]]
    reserved: tuple[Line, ...]

    def draft_bytes(self, index: int) -> int:
        """The draft sits on the last stage."""
        drafted = self.job.workload.speculative_tokens and self.found[index].last
        return dspark_rank_bytes(self.job.layout.tp) if drafted else 0

    def size_bytes(self, index: int) -> int:
        """Bytes on one GPU of a stage."""
        weights = sum(part.rank_bytes for part in self.weights[index])
        return weights + self.draft_bytes(index) + sum(line.size_bytes for line in self.reserved)

    @property
    def free(self) -> list[int]:
        """What each stage has for requests."""
        return [self.job.budget_bytes - self.size_bytes(index) for index in range(len(self.found))]

    def lines(self, index: int) -> list[Line]:
        """The same as ledger lines."""
        lines = [_weights_line(part, self.job.layout) for part in self.weights[index] if part.rank_bytes]
        if size := self.draft_bytes(index):
            lines.append(Line("weights: DSpark draft", size, Origin.COMPUTED, "Inferact's shape; its inputs whole"))
        return [*lines, *self.reserved]


def _weights_line(part: Weights, layout: Layout) -> Line:
    total, share = part.total_bytes, part.rank_bytes
    if share == total:
        formula = "whole on every rank"
    elif abs(share * layout.gpus - total) < layout.gpus:
        formula = f"{total:,} B / {layout.gpus}"
    elif share * layout.gpus > total * 1.2 and part.component.value == "routed experts":
        formula = f"of {total:,} B: rows padded for the kernel, {share * layout.gpus / total:.2f} times the share"
    else:
        formula = f"of {total:,} B: cut where the engine cuts, the rest whole"
    return Line(f"weights: {part.component}", share, Origin.COMPUTED, formula)


def _blocks(job: Job, found: tuple[Stage, ...]) -> VllmBlocks:
    return vllm_blocks(job.spec, job.layout, job.workload, job.release, found, job.gpu.vendor == "nvidia")


def _vllm_left(job: Job, blocks: VllmBlocks, free: list[int]) -> list[int]:
    """Bytes left on one GPU of each stage."""
    requests = job.workload.per_replica(job.layout)
    needed = requests * blocks.state_blocks + blocks.token_blocks(job.workload.context) + blocks.null_blocks
    return [size - needed * blocks.block_bytes(stage) for stage, size in enumerate(free)]


def _vllm(job: Job, fixed: _Fixed) -> Assessment:
    blocks, free = _blocks(job, fixed.found), fixed.free
    requests, work = job.workload.per_replica(job.layout), job.workload
    states, tokens = blocks.state_blocks, blocks.token_blocks(work.context)
    left = _vllm_left(job, blocks, free)
    worst = left.index(min(left))
    page = blocks.block_bytes(worst)
    cache = [
        Line(
            f"KDA state of {_requests(requests)}",
            requests * states * page,
            Origin.COMPUTED,
            f"{requests} x {states} blocks ({blocks.states} in each of {blocks.state_groups} groups) x {page:,} B",
        ),
        Line(
            f"MLA cache of one {work.context:,}-token request",
            (tokens + blocks.null_blocks) * page,
            Origin.COMPUTED,
            f"{tokens} blocks of {blocks.tokens * blocks.dcp:,} tokens x {page:,} B"
            + (", one block set aside" if blocks.null_blocks else "")
            + (f", spread over {blocks.dcp} ranks" if blocks.dcp > 1 else ", the same on every rank"),
        ),
    ]
    count = blocks.count(tuple(free))
    return Assessment(
        Ledger((*fixed.lines(worst), *cache), worst),
        left[worst],
        _vllm_capacity(job, blocks, count, requests, free[worst], page),
        () if job.release.graphs_in_budget else ("CUDA graphs come on top of the budget in this release",),
    )


def _vllm_capacity(job: Job, blocks: VllmBlocks, count: int, requests: int, free: int, page: int) -> Capacity:
    context = job.workload.context
    full = count // blocks.request_blocks(context)
    by_tokens = blocks.token_blocks(context) >= blocks.state_blocks
    ends = "KV blocks" if by_tokens else "KDA state blocks"
    return Capacity(
        cache_bytes=max(free, 0),
        block_bytes=page,
        block_tokens=blocks.tokens * blocks.dcp,
        blocks=count,
        kv_tokens=max(count - requests * blocks.state_blocks, 0) // blocks.mla_groups * blocks.tokens * blocks.dcp,
        full_requests=full,
        printed_tokens=blocks.printed_tokens(count, context),
        longest_context=min(blocks.longest(count), job.spec.max_context),
        state_requests=count // blocks.state_blocks,
        limited_by="max-num-seqs" if full >= requests else ends,
    )


def _sglang_split(job: Job, found: tuple[Stage, ...], free: list[int]) -> tuple[list[SglangPools], float, list[int]]:
    """Each stage's pools, the ratio between them, and bytes left in the tighter one."""
    work, layout = job.workload, job.layout
    requests = work.per_replica(layout)
    pools = [sglang_pools(job.spec, layout, work, found, stage) for stage in found]
    ratio = max(
        _ratio(work.state_ratio, pool.states_for(requests), size) for pool, size in zip(pools, free, strict=True)
    )
    return pools, ratio, [_sglang_left(job, pool, size, ratio) for pool, size in zip(pools, free, strict=True)]


def _sglang(job: Job, fixed: _Fixed) -> Assessment:
    free = fixed.free
    pools, ratio, left = _sglang_split(job, fixed.found, free)
    worst = left.index(min(left))
    return Assessment(
        Ledger((*fixed.lines(worst), *_sglang_lines(job, pools[worst])), worst),
        left[worst],
        _sglang_capacity(job, pools, free, worst, ratio),
        _sglang_notes(job),
    )


def _sglang_notes(job: Job) -> tuple[str, ...]:
    """What SGLang takes outside its static share must find room in the rest."""
    work = job.workload
    _, activations, graphs = reserve_lines(work, work.per_replica(job.layout), job.reserves)
    slack, dynamic = job.gpu.memory_bytes - job.budget_bytes, activations.size_bytes + graphs.size_bytes
    if dynamic <= slack:
        return ()
    return (
        f"activations and CUDA graphs are estimated at {dynamic:,} B; mem-fraction-static {work.utilization} "
        f"leaves {slack:,} B for them",
    )


def _sglang_lines(job: Job, pools: SglangPools) -> tuple[Line, Line]:
    """The two pools: slots for all requests in flight, tokens of one full request."""
    work, requests = job.workload, job.workload.per_replica(job.layout)
    kept = f", and {pools.verified_tokens} states per request to verify a draft" if pools.verified_tokens else ""
    return (
        Line(
            f"KDA state slots of {_requests(requests)}",
            pools.states_for(requests),
            Origin.COMPUTED,
            f"({requests} x {pools.slots_per_request} + 1) slots x {pools.slot_bytes:,} B{kept}",
        ),
        Line(
            f"MLA cache of one {work.context:,}-token request",
            pools.tokens_for(work.context),
            Origin.COMPUTED,
            f"{pools.token_bytes:,.0f} B per token, whole pages"
            + (f", spread over {pools.dcp} ranks" if pools.dcp > 1 else ", the same on every rank"),
        ),
    )


def _sglang_left(job: Job, pools: SglangPools, free: int, ratio: float) -> int:
    """Bytes left in the tighter pool of one stage; negative is what is missing."""
    requests = job.workload.per_replica(job.layout)
    states, tokens = pools.states_for(requests), pools.tokens_for(job.workload.context)
    left = free - states - tokens
    if pools.token_bytes:
        left = min(left, round(pools.tokens_in(max(free, 0), ratio) * pools.token_bytes) - tokens)
    if pools.requests_in(max(free, 0), ratio) < requests:
        left = min(left, round(free * ratio / (1 + ratio)) - states, -1)
    return left


def _sglang_capacity(job: Job, pools: list[SglangPools], free: list[int], worst: int, ratio: float) -> Capacity:
    """What all stages hold: the smallest decides."""
    sizes = [max(size, 0) for size in free]
    slots = min(pool.slots_in(size, ratio) for pool, size in zip(pools, sizes, strict=True))
    held = min(pool.tokens_in(size, ratio) for pool, size in zip(pools, sizes, strict=True))
    context, requests = job.workload.context, job.workload.per_replica(job.layout)
    running = slots // pools[worst].slots_per_request
    full = min(held // context, running)
    ends = "state slots" if running <= held // context else "KV tokens"
    return Capacity(
        cache_bytes=sizes[worst],
        block_bytes=pools[worst].slot_bytes,
        block_tokens=PAGE_TOKENS * pools[worst].dcp,
        blocks=slots,
        kv_tokens=held,
        full_requests=full,
        printed_tokens=held,
        longest_context=min(held, job.spec.max_context),
        state_requests=running,
        limited_by="max-running-requests" if full >= requests else ends,
        state_ratio=ratio,
        balanced_ratio=round(pools[worst].balance(context), 3) if pools[worst].token_bytes else None,
    )


def _ratio(asked: float | None, states: int, free: int) -> float:
    """The ratio asked for, or the one that gives the states what they need, rounded up to three digits."""
    if asked is not None:
        return asked
    return ceil(states / (free - states) * 1_000) / 1_000 if free > states else DEFAULT_RATIO


def _requests(count: int) -> str:
    return f"{count} request" if count == 1 else f"{count} requests"
