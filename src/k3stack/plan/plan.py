"""The plan: does this model do this work on these GPUs, and if not, what would."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from k3stack.errors import UsageError
from k3stack.hardware.table import Gpu
from k3stack.plan.assess import Assessment, Capacity, Job, assess
from k3stack.plan.layout import Layout, Workload
from k3stack.plan.ledger import Ledger
from k3stack.plan.releases import Release, release
from k3stack.plan.reserves import Reserves
from k3stack.plan.routes import Route, routes
from k3stack.plan.rules import Objections, Refusal, no_objections, refusals
from k3stack.spec.model import ModelSpec
from k3stack.spec.schemes import Scheme
from k3stack.values import format_bytes

__all__ = ["TIGHT_SHARE", "Plan", "Verdict", "Way", "explained", "make_plan"]

TIGHT_SHARE = 0.02
"""Below this share of a GPU's memory left, a plan is called tight."""


class Verdict(StrEnum):
    """The answer of a plan."""

    FITS = "fits"
    TIGHT = "tight"
    DOES_NOT_FIT = "does not fit"
    NOT_SUPPORTED = "not supported"


@dataclass(frozen=True, slots=True)
class Way:
    """A layout and a workload that fit, near to what was asked."""

    layout: Layout
    workload: Workload


@dataclass(frozen=True, slots=True)
class Plan:
    """A model, a machine, a layout, a workload, and the answer.

    Attributes:
        model: what an engine is told to load: a folder or a hub id.
        ledger: one GPU (the fullest), for one full request and all KDA states.
        budget_bytes: what the engine may use of one GPU.
        left_bytes: budget less the ledger; negative is what is missing. With SGLang's ratio set by hand, what is left
            in the tighter of its two pools.
        reason: the verdict in a sentence.
        would_fit: the smallest changes that would, when it does not fit, each in words.
        release: the engine release whose arithmetic was used.
        notes: what else the reader should know.
        routes: other ways to K3, when it does not fit.
        objections: what else is against this layout, where that was asked; the verdict is on memory.
        ways: what `would_fit` says, as it would be asked.
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
    release: str = ""
    notes: tuple[str, ...] = ()
    routes: tuple[Route, ...] = ()
    objections: tuple[Refusal, ...] = ()
    ways: tuple[Way, ...] = ()

    @property
    def yes(self) -> bool:
        """Whether it can be tried."""
        return self.verdict in (Verdict.FITS, Verdict.TIGHT)


def make_plan(
    spec: ModelSpec,
    model: str,
    gpu: Gpu,
    layout: Layout,
    workload: Workload,
    engine: str = "vllm",
    version: str | None = None,
    reserves: Reserves | None = None,
    objections: Objections = no_objections,
) -> Plan:
    """Plan `layout.gpus` GPUs under an engine.

    Args:
        version: the engine release whose arithmetic to use; the newest known one by default.
        reserves: what a start-up log of this site reported, instead of estimates.
        objections: asked about this layout, and about all that would fit.

    Raises:
        UsageError: the layout or the workload is impossible for this model.
        NotKnownError: an engine whose memory arithmetic is not known.
    """
    check(spec, layout, workload)
    made = plan_job(model, Job(spec, gpu, layout, workload, release(engine, version), reserves))
    return explained(made, reserves, objections)


def explained(plan: Plan, reserves: Reserves | None = None, objections: Objections = no_objections) -> Plan:
    """The plan, with what else is against it, and with what would fit instead where it does not."""
    plan = replace(plan, objections=objections(plan.layout, plan.workload))
    if plan.yes:
        return plan
    from k3stack.plan.changes import in_words, ways

    found = tuple(ways(plan, reserves, objections))
    others = routes(plan.gpu.memory_bytes * plan.layout.gpus, ram_bytes=0, disk_bytes=0)
    return replace(plan, would_fit=tuple(in_words(plan, way) for way in found), ways=found, routes=others)


def check(spec: ModelSpec, layout: Layout, workload: Workload) -> None:
    """Refuse what makes no sense for this model under any engine.

    Raises:
        UsageError: names the argument.
    """
    for name, heads in (("KDA", spec.kda.heads), ("MLA", spec.mla.heads)):
        if heads % layout.tp:
            raise UsageError(f"{layout.tp} does not divide the {heads} {name} heads", where="tp")
    if layout.pp > len(spec.layers):
        raise UsageError(f"{layout.pp} stages for {len(spec.layers)} layers", where="pp")
    if workload.context > spec.max_context:
        what = f"{workload.context:,} is above the model's {spec.max_context:,} tokens"
        raise UsageError(what, where="context", hint=f"Give --context {spec.max_context}, or less.")


def plan_job(model: str, job: Job, refused: tuple[Refusal, ...] | None = None) -> Plan:
    """The plan of one job, without looking for changes that would fit; `refused` if the rules were asked already."""
    if refused is None:
        refused = refusals(job.spec, job.gpu, job.layout, job.workload, job.release.engine)
    found = assess(job)
    if refused:
        verdict, reason = Verdict.NOT_SUPPORTED, str(refused[0])
    else:
        verdict, reason = _verdict(job, found)
    return Plan(
        model=model,
        spec=job.spec,
        scheme=job.spec.scheme,
        engine=job.release.engine,
        gpu=job.gpu,
        layout=job.layout,
        workload=job.workload,
        ledger=found.ledger,
        budget_bytes=job.budget_bytes,
        left_bytes=found.left_bytes,
        capacity=found.capacity,
        verdict=verdict,
        reason=reason,
        release=job.release.version,
        notes=(*found.notes, *(str(refusal) for refusal in refused[1:]), *_notes(job.release, job)),
    )


def _verdict(job: Job, found: Assessment) -> tuple[Verdict, str]:
    gpu, left = job.gpu, found.left_bytes
    need, have = format_bytes(found.ledger.total_bytes), format_bytes(job.budget_bytes)
    if left < 0:
        split = found.ledger.total_bytes <= job.budget_bytes
        more = "; the two pools are split wrongly for this work" if split else ""
        return (
            Verdict.DOES_NOT_FIT,
            f"each {gpu.name} needs {need} and may use {have}: {format_bytes(-left)} too much{more}",
        )
    if left < TIGHT_SHARE * gpu.memory_bytes:
        return (
            Verdict.TIGHT,
            f"each {gpu.name} needs {need} of {have}; only {format_bytes(left)} left, under "
            f"{TIGHT_SHARE:.0%} of its memory",
        )
    return Verdict.FITS, f"each {gpu.name} needs {need} of {have}; {format_bytes(left)} left"


def _notes(release: Release, job: Job) -> tuple[str, ...]:
    """What public reports warn of for this kind of plan."""
    notes = []
    if job.workload.utilization > 0.97 and release.engine == "vllm":
        notes.append("utilization above 0.97 is refused where context and driver already hold 1.5 % (2 GiB of an H200)")
    if job.layout.tp > job.gpu.nvlink_gpus:
        notes.append(
            f"tensor parallelism leaves the NVLink domain of {job.gpu.nvlink_gpus} GPUs: expect slow exchanges"
        )
    return tuple(notes)
