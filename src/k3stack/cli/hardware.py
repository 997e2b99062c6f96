"""`k3 hardware`: what this machine has, and the GPUs k3stack knows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from k3stack.cli.output import JsonFlag, Output

if TYPE_CHECKING:
    from rich.console import Console

    from k3stack.hardware.machine import Machine
    from k3stack.hardware.table import Gpu

__all__ = ["hardware"]


def hardware(
    folder: Annotated[list[Path] | None, typer.Option(help="Look at this folder's disk; may be given again.")] = None,
    measure: Annotated[bool, typer.Option(help="Measure disks: writes and reads 256 MiB, then removes it.")] = True,
    known: Annotated[bool, typer.Option("--known", help="List the GPUs k3stack knows instead.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Show GPUs, memory, disks with their read rate, and network of this machine."""
    from k3stack.hardware.machine import look
    from k3stack.hardware.table import gpus

    output = Output(as_json)
    if known:
        table = tuple(gpus().values())
        output.result(table, lambda console: show_known(table, console))
        return
    machine = look(tuple(folder or ()), measure)
    output.result(machine, lambda console: show(machine, console))


def show(machine: Machine, console: Console) -> None:
    """The machine as text."""
    from rich.markup import escape

    from k3stack.values import format_bytes

    if machine.gpus:
        console.print(f"[bold]GPUs[/] (driver {machine.driver or 'not reported'})")
        for one in machine.gpus:
            known = f"planned as {one.known}" if one.known else "not in the table"
            free = f"{format_bytes(one.free_bytes)} free of {format_bytes(one.memory_bytes)}"
            console.print(f"  {one.index}: {escape(one.name)}, {free}, {known}")
    else:
        console.print("[bold]GPUs[/]: none")
    ram = f"{format_bytes(machine.ram_free_bytes)} free of {format_bytes(machine.ram_bytes)}"
    console.print(f"[bold]CPUs[/]: {machine.cpus}   [bold]RAM[/]: {ram}")
    for disk in machine.disks:
        if disk.read_rate is None:
            rate = "read rate not measured"
        else:
            hours = 1_560_936_091_448 / disk.read_rate / 3_600
            rate = f"reads {format_bytes(round(disk.read_rate))}/s (measured): Kimi-K3 in {hours:.1f} hours at best"
        console.print(f"[bold]disk[/] of {escape(disk.folder)}: {format_bytes(disk.free_bytes)} free, {rate}")
    for nic in machine.nics:
        speed = "speed not reported" if nic.megabits is None else f"{nic.megabits:,} Mbit/s"
        console.print(f"[bold]network[/] {nic.name}: {speed}{', RDMA' if nic.rdma else ''}")
    if not machine.nics:
        console.print("[bold]network[/]: no device reported")
    for missing in machine.missing:
        console.print(f"note: {escape(missing)}")


def show_known(table: tuple[Gpu, ...], console: Console) -> None:
    """The table, every memory figure with its source."""
    from rich.table import Table

    from k3stack.values import format_bytes

    grid = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("id", "architecture", "per node", "NVLink domain", "computes in", "planned with", "memory figures"):
        grid.add_column(title, overflow="fold")
    for one in table:
        figures = "; ".join(f"{format_bytes(each.size_bytes)} {each.says} ({each.source})" for each in one.figures)
        formats = " ".join(one.formats)
        sizes = (str(one.gpus_per_node), str(one.nvlink_gpus))
        grid.add_row(one.id, one.architecture, *sizes, formats, format_bytes(one.memory_bytes), figures)
    console.print(grid)
    for vendor in ("nvidia", "amd"):
        driver = next(one.driver for one in table if one.vendor == vendor)
        console.print(f"driver for {vendor}: {driver}")
