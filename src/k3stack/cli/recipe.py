"""`k3 recipe`: the exact command, and the doctor of copied ones."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from k3stack.cli.output import NO, YES, JsonFlag, Output
from k3stack.cli.plan import (
    BatchedTokens,
    Concurrency,
    Context,
    KvName,
    PrefixCaching,
    SchemeOption,
    TensorParallel,
)
from k3stack.cli.plan import show as show_plan

if TYPE_CHECKING:
    from rich.console import Console

    from k3stack.plan.layout import Layout
    from k3stack.recipe.choice import Choice
    from k3stack.recipe.deployment import Deployment
    from k3stack.recipe.doctor import Diagnosis
    from k3stack.recipe.fit import Fit
    from k3stack.spec.model import ModelSpec

__all__ = ["recipe"]


class EngineName(StrEnum):
    """The engines there are rules for."""

    VLLM = "vllm"
    SGLANG = "sglang"


class GoalName(StrEnum):
    """What the endpoint should be good at."""

    LOW_LATENCY = "low-latency"
    BALANCED = "balanced"
    HIGH_THROUGHPUT = "high-throughput"


class ServingName(StrEnum):
    """How it is served."""

    UNIFIED = "unified"
    DISAGGREGATED = "prefill-decode"


class FeatureName(StrEnum):
    """What can be added."""

    DSPARK = "dspark"
    DFLASH = "dflash"
    TEXT_ONLY = "text-only"
    HICACHE = "hicache"


class FormName(StrEnum):
    """What can be printed."""

    DOCKER = "docker"
    SHELL = "shell"
    COMPOSE = "compose"
    KUBERNETES = "kubernetes"
    SLURM = "slurm"
    SKYPILOT = "skypilot"


def recipe(
    where: Annotated[str, typer.Argument(help="A folder, a hub id, or kimi-k3 for the published values.")] = "kimi-k3",
    hardware: Annotated[str | None, typer.Option(help="The GPU: b300, h200, gb200, mi355x, ...")] = None,
    engine: Annotated[EngineName, typer.Option(help="The engine.")] = EngineName.VLLM,
    engine_version: Annotated[
        str | None, typer.Option(help="A release, or kimi-k3 for vLLM's first image for K3.")
    ] = None,
    scheme: SchemeOption = None,
    goal: Annotated[GoalName, typer.Option(help="What the endpoint should be good at.")] = GoalName.BALANCED,
    serving: Annotated[
        ServingName, typer.Option(help="One kind of server, or prefill and decode apart.")
    ] = ServingName.UNIFIED,
    feature: Annotated[list[FeatureName] | None, typer.Option(help="Add this; may be given several times.")] = None,
    gpus: Annotated[int | None, typer.Option(min=1, help="How many GPUs; otherwise as published for the goal.")] = None,
    tp: TensorParallel = None,
    pp: Annotated[int | None, typer.Option("--pp", min=1, help="Pipeline stages.")] = None,
    dp: Annotated[int | None, typer.Option("--dp", min=1, help="Data-parallel size.")] = None,
    ep: Annotated[bool | None, typer.Option("--ep/--no-ep", help="Spread whole experts over the ranks.")] = None,
    dcp: Annotated[int | None, typer.Option("--dcp", min=1, help="Decode-context-parallel size; divides tp.")] = None,
    context: Context = 196_608,
    concurrency: Concurrency = 32,
    kv_dtype: Annotated[KvName | None, typer.Option("--kv-dtype", help="How the MLA cache is stored.")] = None,
    prefix_caching: PrefixCaching = True,
    batched_tokens: BatchedTokens = 8_192,
    utilization: Annotated[float | None, typer.Option(help="Share of GPU memory the engine may use.")] = None,
    link: Annotated[str | None, typer.Option(help="A saved choice, instead of all options above.")] = None,
    form: Annotated[FormName, typer.Option("--format", help="What to print.")] = FormName.DOCKER,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say for every setting which rule set it, and why.")
    ] = False,
    client: Annotated[bool, typer.Option("--client", help="Print how to talk to the endpoint.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Let the engine's parser read the command.")] = False,
    python: Annotated[str | None, typer.Option(help="For --check: the Python that has the engine.")] = None,
    image: Annotated[str | None, typer.Option(help="For --check: a container image that has it.")] = None,
    copied: Annotated[
        str | None, typer.Option("--from", help="Examine this command, or the file that holds it (@FILE).")
    ] = None,
    translate: Annotated[bool, typer.Option("--translate", help="With --from: write it for the other engine.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Print the command that serves the model, with a reason for every flag; or say what is wrong with a copied one."""
    output = Output(as_json)
    if copied is not None:
        _examine(output, copied, hardware, engine_version, translate, form)
    if link is not None:
        from k3stack.recipe.link import from_query

        choice = from_query(link)
        spec = _published(choice)
    else:
        made = _layouts(hardware, engine, goal, serving, gpus, tp, pp, dp, ep, dcp)
        work = (context, concurrency, kv_dtype, prefix_caching, batched_tokens, utilization)
        choice, spec = _choice(
            where, hardware, engine, engine_version, scheme, goal, serving, feature or [], made, work
        )
    from k3stack.recipe.build import build

    deployment = build(_fitting(output, choice, spec))
    if check:
        _check(output, deployment, python, image)
    if explain:
        output.result(deployment, lambda console: show_reasons(deployment, console))
    elif client:
        from k3stack.recipe.client import client_snippets

        output.text(client_snippets(deployment), deployment)
    else:
        from k3stack.recipe.render import Form, render

        output.text("" if as_json else render(deployment, Form(form.value)), deployment)


