"""`k3 down`: end what `k3 up` started."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from k3stack.cli.output import NO, YES, JsonFlag, Output

__all__ = ["StateOption", "down"]

StateOption = Annotated[
    Path | None, typer.Option("--state", help="The folder of the state; default $XDG_STATE_HOME/k3stack.")
]


def down(
    names: Annotated[list[str] | None, typer.Argument(help="Which endpoints; default all that k3 up started.")] = None,
    grace: Annotated[float, typer.Option(min=0, help="Seconds to end by itself before it is killed.")] = 20.0,
    state: StateOption = None,
    as_json: JsonFlag = False,
) -> None:
    """End endpoints and every process they left; exit code 1 when something could not be ended."""
    from k3stack.launch.down import down as run
    from k3stack.launch.state import Store, default_folder

    output = Output(as_json)
    stopped = run(Store(state or default_folder()), tuple(names or ()), grace, output.note)
    left = [pid for one in stopped for pid in one.left]

    def show(console: object) -> None:
        from rich.console import Console

        assert isinstance(console, Console)
        for one in stopped:
            said = f"ended in {one.seconds:.1f} s, nothing left" if one.was_running else "had ended already; forgotten"
            console.print(f"{one.name}: {said if not one.left else f'left: {one.left}'}")
        if not stopped:
            console.print("nothing runs here")

    output.result(stopped, show)
    raise typer.Exit(NO if left else YES)
