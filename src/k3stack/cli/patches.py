"""`k3 patches`: which runtime patches a vLLM needs, which a server has, and the folder that brings them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from k3stack.cli.output import NO, JsonFlag, Output

if TYPE_CHECKING:
    from rich.console import Console

    from k3stack.patches.listing import Listing
    from k3stack.patches.serverlog import LogReport

__all__ = ["app"]

app = typer.Typer(help="Runtime patches for vLLM: list, probe, read a log, export.", rich_markup_mode=None)

Python = Annotated[Path | None, typer.Option("--python", help="The Python that has vLLM; ours by default.")]


@app.callback(invoke_without_command=True)
def patches(
    context: typer.Context,
    version: Annotated[
        str | None, typer.Option("--version", help="A vLLM release, instead of the installed one.")
    ] = None,
    python: Python = None,
    as_json: JsonFlag = False,
) -> None:
    """The patches with their states, for the installed vLLM or a release, from what is known."""
    if context.invoked_subcommand is not None:
        return
    import os

    from k3stack.errors import UnavailableError
    from k3stack.patches.listing import installed_release, known

    release = version or installed_release(python)
    if release is None:
        raise UnavailableError(
            "this Python has no vLLM",
            hint="Name a release (k3 patches --version 0.33.0) or a Python (--python PATH)",
        )
    listing = known(release, os.environ)
    Output(as_json).result(listing, lambda console: _show(listing, console))


@app.command()
def probe(python: Python = None, as_json: JsonFlag = False) -> None:
    """Run every probe and patch on the real code, on the CPU. Exit code 1 if one cannot apply."""
    import os

    from k3stack.patches.listing import probed

    output = Output(as_json)
    with output.progress("Probing vLLM, about half a minute"):
        listing = probed(python, os.environ)
    output.result(listing, lambda console: _show(listing, console))
    if listing.cannot:
        raise typer.Exit(NO)


@app.command()
def log(file: Annotated[Path, typer.Argument(help="A server log.")], as_json: JsonFlag = False) -> None:
    """Which patches were active in which process of a server. Exit code 1 if a needed one was not."""
    from k3stack.errors import InputError, next_step
    from k3stack.patches.serverlog import read_log

    try:
        with file.open(encoding="utf-8", errors="replace") as lines:
            report = read_log(lines)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=file, hint=next_step(error)) from error
    Output(as_json).result(report, lambda console: _show_log(report, console))
    if not report.good:
        raise typer.Exit(NO)


@app.command()
def export(
    folder: Annotated[Path, typer.Argument(help="The folder to write.")],
    as_json: JsonFlag = False,
) -> None:
    """Write a folder that brings the patches to a stock vLLM image: put it on PYTHONPATH, no pip."""
    from k3stack.patches.export import export as write

    written = write(folder)
    output = Output(as_json)
    output.result([str(path) for path in written], lambda console: console.print("\n".join(map(str, written))))
    output.note(f"docker run -v {folder.absolute()}:/k3patches:ro -e PYTHONPATH=/k3patches ...")


def _show(listing: Listing, console: Console) -> None:
    from rich.table import Table

    table = Table("Nr", "Patch", "State", "Why", box=None, padding=(0, 2, 0, 0))
    table.add_column("Switch", no_wrap=True)
    for row in listing.rows:
        table.add_row(str(row.number), row.title, row.state.value, row.why, row.switch)
    console.print(f"vLLM {listing.vllm} ({listing.origin.value})")
    console.print(table)
    for warning in listing.warnings:
        console.print(f"note: {warning}")


def _show_log(report: LogReport, console: Console) -> None:
    from rich.table import Table

    from k3stack.patches.patch import State

    console.print(f"vLLM {report.vllm or 'not named in the log'}")
    table = Table("Process", "Pid", "Active", "Cannot apply", "Disabled", "Says", box=None, padding=(0, 2, 0, 0))
    for process in report.processes:
        cells = [
            " ".join(str(number) for number, state in process.states.items() if state is wanted) or "-"
            for wanted in (State.APPLIED, State.CANNOT, State.DISABLED)
        ]
        table.add_row(process.name, str(process.pid), *cells, process.source.value)
    silent = f"No process said anything about patches: {'none is needed' if report.good else 'they were not there'}."
    console.print(table if report.seen else silent)
    for failure in report.failures:
        console.print(f"failed: {failure}")
    if report.expected is None:
        console.print("Which patches this release needs is not known; the states above are its own probes'.")
    elif report.missing:
        console.print(f"missing: patch {', '.join(map(str, report.missing))}")