def _layouts(
    hardware: str | None,
    engine: EngineName,
    goal: GoalName,
    serving: ServingName,
    gpus: int | None,
    tp: int | None,
    pp: int | None,
    dp: int | None,
    ep: bool | None,
    dcp: int | None,
) -> tuple[Layout, Layout | None]:
    """The layout that the options ask for; what they leave open is as published for the goal."""
    from k3stack.errors import UsageError
    from k3stack.hardware.table import gpu
    from k3stack.plan.layout import Layout
    from k3stack.recipe.choice import Goal, Serving
    from k3stack.recipe.suggest import suggest

    if hardware is None:
        raise UsageError("is missing", where="--hardware", hint="For example --hardware b300.")
    if serving is ServingName.DISAGGREGATED or all(one is None for one in (gpus, tp, pp, dp, ep, dcp)):
        known = suggest(engine.value, gpu(hardware), Serving(serving.value), Goal(goal.value))
        if all(one is None for one in (gpus, tp, pp, dp, ep, dcp)):
            return known.layout, known.prefill
        if tp is None:
            raise UsageError(
                "is missing", where="--tp", hint="These options set the layout of decode, which needs --tp."
            )
        return Layout(tp, pp or 1, dp or 1, bool(ep), dcp or 1), known.prefill
    replicas = (pp or 1) * (dp or 1)
    size = tp or max(1, (gpus or 8) // replicas)
    layout = Layout(size, pp or 1, dp or 1, bool(ep), dcp or 1)
    if gpus is not None and layout.gpus != gpus:
        raise UsageError(
            f"tp {layout.tp} x pp {layout.pp} x dp {layout.dp} are {layout.gpus} GPUs, not {gpus}", where="--gpus"
        )
    return layout, None


def _choice(
    where: str,
    hardware: str | None,
    engine: EngineName,
    version: str | None,
    scheme: SchemeOption,
    goal: GoalName,
    serving: ServingName,
    features: list[FeatureName],
    layouts: tuple[Layout, Layout | None],
    work: tuple[int, int, KvName | None, bool, int, float | None],
) -> tuple[Choice, ModelSpec]:
    from k3stack.checkpoint.target import target
    from k3stack.hardware.table import gpu
    from k3stack.plan.layout import KvDtype, Workload
    from k3stack.recipe.choice import (
        KV_STANDARD,
        UTILIZATION_STANDARD,
        Choice,
        Feature,
        Goal,
        Serving,
        standard_version,
    )
    from k3stack.spec.schemes import Scheme

    spec, model = target(where, None if scheme is None else Scheme(scheme.value))
    context, concurrency, kv, prefix_caching, batched_tokens, utilization = work
    cache = KV_STANDARD[engine.value] if kv is None else KvDtype(kv.value)
    share = UTILIZATION_STANDARD[engine.value] if utilization is None else utilization
    kind = gpu(hardware or "")
    choice = Choice(
        engine=engine.value,
        version=version or standard_version(engine.value, kind, spec.scheme),
        gpu=kind,
        scheme=spec.scheme,
        layout=layouts[0],
        workload=Workload(context, concurrency, cache, prefix_caching, batched_tokens, share),
        goal=Goal(goal.value),
        serving=Serving(serving.value),
        prefill=layouts[1],
        features=tuple(Feature(one.value) for one in features),
        model=model,
    )
    return choice, spec


def _published(choice: Choice) -> ModelSpec:
    from k3stack.spec.published import kimi_k3

    return kimi_k3().with_scheme(choice.scheme)


def _fitting(output: Output, choice: Choice, spec: ModelSpec) -> Choice:
    """The choice to build: the planner is asked first, and what does not fit ends here with its plan."""
    from k3stack.plan.site import saved
    from k3stack.recipe.fit import fit

    found = fit(choice, spec, saved(choice.engine, choice.gpu.id))
    if not found.yes:
        output.result(found, lambda console: show_short(found, console))
        raise typer.Exit(NO)
    for told in (*found.tight, *found.unknown):
        output.note(told)
    return found.choice


def show_short(found: Fit, console: Console) -> None:
    """The plan of every role that does not fit."""
    for one in found.short:
        if len(found.roles) > 1:
            console.print(f"[bold]{one.role}[/]")
        show_plan(one.plan, console)


def _check(output: Output, deployment: Deployment, python: str | None, image: str | None) -> None:
    from k3stack.recipe.asking import check

    verdict = check(deployment, python, image)

    def show(console: Console) -> None:
        from rich.markup import escape

        console.print(f"{'taken' if verdict.yes else 'refused'} by {escape(verdict.by)}")
        for role, error in verdict.errors.items():
            console.print(escape(f"  {role}: {error}"))

    output.result(verdict, show)
    raise typer.Exit(YES if verdict.yes else NO)


def _examine(
    output: Output, copied: str, hardware: str | None, version: str | None, translate: bool, form: FormName
) -> None:
    from k3stack.errors import InputError
    from k3stack.hardware.table import gpu
    from k3stack.recipe.doctor import diagnose

    text = copied
    if copied.startswith("@"):
        try:
            text = Path(copied[1:]).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"cannot be read: {error}", where=copied[1:]) from error
    kind = gpu(hardware) if hardware else None
    diagnosis = diagnose(text, kind, version)
    if not translate:
        output.result(diagnosis, lambda console: show_diagnosis(diagnosis, console))
        raise typer.Exit(YES if diagnosis.good else NO)
    from k3stack.recipe.render import Form, render
    from k3stack.recipe.translate import translate as translated

    found = translated(diagnosis, kind)
    for name in found.untranslated:
        output.note(f"no equivalent: {name}")
    output.text(render(found.deployment, Form(form.value)), found)
    raise typer.Exit(YES)


