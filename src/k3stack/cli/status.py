"""`k3 status`: what `k3 up` started here, and how it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from k3stack.cli.down import StateOption
from k3stack.cli.output import NO, YES, JsonFlag, Output

if TYPE_CHECKING:
    from rich.console import Console

    from k3stack.launch.down import Told

__all__ = ["status"]


def status(state: StateOption = None, as_json: JsonFlag = False) -> None:
    """Say which endpoints run here. Exit code 1 when one does not answer, or when there is none."""
    from k3stack.launch.down import status as run
    from k3stack.launch.state import Store, default_folder

    output = Output(as_json)
    told = run(Store(state or default_folder()))
    output.result(told, lambda console: show(told, console))
    raise typer.Exit(YES if told and all(one.good for one in told) else NO)


def show(told: tuple[Told, ...], console: Console) -> None:
    """Every endpoint with its state."""
    from rich.markup import escape

    if not told:
        console.print("nothing runs here")
    colours = {"ready": "green", "starting": "yellow"}
    for one in told:
        colour = colours.get(one.state, "red")
        console.print(f"[bold]{escape(one.name)}[/]: [{colour}]{one.state}[/], {one.engine}, {escape(one.model)}")
        console.print(f"  {one.url}, since {one.started_at}, {one.processes} processes")
        console.print(escape(f"  log {one.log}"))
        if one.report:
            console.print(escape(f"  report {one.report}"))
        if one.ended:
            console.print(escape(f"  the engine {one.ended}"))
        if one.why:
            console.print(escape(f"  {one.why}"))
