"""From what somebody says to a choice: what is left open is as published for the hardware and the goal.

Requests at once, and then their length, are halved until they fit, but only where nobody asked for a number.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

from k3stack.errors import NotKnownError, UsageError
from k3stack.hardware.table import Gpu
from k3stack.plan.layout import KvDtype, Layout, Workload
from k3stack.plan.reserves import Reserves
from k3stack.recipe.choice import (
    UTILIZATION_STANDARD,
    Choice,
    Feature,
    Goal,
    Parsers,
    Serving,
    kv_standard,
    standard_version,
)
from k3stack.recipe.fit import Fit, fit
from k3stack.recipe.suggest import Suggestion, suggest
from k3stack.spec.model import ModelSpec
from k3stack.spec.published import smaller_than_published
from k3stack.spec.schemes import Scheme

__all__ = ["CONCURRENCY_STANDARD", "MARGIN_BYTES", "Wanted", "Wishes", "choose", "fitting", "lowered"]

MARGIN_BYTES = 10**9
"""What must be left for a number that we choose: the estimate of reserves is up to 1.1 GiB off."""

CONCURRENCY_STANDARD = {Goal.LOW_LATENCY: 32, Goal.BALANCED: 32, Goal.HIGH_THROUGHPUT: 128}
"""Requests at once when nobody asks: the model card's 32; for throughput eight for each of 16 replicas, as in the
recipe's decode role."""

SHORTEST = 16_384
"""Tokens below which a context is not lowered by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What somebody says about a deployment, wherever it will run; None is left open.

    Attributes:
        gpus: how many GPUs; the sizes of the layout must multiply to it.
    """

    version: str | None = None
    goal: Goal = Goal.BALANCED
    serving: Serving = Serving.UNIFIED
    features: tuple[Feature, ...] = ()
    gpus: int | None = None
    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    ep: bool | None = None
    dcp: int | None = None
    context: int | None = None
    concurrency: int | None = None
    kv_dtype: KvDtype | None = None
    prefix_caching: bool = True
    batched_tokens: int | None = None
    utilization: float | None = None
    prefill_utilization: float | None = None
    parsers: Parsers = Parsers.KIMI_K3

    @property
    def layout_open(self) -> bool:
        """Whether nothing was said about the layout."""
        return all(one is None for one in (self.gpus, self.tp, self.pp, self.dp, self.ep, self.dcp))


@dataclass(frozen=True, slots=True)
class Wanted(Wishes):
    """Wishes for an engine, on a GPU, with a model.

    Attributes:
        model: what to load; empty for the scheme's published checkpoint.
        spec: of the model when it is smaller than Kimi-K3; its own context is then the usual one.
    """

    gpu: Gpu
    engine: str = "vllm"
    scheme: Scheme = Scheme.MXFP4
    model: str = ""
    spec: ModelSpec | None = None

    @classmethod
    def of(cls, wishes: Wishes, gpu: Gpu, engine: str, spec: ModelSpec, model: str) -> Wanted:
        """These wishes, whatever else their value says, for this model on this GPU."""
        smaller = spec if smaller_than_published(spec) else None
        said = {one.name: getattr(wishes, one.name) for one in fields(Wishes)}
        return cls(gpu, engine, spec.scheme, model, smaller, **said)


def choose(wanted: Wanted) -> Choice:
    """The choice that the words come to; whether it is allowed, `refused` says.

    Raises:
        UsageError: the sizes contradict each other.
        NotKnownError: no layout is known for this hardware and none was given.
    """
    if wanted.prefill_utilization is not None and wanted.serving is Serving.UNIFIED:
        raise UsageError(
            "is for prefill and decode apart", where="--prefill-utilization", hint="Add --serving prefill-decode."
        )
    known = _suggestion(wanted)
    layout, prefill = _layouts(wanted, known)
    as_known = known is not None and (known.layout, known.prefill) == (layout, prefill)
    return Choice(
        engine=wanted.engine,
        version=wanted.version or standard_version(wanted.engine, wanted.gpu, wanted.scheme),
        gpu=wanted.gpu,
        scheme=wanted.scheme,
        layout=layout,
        workload=_workload(wanted, known if as_known else None),
        goal=wanted.goal,
        serving=wanted.serving,
        prefill=prefill,
        prefill_utilization=wanted.prefill_utilization,
        features=wanted.features,
        model=wanted.model,
        parsers=wanted.parsers,
        smaller=wanted.spec is not None,
    )


def fitting(wanted: Wanted, spec: ModelSpec | None = None, reserves: Reserves | None = None) -> Fit:
    """The choice with the planner's word on it; with fewer or shorter requests where nobody said how many or how long.

    Raises:
        UsageError, NotKnownError: as `choose`; or the choice is not allowed.
    """
    found = lowered(choose(wanted), wanted, spec, reserves)
    return found if found.yes else fit(found.choice, spec, reserves)


