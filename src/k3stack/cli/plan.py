"""`k3 plan`: does it fit, and why."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from k3stack.cli.options import (
    BatchedTokens,
    Concurrency,
    Context,
    ContextParallel,
    DataParallel,
    EngineName,
    EngineOption,
    ExpertParallel,
    KvOpen,
    PipelineParallel,
    PrefixCaching,
    SchemeName,
    SchemeOption,
    TensorParallelOpen,
    Utilization,
    Where,
    scheme_of,
)
from k3stack.cli.output import NO, YES, JsonFlag, Output

if TYPE_CHECKING:
    from rich.console import Console

    from k3stack.hardware.table import Gpu
    from k3stack.plan import Layout, Plan, Reserves, Workload
    from k3stack.plan.rules import Objections
    from k3stack.spec.model import ModelSpec

__all__ = ["plan", "show"]

HardwareFound = Annotated[str | None, typer.Option(help="The GPU: b300, h200, gb200, ...; default what is found here.")]
GpusFound = Annotated[int | None, typer.Option(min=1, help="How many of them; default what is found, else 8.")]
Draft = Annotated[
    int, typer.Option("--draft-tokens", min=0, help="Tokens that a DSpark draft proposes; 0 is no draft.")
]
Replay = Annotated[bool, typer.Option("--replay-ssm", help="Verify drafts from one KDA state (vLLM, SGLang).")]
Verifies = Annotated[
    bool, typer.Option("--verifies/--no-verifies", help="Drafts are verified here; SGLang's prefill role does not.")
]
Vision = Annotated[bool, typer.Option("--vision/--no-vision", help="Load the vision tower.")]
Ratio = Annotated[float | None, typer.Option(help="SGLang's mamba-full-memory-ratio; default the balancing one.")]
Slots = Annotated[int | None, typer.Option(min=1, max=8, help="SGLang's state slots per request: 1, 3, 4 or 5.")]
ReleaseOption = Annotated[str | None, typer.Option("--release", help="The engine's release; default the newest known.")]


class StateName(StrEnum):
    """How KDA states are stored."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


class GoalName(StrEnum):
    """What the deployment is for."""

    LATENCY = "latency"
    THROUGHPUT = "throughput"
    LONG_CONTEXT = "long-context"


StateOption = Annotated[StateName, typer.Option("--state-dtype", help="How the recurrent KDA state is stored.")]
GoalOption = Annotated[GoalName | None, typer.Option(help="Search all layouts of these GPUs for this goal.")]
LogOption = Annotated[
    Path | None, typer.Option("--from-log", help="Read a start-up log; show predicted beside reported.")
]
SaveFlag = Annotated[bool, typer.Option("--save", help="With --from-log: keep the measured reserves for later plans.")]
PlotOption = Annotated[Path | None, typer.Option("--plot", help="Draw memory per GPU into a .png or .svg file.")]
EffectsFlag = Annotated[bool, typer.Option("--effects", help="Show what each long-context switch is worth.")]


