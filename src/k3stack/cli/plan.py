"""`k3 plan`: does it fit, and why."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from k3stack.cli.output import NO, YES, JsonFlag, Output
from k3stack.cli.tiny import SchemeName

if TYPE_CHECKING:
    from rich.console import Console

    from k3stack.plan.plan import Plan

__all__ = ["plan"]

Where = Annotated[str, typer.Argument(help="A folder, a hub id, or kimi-k3 for the published values.")]
Hardware = Annotated[str, typer.Option(help="The GPU: b300, h200, gb200, mi355x, ...")]
Gpus = Annotated[int, typer.Option(min=1, help="How many of them.")]
SchemeOption = Annotated[SchemeName | None, typer.Option(help="Plan for this scheme instead of the checkpoint's own.")]
TensorParallel = Annotated[int | None, typer.Option("--tp", min=1, help="Tensor-parallel size; default GPUs / pp.")]
PipelineParallel = Annotated[int, typer.Option("--pp", min=1, help="Pipeline stages.")]
ContextParallel = Annotated[int, typer.Option("--dcp", min=1, help="Decode-context-parallel size; divides tp.")]
Context = Annotated[int, typer.Option(min=1, help="Longest request in tokens, prompt and answer together.")]
Concurrency = Annotated[int, typer.Option(min=1, help="Requests in flight at once.")]
BatchedTokens = Annotated[int, typer.Option(min=1, help="Tokens per step; long prompts are cut into such chunks.")]
Utilization = Annotated[float, typer.Option(help="Share of GPU memory the engine may use, above 0 and up to 1.")]
PrefixCaching = Annotated[bool, typer.Option("--prefix-caching/--no-prefix-caching", help="Reuse repeated prefixes.")]


class KvName(StrEnum):
    """How the cache is stored."""

    FP8 = "fp8"
    BF16 = "bf16"


KvOption = Annotated[KvName, typer.Option("--kv-dtype", help="How the MLA cache is stored.")]


def plan(
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
    as_json: JsonFlag = False,
) -> None:
    """Say whether a model does the work on these GPUs, with every byte accounted for. Exit code 1 when it does not."""
    made = build(
        where,
        hardware,
        gpus,
        scheme,
        tp,
        pp,
        dcp,
        context,
        concurrency,
        kv_dtype,
        prefix_caching,
        batched_tokens,
        utilization,
    )
    Output(as_json).result(made, lambda console: show(made, console))
    raise typer.Exit(YES if made.yes else NO)


def build(
    where: str,
    hardware: str,
    gpus: int,
    scheme: SchemeName | None,
    tp: int | None,
    pp: int,
    dcp: int,
    context: int,
    concurrency: int,
    kv_dtype: KvName,
    prefix_caching: bool,
    batched_tokens: int,
    utilization: float,
) -> Plan:
    """The plan that these options ask for."""
    from k3stack.checkpoint.target import target
    from k3stack.errors import UsageError
    from k3stack.hardware.table import gpu
    from k3stack.plan import KvDtype, Layout, Workload, make_plan
    from k3stack.spec.schemes import Scheme

    layout = Layout(tp=gpus // pp if tp is None else tp, pp=pp, dcp=dcp) if gpus >= pp else Layout(pp=pp)
    if layout.gpus != gpus:
        raise UsageError(f"tp {layout.tp} x pp {layout.pp} are {layout.gpus} GPUs, not {gpus}", where="--gpus")
    workload = Workload(context, concurrency, KvDtype(kv_dtype.value), prefix_caching, batched_tokens, utilization)
    chosen = gpu(hardware)
    spec, model = target(where, None if scheme is None else Scheme(scheme.value))
    return make_plan(spec, model, chosen, layout, workload)


def show(made: Plan, console: Console) -> None:
    """The plan as text."""
    from rich.markup import escape
    from rich.table import Table

    from k3stack.values import format_bytes

    colour = "green" if made.yes else "red"
    layout, gpu, capacity = made.layout, made.gpu, made.capacity
    stages = f" x PP{layout.pp}" if layout.pp > 1 else ""
    console.print(
        f"[bold]{escape(made.model)}[/] ({made.scheme}) on {layout.gpus} x {gpu.name}, vLLM, TP{layout.tp}{stages}"
    )
    console.print(f"[{colour} bold]{made.verdict}[/]: {made.reason}")
    for change in made.would_fit:
        console.print(f"would fit: {change}")
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("memory of one GPU")
    table.add_column("bytes", justify="right")
    table.add_column("number is")
    table.add_column("from", overflow="fold")
    for line in made.ledger.lines:
        table.add_row(line.what, f"{line.size_bytes:,}", line.origin.value, line.formula)
    table.add_row("sum", f"{made.ledger.total_bytes:,}", "", "", style="bold")
    share = f"{made.workload.utilization:.0%} of {format_bytes(gpu.memory_bytes)}"
    table.add_row("engine may use", f"{made.budget_bytes:,}", gpu.memory_origin.value, f"{share}; {gpu.source}")
    table.add_row("left", f"{made.left_bytes:,}", "computed", "", style="bold")
    console.print(table)
    if made.yes:
        console.print(f"cache: {capacity.blocks:,} blocks of {capacity.block_tokens:,} tokens on each rank")
        console.print(
            f"       {capacity.kv_tokens:,} tokens beside the KDA state of {made.workload.concurrency} requests, or "
            f"{capacity.full_requests} requests of {made.workload.context:,} tokens"
        )
