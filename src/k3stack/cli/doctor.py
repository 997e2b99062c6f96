"""`k3 doctor`: what looks wrong in a log, at an address, in a folder, or in an installed engine's parsers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core

from k3stack.cli.output import NO, YES, JsonFlag, Output

if TYPE_CHECKING:
    from rich.console import Console

    from k3stack.xtml.engines.doctor import ParserReport

__all__ = ["doctor"]

_EXAMINE = "examine"


class _SubjectOrCommand(typer.core.TyperGroup):
    """`k3 doctor WHAT` is `k3 doctor examine WHAT`, unless WHAT is a command of its own."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        words = [word for word in args if not word.startswith("-") or word == "-"]
        if words and words[0] not in self.commands:
            args = [_EXAMINE, *args]
        return super().parse_args(ctx, args)


doctor = typer.Typer(
    cls=_SubjectOrCommand,
    help="Say what looks wrong: k3 doctor LOG, k3 doctor http://..., k3 doctor FOLDER, or k3 doctor parsers.",
    no_args_is_help=True,
)


@doctor.callback()
def _doctor() -> None:
    """Say what looks wrong: k3 doctor LOG, k3 doctor http://..., k3 doctor FOLDER, or k3 doctor parsers."""


@doctor.command(_EXAMINE)
def examine_subject(
    subject: Annotated[
        str,
        typer.Argument(
            metavar="LOG|URL|FOLDER", help="A log (- is stdin), an address, a checkpoint, or a folder of logs."
        ),
    ],
    json: JsonFlag = False,
) -> None:
    """Look at logs, an address or a checkpoint's folder; the word examine may be left out. Exit code 1 for a fault."""
    from k3stack.cli.findings_output import show_findings
    from k3stack.launch.doctor import examine

    output = Output(json)
    found = examine(subject)
    output.result(found, lambda console: show_findings(found, console))
    raise typer.Exit(YES if found.good else NO)


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