def plan(
    where: Where = "kimi-k3",
    hardware: HardwareFound = None,
    gpus: GpusFound = None,
    scheme: SchemeOption = None,
    engine: EngineOption = EngineName.VLLM,
    goal: GoalOption = None,
    tp: TensorParallelOpen = None,
    pp: PipelineParallel = 1,
    dp: DataParallel = 1,
    ep: ExpertParallel = False,
    dcp: ContextParallel = 1,
    context: Context = 196_608,
    concurrency: Concurrency = 32,
    kv_dtype: KvOpen = None,
    prefix_caching: PrefixCaching = True,
    batched_tokens: BatchedTokens = 8_192,
    utilization: Utilization = 0.90,
    state_dtype: StateOption = StateName.FLOAT32,
    draft_tokens: Draft = 0,
    replay_ssm: Replay = False,
    verifies: Verifies = True,
    vision: Vision = True,
    state_ratio: Ratio = None,
    state_slots: Slots = None,
    release: ReleaseOption = None,
    effects: EffectsFlag = False,
    plot: PlotOption = None,
    from_log: LogOption = None,
    save: SaveFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Say whether a model does the work on these GPUs, with every byte accounted for. Exit code 1 when it does not."""
    from k3stack.errors import UsageError
    from k3stack.plan import KvDtype, StateDtype, Workload
    from k3stack.recipe.choice import kv_standard

    output = Output(as_json)
    if from_log is not None:
        raise typer.Exit(_calibrate(output, where, from_log, scheme, hardware, save))
    if save:
        raise UsageError("keeps what a log reports", where="--save", hint="Add --from-log FILE.")
    workload = Workload(
        context,
        concurrency,
        KvDtype.FP8 if kv_dtype is None else KvDtype(kv_dtype.value),
        prefix_caching,
        batched_tokens,
        utilization,
        StateDtype(state_dtype.value),
        draft_tokens,
        replay_ssm,
        vision,
        state_slots,
        state_ratio,
        verifies,
    )
    found = _gpus(hardware, gpus)
    if found is None:
        raise typer.Exit(_without_gpus(output, where, scheme))
    gpu, count = found
    if kv_dtype is None and engine is EngineName.VLLM:
        workload = replace(workload, kv_dtype=kv_standard(engine.value, gpu))
    if goal is not None:
        _only_for_one_layout(tp=tp is not None, pp=pp > 1, dp=dp > 1, ep=ep, dcp=dcp > 1, effects=effects, plot=plot)
        raise typer.Exit(_search(output, where, scheme, gpu, count, workload, goal, engine, release))
    made = _plan(where, scheme, gpu, _layout(count, tp, pp, dp, ep, dcp), workload, engine, release)
    if plot is not None:
        from k3stack.plan.plot import draw

        draw(made, plot, _saved(engine, gpu))
        output.note(f"drawn: {plot}")
    _show(output, made, effects, _saved(engine, gpu))
    raise typer.Exit(YES if made.yes else NO)


def _only_for_one_layout(**given: object) -> None:
    """Refuse what a search over all layouts would pass over in silence."""
    from k3stack.errors import UsageError

    for name, one in given.items():
        if one:
            what = "has no effect with --goal, which looks at every layout"
            raise UsageError(what, where=f"--{name}", hint=f"Leave out --{name} or --goal.")


def show(made: Plan, console: Console) -> None:
    """The plan as text."""
    from k3stack.cli.plan_output import show

    show(made, console)


def _plan(
    where: str,
    scheme: SchemeName | None,
    gpu: Gpu,
    layout: Layout,
    workload: Workload,
    engine: EngineName,
    release: str | None,
) -> Plan:
    from k3stack.checkpoint.target import target
    from k3stack.plan import make_plan

    spec, model = target(where, scheme_of(scheme))
    against = _objections(engine, release, gpu, spec)
    return make_plan(spec, model, gpu, layout, workload, engine.value, release, _saved(engine, gpu), against)


def _objections(engine: EngineName, version: str | None, gpu: Gpu, spec: ModelSpec) -> Objections:
    """What the rules have against layouts under the release whose arithmetic counts."""
    from k3stack.plan.releases import release
    from k3stack.recipe.objections import objections

    return objections(engine.value, release(engine.value, version).version, gpu, spec)


def _layout(gpus: int, tp: int | None, pp: int, dp: int, ep: bool, dcp: int) -> Layout:
    """The layout asked for; tensor parallelism takes the GPUs that stages and replicas leave."""
    from k3stack.errors import UsageError
    from k3stack.plan import Layout

    if tp is None:
        tp = max(gpus // (pp * dp), 1)
    layout = Layout(tp=tp, pp=pp, dp=dp, ep=ep, dcp=dcp)
    if layout.gpus != gpus:
        raise UsageError(f"tp {tp} x pp {pp} x dp {dp} are {layout.gpus} GPUs, not {gpus}", where="--gpus")
    return layout


def _gpus(hardware: str | None, gpus: int | None) -> tuple[Gpu, int] | None:
    """The GPUs asked for, or those of this machine; None when there are none that we know."""
    from k3stack.hardware.table import gpu

    if hardware is not None:
        return gpu(hardware), gpus or 8
    from k3stack.hardware.machine import look, plannable

    found = plannable(look(measure=False))
    return None if found is None else (found[0], gpus or found[1])


def _saved(engine: EngineName, gpu: Gpu) -> Reserves | None:
    """What a start-up log of this site told, if one was saved."""
    from k3stack.plan.site import saved

    return saved(engine.value, gpu.id)


def _show(output: Output, made: Plan, effects: bool, reserves: Reserves | None) -> None:
    from k3stack.cli.plan_output import Answer, show_effects
    from k3stack.plan.effects import effects as effects_of
    from k3stack.recipe.objections import objections_to

    if not effects:
        output.result(made, lambda console: show(made, console))
        return
    answer = Answer(made, effects_of(made, reserves, objections_to(made)))

    def draw(console: Console) -> None:
        show(made, console)
        show_effects(answer.effects, console)

    output.result(answer, draw)


def _without_gpus(output: Output, where: str, scheme: SchemeName | None) -> int:
    """No GPU that we know: say what this machine can do."""
    from k3stack.checkpoint.target import target
    from k3stack.cli.plan_output import show_routes
    from k3stack.hardware.machine import look
    from k3stack.plan.routes import routes

    target(where, scheme_of(scheme))
    machine = look(measure=False)
    ways = routes(0, machine.ram_bytes, max((disk.free_bytes for disk in machine.disks), default=0))
    output.note("no GPU that k3stack knows was found here; with --hardware you can plan for another machine")
    output.result(ways, lambda console: show_routes(ways, console))
    return NO


def _search(
    output: Output,
    where: str,
    scheme: SchemeName | None,
    gpu: Gpu,
    gpus: int,
    workload: Workload,
    goal: GoalName,
    engine: EngineName,
    release: str | None,
) -> int:
    from k3stack.checkpoint.target import target
    from k3stack.cli.plan_output import show_search
    from k3stack.plan.search import Goal, search

    spec, model = target(where, scheme_of(scheme))
    kind = Goal(goal.value)
    against = _objections(engine, release, gpu, spec)
    found = search(spec, model, gpu, gpus, workload, kind, engine.value, release, _saved(engine, gpu), against)
    output.result(found, lambda console: show_search(found, console))
    return YES if found.yes else NO


def _calibrate(
    output: Output, where: str, log: Path, scheme: SchemeName | None, hardware: str | None, save: bool
) -> int:
    from k3stack.checkpoint.target import target
    from k3stack.cli.plan_output import Calibration, show_calibration
    from k3stack.errors import UsageError
    from k3stack.hardware.table import gpu
    from k3stack.plan import site
    from k3stack.plan.compare import compare, run_of
    from k3stack.plan.logs import read_log
    from k3stack.spec.published import smaller_than_published

    spec, _ = target(where, scheme_of(scheme))
    seen = read_log(log)
    compared = compare(seen, spec) if seen.number("tp") is not None else ()
    if not compared:
        output.note("nothing to compare: the log does not say the tensor-parallel size; give it from its first line on")
    if save:
        if smaller_than_published(spec):
            raise UsageError(
                "is smaller than Kimi-K3: plans of the whole model would count on its small reserves",
                where=where,
                hint="Save from a log of the model that you plan. Nothing was saved.",
            )
        kind = gpu(hardware).id if hardware else site.gpu_of(seen)
        if kind is None:
            raise UsageError(
                "the log does not tell the kind of GPU", where="--save", hint="Add --hardware GPU. Nothing was saved."
            )
        kept = site.save(seen.engine, kind, site.reserves_of(seen, run_of(seen, spec)))
        output.note(f"saved for {seen.engine} on {kind}: {kept}")
    calibration = Calibration(seen, compared)
    output.result(calibration, lambda console: show_calibration(calibration, console))
    return YES if all(one.agrees is not False or one.origin == "estimated" for one in compared) else NO
