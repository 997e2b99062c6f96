"""The report for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from k3stack.verify.report import CheckReport, CheckResult, Figure, Status

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["figure_text", "line", "repeat_command", "show", "verdict_text"]

_MARKS = {
    Status.PASS: ("pass", "green"),
    Status.FAIL: ("FAIL", "bold red"),
    Status.WARN: ("warn", "yellow"),
    Status.NOT_APPLICABLE: ("n/a", "dim"),
    Status.ERROR: ("ERROR", "bold red"),
}


def line(result: CheckResult) -> str:
    """One result as one line, for a log."""
    return f"{_MARKS[result.status][0]:<5} {result.id:<18} {result.seconds:6.1f} s  {result.summary}"


def figure_text(figure: Figure) -> str:
    """A figure for people: three digits that matter."""
    value = figure.value
    digits = f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
    return f"{digits} {figure.unit}".rstrip()


def verdict_text(report: CheckReport) -> str:
    """The report in one sentence."""
    counts = report.counts
    parts = [f"{counts[status]} {status.value}" for status in Status if counts[status]]
    word = "passed" if report.passed else "NOT passed"
    return f"{word}: {', '.join(parts)} in {report.seconds:.0f} s"


def repeat_command(report: CheckReport) -> list[str]:
    """The command that does the same again, with the same prompts."""
    words = ["k3", "check", report.target.url, "--level", report.level.value, "--seed", str(report.seed)]
    if report.target.model:
        words += ["--model", report.target.model]
    if report.target.key_variable:
        words += ["--key-variable", report.target.key_variable]
    if report.target.weights:
        words += ["--weights", report.target.weights.value]
    return words + [word for one in report.only for word in ("--only", one)]


def show(report: CheckReport, console: Console) -> None:
    """Draw a report: one row for each check, then what lies behind each failure."""
    from rich.table import Table
    from rich.text import Text

    console.print(f"{report.target.url}: {report.model} on {report.server}, weights taken as {report.weights.value}")
    table = Table(box=None, padding=(0, 2, 0, 0), title_justify="left")
    for heading in ("", "check", "seconds", "found"):
        table.add_column(heading, overflow="fold", justify="right" if heading == "seconds" else "left")
    for result in report.results:
        mark, style = _MARKS[result.status]
        table.add_row(Text(mark, style=style), result.id, f"{result.seconds:.1f}", Text(result.summary))
    console.print(table)
    for result in report.results:
        if result.status in (Status.FAIL, Status.ERROR):
            console.print(f"\n{result.id}: {result.title}", style="bold", markup=False)
            console.print(f"  found: {result.summary}", markup=False)
            console.print(f"  usually means: {result.failure_means}", markup=False)
            for one in result.evidence[:1]:
                console.print(f"  sent: {one.sent[:400]}", markup=False)
                console.print(f"  received: {one.received[:400]}", markup=False)
    console.print(f"\n{verdict_text(report)}", markup=False)
