"""`k3 up`: from a checkpoint and a machine to a verified endpoint, or early and clearly why not."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from k3stack.cli import options
from k3stack.cli.asked import EngineChoice, Place, asked_of
from k3stack.cli.down import StateOption
from k3stack.cli.output import NO, YES, JsonFlag, Output
from k3stack.cli.spread import spread

if TYPE_CHECKING:
    from rich.console import Console

    from k3stack.launch.findings import Findings
    from k3stack.launch.up import Steps, Up

__all__ = ["up"]


_LOG_PAUSE_S = 15.0

_NAME = "k3"


class LevelName(StrEnum):
    """How much is checked."""

    QUICK = "quick"
    FULL = "full"
    SOAK = "soak"
    NONE = "none"


class WeightsName(StrEnum):
    """What the model is."""

    TRAINED = "trained"
    RANDOM = "random"


@spread
def up(
    context_: typer.Context,
    where: options.Where,
    *,
    engine: EngineChoice = None,
    engine_version: options.EngineVersion = None,
    hardware: options.HardwareOpen = None,
    sought: options.Sought,
    place: Place,
    served_name: Annotated[str | None, typer.Option(help="The model's name in the API.")] = None,
    name: Annotated[str, typer.Option(help="The endpoint's name here, for k3 status and k3 down.")] = _NAME,
    check: Annotated[LevelName, typer.Option("--check", help="How much to check once it is ready.")] = LevelName.QUICK,
    weights: Annotated[WeightsName | None, typer.Option(help="What the model is.")] = None,
    anyway: Annotated[bool, typer.Option("--anyway", help="Start although preflight found a failure.")] = False,
    stop: Annotated[bool, typer.Option("--stop", help="End the endpoint after the report.")] = False,
    timeout: Annotated[float, typer.Option(min=1, help="Minutes for the whole start.")] = 120.0,
    quiet: Annotated[float, typer.Option(min=1, help="Seconds without movement before it is called stuck.")] = 600.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print everything it would do, and do nothing.")] = False,
    state: StateOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Plan, write the command, check the machine, start the engine, follow it, check the endpoint, report.

    Words behind -- go to the engine as they are. The endpoint goes on running until `k3 down`; Ctrl-C before that
    leaves nothing behind. Exit code 1 when it does not come to a verified endpoint.
    """
    from k3stack.launch.down import down
    from k3stack.launch.follow import Patience
    from k3stack.launch.state import Store, default_folder
    from k3stack.launch.up import Options
    from k3stack.launch.up import dry_run as pretend
    from k3stack.launch.up import up as run

    output = Output(as_json)
    words = asked_of(where, engine, engine_version, hardware, sought, place, served_name, tuple(context_.args))
    how = Options(
        name=name,
        docker=place.docker,
        level=None if check is LevelName.NONE else check.value,
        weights=None if weights is None else weights.value,
        skip_preflight=anyway,
        patience=Patience(timeout * 60, quiet),
    )
    store = Store(state or default_folder())
    with _telling(output) as steps:
        made = pretend(words, how, steps) if dry_run else run(words, how, store, steps)
        if stop and made.url is not None and not dry_run:
            down(store, (name,))
    output.result(made, lambda console: show(made, console, stop, _ending(name, state)))
    raise typer.Exit(YES if made.yes else NO)


@contextmanager
def _telling(output: Output) -> Iterator[Steps]:
    """Lines that stay on stderr, and under them one that is drawn over where stderr is a terminal."""
    from k3stack.cli.findings_output import show_findings
    from k3stack.launch.up import Steps

    if not sys.stderr.isatty():
        yield Steps(output.note, _now_and_then(output.note), _findings_to(output.note))
        return
    from rich.console import Console
    from rich.markup import escape

    console = Console(stderr=True, highlight=False)
    with console.status("k3 up") as line:
        yield Steps(
            lambda text: console.print(escape(text)),
            lambda text: line.update(escape(text)),
            lambda found: show_findings(found, console, quiet=True),
        )


def _now_and_then(note: Callable[[str], None]) -> Callable[[str], None]:
    """The state of things for a log that nobody draws over: a line every quarter of a minute."""
    import time

    last = [time.monotonic()]

    def tell(text: str) -> None:
        if time.monotonic() - last[0] > _LOG_PAUSE_S:
            last[0] = time.monotonic()
            note(text)

    return tell


def _findings_to(note: Callable[[str], None]) -> Callable[[Findings], None]:
    def tell(found: Findings) -> None:
        for one in found.findings:
            if one.status.value in ("warn", "fail"):
                note(f"preflight {one.status.value}: {one.title}: {one.measured}")
        note(f"preflight: {'good' if found.good else 'would fail'} ({found.seconds:.1f} s)")

    return tell


def _ending(name: str, state: Path | None) -> str:
    """The command that ends this endpoint and no other, as short as it can be."""
    words = ["k3", "down", *([name] if name != _NAME else []), *(["--state", str(state)] if state else [])]
    return shlex.join(words)


def show(made: Up, console: Console, stopped: bool, ending: str) -> None:
    """What came of it."""
    from rich.markup import escape

    if made.nodes:
        console.print("[bold]several nodes[/]: run these, in this order")
        for place, command in made.nodes:
            console.print(escape(f"  {place}: {command}"))
        return
    if made.answer == "dry run":
        console.print(escape(f"would start: {made.command}"))
        console.print(escape(f"then follow it, ask for one token at {made.url}, and check the endpoint"))
        if made.reason:
            console.print(f"[red bold]but preflight would end it[/]: {escape(made.reason)}")
        return
    if made.verified is not None:
        counts = ", ".join(f"{count} {status}" for status, count in made.verified.counts.items())
        console.print(f"checks ({made.verified.level}, {made.verified.seconds:.0f} s): {counts}")
        console.print(escape(f"report: {made.verified.page}"))
    if made.yes:
        if stopped:
            console.print(escape(f"{made.answer}, then ended: {made.model}"))
        else:
            console.print(escape(f"{made.answer}: {made.model} at {made.url}; end it with: {ending}"))
        return
    console.print(f"[red bold]not verified[/]: {escape(made.reason)}")
    if made.log:
        console.print(escape(f"log: {made.log}"))
    if made.url is not None and not stopped:
        console.print(escape(f"it still runs at {made.url}; end it with: {ending}"))
