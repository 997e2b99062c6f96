"""Predicted beside reported: what our arithmetic says about a run that a log describes, and why it differs.

Each prediction starts from what the log itself states where one quantity follows from another (blocks follow from the
available memory), so a difference points at one step. Memory is printed in hundredths of a GiB: where that leaves a
choice, the range is given and anything in it agrees.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from k3stack.errors import InputError
from k3stack.plan.cache import VllmBlocks, kda_state_bytes_per_layer, vllm_blocks
from k3stack.plan.layout import KvDtype, Layout, Workload
from k3stack.plan.logs import Figure, Observed, unit_of
from k3stack.plan.releases import Release, planned_release, release
from k3stack.plan.reserves import reserve_lines
from k3stack.plan.sglang import DEFAULT_RATIO, sglang_pools
from k3stack.plan.stages import Stage, stages
from k3stack.plan.weights import weights_of_stage
from k3stack.spec.model import Attention, ModelSpec
from k3stack.spec.sizes import measure
from k3stack.values import GIB, Origin

__all__ = ["Comparison", "Run", "compare", "run_of"]

TOLERANCE = 0.02
"""A difference above this share is explained."""

_BETWEEN = "0.28.0"  # a release with whole experts under EP, without the checkpoint's state

_ROUNDING = 0.005  # GiB: what "%.2f" hides
_SLOTS = {"no_buffer": 3, "extra_buffer_lazy": 4, "extra_buffer": 5, "auto": 3}


@dataclass(frozen=True, slots=True)
class Comparison:
    """One quantity, predicted and reported.

    Attributes:
        predicted: what we compute; None where the log lacks what it depends on.
        low, high: the range that rounding in the log leaves to the prediction.
        reported: what the log says; the greatest value where workers differ (the least for memory available).
        agrees: within the range, or within 2 %; None where there is nothing to compare.
        why: how it was predicted, and why it differs.
    """

    quantity: str
    unit: str
    predicted: float | None
    low: float | None
    high: float | None
    reported: float | None
    origin: Origin
    agrees: bool | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Run:
    """The run that a log describes, in our words; `stage` is the one whose memory it reports."""

    layout: Layout
    workload: Workload
    release: Release
    stages: tuple[Stage, ...]
    stage: Stage


def run_of(seen: Observed, spec: ModelSpec) -> Run:
    """The layout, workload and release of a log.

    Raises:
        InputError: it does not say how many ranks it ran on.
    """
    tp = seen.number("tp")
    if tp is None:
        raise InputError(
            "does not say the tensor-parallel size",
            where=seen.source,
            hint="Give the log from its first line on, with the server's arguments.",
        )
    strategy = seen.setting("slot_strategy")
    dp = seen.number("dp") or 1
    if seen.engine == "sglang" and dp > 1:
        tp //= dp  # SGLang's tp counts all ranks, data-parallel attention included
    layout = Layout(tp, seen.number("pp") or 1, dp, _ep(seen), seen.number("dcp") or 1)
    utilization = float(seen.setting("utilization") or 0.9)
    workload = Workload(
        context=min(seen.number("context") or spec.max_context, spec.max_context),
        concurrency=(seen.number("requests") or 1) * layout.dp,
        kv_dtype=_kv_dtype(seen.setting("kv_dtype")),
        prefix_caching=_prefix_caching(seen),
        batched_tokens=seen.number("tokens") or 8_192,
        utilization=utilization,
        speculative_tokens=seen.number("draft_tokens") or 0,
        replay_ssm=seen.setting("replay_ssm") == "True",
        state_slots=_SLOTS.get(strategy) if strategy else None,
        state_ratio=float(seen.setting("state_ratio") or DEFAULT_RATIO) if seen.engine == "sglang" else None,
    )
    found = stages(len(spec.layers), layout.pp, seen.engine)
    stage = found[min(seen.number("stage") or 0, len(found) - 1)]
    return Run(layout, workload, release(seen.engine, seen.version or planned_release(seen.engine)), found, stage)


def _ep(seen: Observed) -> bool:
    if seen.engine == "sglang":
        return (seen.number("ep") or 1) > 1
    return seen.setting("ep") == "True"


def _kv_dtype(name: str | None) -> KvDtype:
    if name is None or name in ("auto", "bfloat16", "bf16"):
        return KvDtype.BF16
    return KvDtype.FP8_DS_MLA if "ds_mla" in name else KvDtype.FP8


def _prefix_caching(seen: Observed) -> bool:
    if seen.engine == "sglang":
        return seen.setting("radix_off") != "True"
    return seen.setting("prefix_caching") == "True"


def compare(seen: Observed, spec: ModelSpec) -> tuple[Comparison, ...]:
    """Predicted beside reported for every quantity found that follows from the model and the run.

    Raises:
        InputError: the log does not say how many ranks it ran on.
    """
    run = run_of(seen, spec)
    if seen.engine == "sglang":
        return tuple(_sglang(seen, spec, run))
    first = tuple(_vllm(seen, spec, run))
    if not _development_build(seen.version) or not _misses(first):
        return first
    return _like_a_release(seen, spec, run, first)


def _development_build(version: str | None) -> bool:
    """Whether the version does not say how old a build is: images built from a branch print 0.1.devN."""
    return version is None or version.startswith("0.1.dev")


def _misses(found: tuple[Comparison, ...]) -> int:
    """How many computed quantities differ from the log."""
    return sum(one.agrees is False and one.origin is Origin.COMPUTED for one in found)


def _like_a_release(seen: Observed, spec: ModelSpec, run: Run, first: tuple[Comparison, ...]) -> tuple[Comparison, ...]:
    """A development build counted like the release that it agrees with best, and saying so."""
    best = first
    for version in (_BETWEEN, planned_release("vllm")):
        tried = tuple(_vllm(seen, spec, replace(run, release=release("vllm", version))))
        if _misses(tried) < _misses(best):
            note = f"counted like vLLM {version}, which this development build agrees with"
            best = tuple(replace(one, why=f"{one.why}; {note}") for one in tried)
    return best


def _vllm(seen: Observed, spec: ModelSpec, run: Run) -> Iterator[Comparison]:
    blocks = vllm_blocks(spec, run.layout, run.workload, run.release, run.stages)
    yield _one(seen, "checkpoint", measure(spec).file_bytes / GIB, Origin.COMPUTED, "sum of the safetensors files")
    yield from _load(seen, spec, run)
    yield _one(seen, "block size", blocks.tokens, Origin.COMPUTED, "128-multiple that holds one layer's KDA state")
    padding = 100 * blocks.state_padding / (1 - blocks.state_padding)
    yield _one(seen, "state padding", round(padding, 2), Origin.COMPUTED, "page less state, over state")
    yield _one(
        seen, "padding layers", _padding_layers(spec, blocks), Origin.COMPUTED, "places in groups that hold no layer"
    )
    device = seen.figure("device memory")
    if device is not None:
        budget = run.workload.utilization * device.greatest
        yield _one(seen, "memory budget", budget, Origin.COMPUTED, "utilization x device memory")
    yield from _reserves(seen, spec, run)
    yield from _available(seen)
    yield from _cache(seen, run, blocks)


def _load(seen: Observed, spec: ModelSpec, run: Run) -> Iterator[Comparison]:
    size = sum(part.rank_bytes for part in weights_of_stage(spec, run.layout, run.release, run.stage)) / GIB
    why = f"weights of stage {run.stage.index}, {run.layout.describe()}, {spec.scheme}"
    yield _one(seen, "model load memory", size, Origin.COMPUTED, why)


def _padding_layers(spec: ModelSpec, blocks: VllmBlocks) -> int:
    kda, mla = len(spec.layers_of(Attention.KDA)), len(spec.layers_of(Attention.MLA))
    size = min(kda, mla) if max(kda, mla) >= 1.5 * min(kda, mla) else max(kda, mla)
    return blocks.state_groups * size - kda


def _reserves(seen: Observed, spec: ModelSpec, run: Run) -> Iterator[Comparison]:
    """What no formula gives: the public fit beside this site's figures."""
    weights = sum(part.rank_bytes for part in weights_of_stage(spec, run.layout, run.release, run.stage))
    other, activations, graphs = reserve_lines(run.workload, run.workload.per_replica(run.layout), None)
    note = "an estimate from public logs; what this log reports is this site's value, `--save` keeps it"
    consumed = (weights + other.size_bytes) / GIB
    yield _one(seen, "consumed before cache", consumed, Origin.ESTIMATED, f"weights and workspaces, {note}")
    peak = activations.size_bytes + (graphs.size_bytes if run.release.graphs_in_budget else 0)
    with_graphs = "with the graphs that this release expects, " if run.release.graphs_in_budget else ""
    yield _one(seen, "peak activations", peak / GIB, Origin.ESTIMATED, with_graphs + note)
    yield _one(seen, "CUDA graphs", graphs.size_bytes / GIB, Origin.ESTIMATED, note)