def show_diagnosis(diagnosis: Diagnosis, console: Console) -> None:
    """Every finding with its reason and fix."""
    from rich.markup import escape

    version = escape(f"{diagnosis.engine} {diagnosis.version}: {diagnosis.model or 'no model'}")
    verdict = "no fault found" if diagnosis.good else "wrong for Kimi-K3"
    console.print(f"[bold]{version}[/]: {verdict} ({escape(diagnosis.checked_by)})")
    for assumed in diagnosis.assumed:
        console.print(escape(f"assumed: {assumed}"))
    for finding in diagnosis.findings:
        colour = {"stops": "red", "wrong": "red", "advice": "yellow"}[finding.weight.value]
        console.print(f"[{colour} bold]{finding.weight.value}[/] {escape(finding.what)}")
        console.print(escape(f"    {finding.why} {finding.fix}"))
        console.print(escape(f"    {finding.rule}; {finding.source}"))


def show_reasons(deployment: Deployment, console: Console) -> None:
    """Every flag and variable with its reason."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("setting", "why", "source", "date", "rule"):
        table.add_column(title, overflow="fold")
    image = deployment.image_reason
    table.add_row(deployment.pinned_image, image.why, image.source, image.date, image.rule)
    for role in deployment.roles:
        if len(deployment.roles) > 1:
            table.add_row(role.name, "", "", "", "", style="bold")
        for variable in role.command.environment:
            reason = variable.reason
            row = (reason.why, reason.source, reason.date, reason.rule)
            table.add_row(f"{variable.name}={variable.value}", *row)
        for flag in role.command.flags:
            for reason in (flag.reason, *flag.also):
                row = (reason.why, reason.source, reason.date, reason.rule)
                table.add_row(" ".join(flag.words()), *row)
    console.print(table)