def lowered(choice: Choice, wanted: Wanted, spec: ModelSpec | None = None, reserves: Reserves | None = None) -> Fit:
    """The same for a choice that was made already, without looking for what would fit; the wishes say what must stay.

    Raises:
        NotKnownError: the choice is not allowed.
    """
    first = best = fit(choice, spec, reserves, changes=False)
    for smaller in _smaller(wanted, choice.workload):
        if best.yes and _settled(best):
            break
        found = fit(replace(choice, workload=smaller), spec, reserves, changes=False)
        if found.yes and (_settled(found) or not best.yes):
            best = found
    if best is first:
        return first
    now, asked = _said(best.choice.workload), _said(choice.workload)
    return replace(best, lowered=f"Written for {now}; of {asked} the plan says: {first.reason}.")


def _settled(found: Fit) -> bool:
    """Whether more is left than the estimate of reserves may be off."""
    return all(one.plan.left_bytes >= MARGIN_BYTES for one in found.roles)


def _smaller(wanted: Wanted, work: Workload) -> Iterator[Workload]:
    """Less and less of what nobody asked for: fewer requests first, then shorter ones."""
    contexts = [work.context] if wanted.context is not None else _halves(work.context, SHORTEST)
    requests = [work.concurrency] if wanted.concurrency is not None else _halves(work.concurrency, 1)
    for context in contexts:
        for concurrency in requests:
            if (context, concurrency) != (work.context, work.concurrency):
                yield replace(work, context=context, concurrency=concurrency)


def _halves(number: int, least: int) -> list[int]:
    """The number, a half of it, and so on while at least `least`."""
    found = [number]
    while found[-1] // 2 >= least:
        found.append(found[-1] // 2)
    return found


def _said(work: Workload) -> str:
    requests = "1 request" if work.concurrency == 1 else f"{work.concurrency} requests"
    return f"{requests} at once of up to {work.context:,} tokens"


def _suggestion(wanted: Wanted) -> Suggestion | None:
    """What was published; only somebody who gives a unified layout can do without."""
    try:
        return suggest(wanted.engine, wanted.gpu, wanted.serving, wanted.goal)
    except NotKnownError:
        if wanted.layout_open or wanted.serving is Serving.DISAGGREGATED:
            raise
        return None


def _layouts(wanted: Wanted, known: Suggestion | None) -> tuple[Layout, Layout | None]:
    if known is not None and wanted.layout_open:
        return known.layout, known.prefill
    pp, dp, ep, dcp = wanted.pp or 1, wanted.dp or 1, bool(wanted.ep), wanted.dcp or 1
    if known is not None and wanted.serving is Serving.DISAGGREGATED:
        if wanted.tp is None:
            raise UsageError(
                "is missing", where="--tp", hint="These options set the layout of decode, which needs --tp."
            )
        decode = Layout(wanted.tp, pp, dp, ep, dcp)
        return decode, _prefill(wanted.engine, decode, known)
    layout = Layout(wanted.tp or max(1, (wanted.gpus or 8) // (pp * dp)), pp, dp, ep, dcp)
    if wanted.gpus is not None and layout.gpus != wanted.gpus:
        raise UsageError(
            f"tp {layout.tp} x pp {layout.pp} x dp {layout.dp} are {layout.gpus} GPUs, not {wanted.gpus}",
            where="--gpus",
        )
    return layout, None


def _prefill(engine: str, decode: Layout, known: Suggestion) -> Layout | None:
    """The published layout of prefill; on vLLM both sides must decode in the same context-parallel way."""
    if known.prefill is None or engine != "vllm" or decode.dcp == 1:
        return known.prefill
    return replace(known.prefill, tp=decode.tp, dcp=decode.dcp)


def _workload(wanted: Wanted, known: Suggestion | None) -> Workload:
    """What was said, over what was published with the layout, over each engine's usual."""
    usual = {
        "kv_dtype": kv_standard(wanted.engine, wanted.gpu),
        "utilization": UTILIZATION_STANDARD[wanted.engine],
        "concurrency": CONCURRENCY_STANDARD[wanted.goal],
    }
    said = {
        "context": wanted.context,
        "concurrency": wanted.concurrency,
        "kv_dtype": wanted.kv_dtype,
        "batched_tokens": wanted.batched_tokens,
        "utilization": wanted.utilization,
    }
    published = dict(known.workload) if known is not None else {}
    if wanted.spec is not None:
        said["context"] = wanted.context or wanted.spec.max_context
    given = {name: value for name, value in said.items() if value is not None}
    return Workload(prefix_caching=wanted.prefix_caching, **{**usual, **published, **given})
