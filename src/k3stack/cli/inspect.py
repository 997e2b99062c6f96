"""`k3 inspect`: what a checkpoint is, and every fault."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from k3stack.cli.output import NO, YES, JsonFlag, Output

if TYPE_CHECKING:
    from rich.console import Console

    from k3stack.checkpoint.inspect import InspectReport

__all__ = ["inspect"]


class Read(StrEnum):
    """How much of the payload to read."""

    AUTO = "auto"
    HEADERS = "headers"
    SCALES = "scales"
    ALL = "all"


def inspect(
    where: Annotated[
        str, typer.Argument(help="A folder, a hub id such as moonshotai/Kimi-K3, or kimi-k3 for the published values.")
    ],
    read: Annotated[
        Read, typer.Option(help="How much of the payload to read; auto reads scales of up to 2 GB on a local disk.")
    ] = Read.AUTO,
    revision: Annotated[str | None, typer.Option(help="A branch, tag or commit on the hub.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Say what a checkpoint is: scheme, sizes, and every fault. Exit code 1 when there is one."""
    from k3stack.checkpoint.inspect import inspect as run
    from k3stack.checkpoint.scan import Depth
    from k3stack.checkpoint.source import open_source

    output = Output(as_json)
    with output.progress("inspecting") as progress:
        report = run(open_source(where, revision), Depth(read.value), progress)
    output.result(report, lambda console: show(report, console))
    raise typer.Exit(YES if report.sound else NO)


def show(report: InspectReport, console: Console) -> None:
    """The report as text."""
    from rich.markup import escape
    from rich.table import Table

    from k3stack.values import format_bytes

    sizes = report.sizes
    release = ", the tensors of Moonshot's release" if report.release else ""
    console.print(f"[bold]{escape(report.where)}[/]: Kimi-K3 architecture, scheme {report.scheme}{release}")
    vision = ", vision tower" if report.vision else ""
    layers = report.kda_layers + report.mla_layers
    console.print(
        f"{layers} layers ({report.kda_layers} KDA, {report.mla_layers} MLA), {report.experts} experts per layer"
        f"{vision}, context {report.max_context:,}"
    )
    console.print(
        f"{sizes.tensors:,} tensors; {sizes.parameters:,} parameters, {sizes.active_parameters / 1e9:.2f} B active "
        f"per token [dim](computed)[/]"
    )
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title, side in (("component", "left"), ("tensors", "right"), ("parameters", "right"), ("bytes", "right")):
        table.add_column(title, justify="right" if side == "right" else "left")
    table.add_column("stored as")
    stored = {entry.component: " + ".join(entry.dtypes) for entry in report.stored_as}
    for part in sizes.components:
        row = (part.component.value, f"{part.tensors:,}", f"{part.parameters:,}", f"{part.payload_bytes:,}")
        table.add_row(*row, stored[part.component])
    table.add_row("all", f"{sizes.tensors:,}", f"{sizes.parameters:,}", f"{sizes.payload_bytes:,}", "", style="bold")
    console.print(table)
    console.print(
        f"files with headers: {sizes.file_bytes:,} bytes in {len(sizes.shards)} shards, "
        f"{format_bytes(sizes.file_bytes)} [dim](computed)[/]"
    )
    if report.read_bytes is not None:
        off = report.read_bytes - sizes.file_bytes
        console.print(
            f"found on disk:      {report.read_bytes:,} bytes in {report.shards_found} shards, {off:+,} [dim](read)[/]"
        )
    console.print(f"looked at: [bold]{report.looked}[/]. {report.not_looked}")
    if report.sound:
        console.print("[green]no fault found[/]")
    for fault in report.faults:
        many = f" ({fault.count:,} of them)" if fault.count > 1 else ""
        console.print(f"[red]fault[/] [bold]{fault.kind}[/]: {escape(fault.where)} {escape(fault.what)}{many}")
