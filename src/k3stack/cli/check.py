"""`k3 check`: does a live endpoint really work."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from k3stack.cli.options import choice_of
from k3stack.cli.output import NO, YES, JsonFlag, Output
from k3stack.files import require_place

if TYPE_CHECKING:
    from k3stack.verify import CheckResult

__all__ = ["check"]


def check(
    url: Annotated[str, typer.Argument(help="The endpoint, as in http://127.0.0.1:8000")],
    level: Annotated[str, typer.Option(help="quick (about a minute), full (several) or soak.")] = "quick",
    only: Annotated[
        list[str] | None, typer.Option(help="Run this check alone, whatever its level; may be repeated.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="The model to ask for. Default: the first that is listed.")] = None,
    weights: Annotated[
        str | None, typer.Option(help="trained or random. Default: as the endpoint says, else trained.")
    ] = None,
    key_variable: Annotated[
        str | None, typer.Option(help="The environment variable that holds the API key. Default: no key is sent.")
    ] = None,
    longest: Annotated[int, typer.Option(help="Tokens of the longest recall prompt.")] = 32_768,
    duration: Annotated[float, typer.Option(help="Seconds of the soak.")] = 600.0,
    silence: Annotated[float, typer.Option(help="Seconds without a byte after which a request is given up.")] = 120.0,
    check_timeout: Annotated[
        float | None, typer.Option(help="Seconds for each check. Default: each check's own limit.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the prompts. Default: drawn; the report names it.")] = None,
    html: Annotated[Path | None, typer.Option(help="Also write the report as one HTML file.")] = None,
    junit: Annotated[Path | None, typer.Option(help="Also write the report as JUnit XML.")] = None,
    json: JsonFlag = False,
) -> None:
    """Check a live Kimi-K3 endpoint: vLLM, SGLang, hosted, with or without a guard, or `k3 serve`."""
    from k3stack.verify import Level, Target, Weights, run_checks, show, write_html, write_junit

    output = Output(json)
    target = Target(
        url,
        model,
        key_variable,
        None if weights is None else choice_of(Weights, weights, "--weights"),
        longest=longest,
        silence_s=silence,
        check_s=check_timeout,
        soak_s=duration,
        seed=seed,
    )
    wanted = choice_of(Level, level, "--level")
    for path, option in ((html, "--html"), (junit, "--junit")):
        if path:  # said before the run, not after
            require_place(path, option)
    with output.progress("check") as progress:
        report = run_checks(
            target,
            wanted,
            only=only or (),
            on_start=lambda one, number, total: progress(number, total, one.id),
            on_result=lambda result: _log(output, result),
        )
    if html:
        write_html(report, html)
    if junit:
        write_junit(report, junit)
    output.result(report, lambda console: show(report, console))
    raise typer.Exit(YES if report.passed else NO)


def _log(output: Output, result: CheckResult) -> None:
    """A line for each result where nobody watches a progress bar: in a log one wants to see how far it came."""
    if not sys.stderr.isatty():
        from k3stack.verify.text import line

        output.note(line(result))
