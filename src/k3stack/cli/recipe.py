"""`k3 recipe`: the exact command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from k3stack.cli.output import NO, JsonFlag, Output
from k3stack.cli.plan import (
    BatchedTokens,
    Concurrency,
    Context,
    ContextParallel,
    Gpus,
    Hardware,
    KvName,
    KvOption,
    PipelineParallel,
    PrefixCaching,
    SchemeOption,
    TensorParallel,
    Utilization,
    Where,
)
from k3stack.cli.plan import build as build_plan
from k3stack.cli.plan import show as show_plan

if TYPE_CHECKING:
    from rich.console import Console

    from k3stack.recipe.deployment import Deployment

__all__ = ["recipe"]


def recipe(
    where: Where,
    hardware: Hardware,
    gpus: Gpus = 8,
    scheme: SchemeOption = None,
    tp: TensorParallel = None,
    pp: PipelineParallel = 1,
    dcp: ContextParallel = 1,
    context: Context = 196_608,
    concurrency: Concurrency = 32,
    kv_dtype: KvOption = KvName.FP8,
    prefix_caching: PrefixCaching = True,
    batched_tokens: BatchedTokens = 8_192,
    utilization: Utilization = 0.90,
    explain: Annotated[bool, typer.Option(help="Say for every flag which rule set it, why, and its source.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Print the docker command that serves the model as planned. Takes the options of `k3 plan`."""
    from k3stack.recipe.build import build
    from k3stack.recipe.docker import docker_run

    wanted = (tp, pp, dcp, context, concurrency, kv_dtype, prefix_caching, batched_tokens, utilization)
    output = Output(as_json)
    plan = build_plan(where, hardware, gpus, scheme, *wanted)
    if not plan.yes:
        output.result(plan, lambda console: show_plan(plan, console))
        raise typer.Exit(NO)
    deployment = build(plan)
    if explain:
        output.result(deployment, lambda console: show_reasons(deployment, console))
    else:
        output.text(docker_run(deployment), deployment)


def show_reasons(deployment: Deployment, console: Console) -> None:
    """Every flag and variable with its reason."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("setting", "why", "source", "date"):
        table.add_column(title, overflow="fold")
    image = deployment.image_reason
    table.add_row(deployment.image, image.why, image.source, image.date)
    for role in deployment.roles:
        for variable in role.command.environment:
            reason = variable.reason
            table.add_row(f"{variable.name}={variable.value}", reason.why, reason.source, reason.date)
        for flag in role.command.flags:
            table.add_row(" ".join(flag.words()), flag.reason.why, flag.reason.source, flag.reason.date)
    console.print(table)
