"""`k3 doctor`: what an installed engine gets wrong."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from k3stack.cli.output import NO, YES, JsonFlag, Output

if TYPE_CHECKING:
    from rich.console import Console

    from k3stack.xtml.engines.doctor import ParserReport

__all__ = ["doctor"]

doctor = typer.Typer(help="Check what an installed engine gets wrong; no GPU needed.", no_args_is_help=True)


@doctor.callback()
def _doctor() -> None:
    """Check what an installed engine gets wrong; no GPU needed."""


@doctor.command("parsers")
def parsers(
    python: Annotated[
        list[Path] | None,
        typer.Option(help="The python of an environment with vLLM or SGLang; may be repeated. Default: this one."),
    ] = None,
    parser: Annotated[str, typer.Option(help="The name of the tool and reasoning parser.")] = "kimi_k3",
    plugin: Annotated[
        str | None,
        typer.Option(help="A module that registers the parser, for example k3stack.xtml.engines.vllm_plugin."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Show the right ones too.")] = False,
    json: JsonFlag = False,
) -> None:
    """Run malformed completions through the engine's Kimi-K3 parsers and say what comes out wrong."""
    from k3stack.xtml.engines.doctor import examine

    output = Output(json)
    reports = []
    with output.progress("parsers") as report:
        for number, interpreter in enumerate(python or [Path(sys.executable)]):
            report(number, len(python or [0]), str(interpreter))
            reports.append(examine(interpreter, parser, plugin))
    output.result(reports, lambda console: _show(console, reports, everything))
    raise typer.Exit(YES if all(one.right == len(one.findings) for one in reports) else NO)


def _show(console: Console, reports: list[ParserReport], everything: bool) -> None:
    from rich.table import Table

    for report in reports:
        total = len(report.findings)
        title = f"{report.engine} {report.version}, parser {report.parser}: {report.right} of {total} right"
        table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
        for heading in ("completion", "whole text at once", "token by token"):
            table.add_column(heading, overflow="fold")
        for finding in report.findings:
            if everything or not finding.right:
                table.add_row(finding.title, _say(finding.whole), _say(finding.streamed))
        console.print(table)
        console.print()


def _say(faults: tuple[str, ...]) -> str:
    return "; ".join(faults) or "right"