def _available(seen: Observed) -> Iterator[Comparison]:
    """Memory for the cache, from the budget and what the log says was consumed."""
    budget, consumed, peak = (
        seen.figure(name) for name in ("memory budget", "consumed before cache", "peak activations")
    )
    if budget is None or consumed is None or peak is None:
        return
    pairs = zip(consumed.values, peak.values, strict=False)
    least = min(budget.least - used - high for used, high in pairs)
    yield _one(
        seen, "available cache memory", least, Origin.COMPUTED, "budget - consumed - peak activations, as logged"
    )


def _cache(seen: Observed, run: Run, blocks: VllmBlocks) -> Iterator[Comparison]:
    """Blocks, printed tokens and concurrency, exact given the memory."""
    memory = _cache_memory(seen)
    context = run.workload.context
    request = blocks.request_blocks(context)
    why = f"{blocks.token_blocks(context)} + {blocks.state_blocks} blocks per request of {context:,} tokens"
    if memory is None:
        counts = _counts_from_tokens(seen, request, context)
        why = f"no memory figure: the whole number of blocks that gives the tokens printed; {why}"
    elif seen.number("cache_bytes") is not None:
        count = blocks.count((memory[0],) * run.layout.pp)
        counts = (count, count, count)
        why = f"{memory[0]:,} B on every GPU; {why}"
    else:
        page = blocks.block_bytes(run.stage.index)
        counts = (int(memory[0] // page), int(memory[1] // page), int(memory[2] // page))
        why = f"memory / {page:,} B per block; {why}"
    if counts is None:
        return
    low, nominal, high = counts
    others = _other_stages(seen, run, blocks, low) if memory is not None else ""
    span = (nominal, low, high)
    tokens = _span(blocks.printed_tokens(count, context) for count in span)
    rates = _span(round(blocks.concurrency(count, context), 2) for count in span)
    yield _exact(seen, "blocks", span, why + others, bool(others))
    yield _exact(
        seen, "GPU KV cache size", tokens, f"int(blocks / {request} x {context:,}); {why}{others}", bool(others)
    )
    yield _exact(seen, "maximum concurrency", rates, why + others, bool(others))
    needed = request * blocks.block_bytes(run.stage.index) / GIB
    if seen.figure("needed cache memory"):
        yield _one(seen, "needed cache memory", needed, Origin.COMPUTED, f"{request} blocks for one full request")
    if seen.figure("longest context offered"):
        yield _exact(seen, "longest context offered", _span(blocks.longest(count) for count in span), why)
    if seen.figure("requests offered"):
        yield _exact(seen, "requests offered", span, "one state block per request; as many as blocks")


def _other_stages(seen: Observed, run: Run, blocks: VllmBlocks, low: int) -> str:
    """Under pipelining the smallest stage decides: what another one must have had when this one could hold more."""
    printed = seen.figure("GPU KV cache size")
    if run.layout.pp == 1 or printed is None:
        return ""
    count = -(-int(printed.least) * blocks.request_blocks(run.workload.context) // run.workload.context)
    if count >= low:
        return ""
    fullest = max(run.stages, key=lambda stage: blocks.pages[stage.index])
    had = count * blocks.block_bytes(fullest.index) / GIB
    return (
        f"; stage {run.stage.index} could hold more than the {count:,} blocks printed: another stage decided "
        f"(stage {fullest.index}, {blocks.pages[fullest.index]} pages per block, had {had:.2f} GiB)"
    )


def _cache_memory(seen: Observed) -> tuple[int, int, int] | None:
    """Bytes for the cache: least, as printed, most; from an exact setting or from rounded figures."""
    by_hand = seen.number("cache_bytes")
    if by_hand is not None:
        return by_hand, by_hand, by_hand
    figures = [found for name in ("available cache memory", "cache memory in use") if (found := seen.figure(name))]
    if not figures:
        return None
    least = min(figure.least for figure in figures)
    return (int((least - _ROUNDING) * GIB), int(least * GIB), int((least + _ROUNDING) * GIB))


def _counts_from_tokens(seen: Observed, request: int, context: int) -> tuple[int, int, int] | None:
    """Without a memory figure: the one block count that gives the printed tokens, if there is one."""
    figure = seen.figure("GPU KV cache size")
    if figure is None:
        return None
    count = -(-int(figure.least) * request // context)
    return count, count, count


def _sglang(seen: Observed, spec: ModelSpec, run: Run) -> Iterator[Comparison]:
    yield from _load(seen, spec, run)
    before, after = seen.figure("memory before load"), seen.figure("memory after load")
    pools = sglang_pools(spec, run.layout, run.workload, run.stages, run.stage)
    ratio = run.workload.state_ratio or DEFAULT_RATIO
    slots = seen.figure("state slots")
    if before is not None and after is not None:
        pool = int((after.least - before.least * (1 - run.workload.utilization)) * GIB)
        why = f"pool of {pool / GIB:.2f} GiB = free after load - (1 - mem-fraction-static) x free before; ratio {ratio}"
        yield _one(seen, "state slots", pools.slots_in(pool, ratio), Origin.COMPUTED, why)
        yield _one(seen, "KV tokens", pools.tokens_in(pool, ratio), Origin.COMPUTED, why)
        yield _one(
            seen,
            "running requests",
            pools.requests_in(pool, ratio),
            Origin.COMPUTED,
            f"slots // {pools.slots_per_request}",
        )
    if slots is not None:
        kda = run.stage.layers_of(spec, Attention.KDA)
        state = kda_state_bytes_per_layer(spec, run.workload.state_dtype) // run.layout.tp
        recurrent = spec.kda.heads * spec.kda.head_dim**2 * run.workload.state_dtype.size_bytes // run.layout.tp
        held = slots.greatest + 1
        why = f"({slots.greatest:,.0f} + 1) slots x {kda} layers, as logged"
        yield _one(seen, "recurrent state", held * kda * recurrent / GIB, Origin.COMPUTED, why)
        yield _one(seen, "convolution state", held * kda * (state - recurrent) / GIB, Origin.COMPUTED, why)
    tokens = seen.figure("KV tokens")
    if tokens is not None:
        yield _one(
            seen, "cache memory", tokens.greatest * pools.token_bytes / GIB, Origin.COMPUTED, "tokens x bytes per token"
        )


def _one(seen: Observed, name: str, predicted: float, origin: Origin, why: str) -> Comparison:
    """A comparison within 2 %, or within what two decimals hide."""
    figure = seen.figure(name)
    if figure is None:
        return Comparison(
            name, unit_of(seen.engine, name), predicted, None, None, None, origin, None, f"{why}; not in this log"
        )
    reported = _reported(figure)
    off = predicted - reported
    agrees = abs(off) <= max(TOLERANCE * abs(reported), 2 * _ROUNDING)
    if not agrees:
        why += f"; {off / reported if reported else float('inf'):+.1%} off" if reported else "; reported as none"
    return Comparison(name, figure.unit, predicted, None, None, reported, origin, agrees, why)


def _span(values: Iterable[float]) -> tuple[float, float, float]:
    """As printed, least, most."""
    nominal, low, high = values
    return nominal, low, high


def _exact(seen: Observed, name: str, span: tuple[float, float, float], why: str, bound: bool = False) -> Comparison:
    """A comparison that must hit the number, or lie in the range that rounding leaves; `bound`: only stay below it."""
    predicted, low, high = span
    figure = seen.figure(name)
    if figure is None:
        return Comparison(name, unit_of(seen.engine, name), predicted, low, high, None, Origin.COMPUTED, None, why)
    reported = _reported(figure)
    agrees = None if bound and reported < low else low <= reported <= high
    return Comparison(name, figure.unit, predicted, low, high, reported, Origin.COMPUTED, agrees, why)


def _reported(figure: Figure) -> float:
    return figure.least if "available" in figure.name else figure.greatest
