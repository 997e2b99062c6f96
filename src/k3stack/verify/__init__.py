"""Checks against a live endpoint, and the report: does it really work.

report = run_checks(Target("http://127.0.0.1:8000"), Level.QUICK)

report    the values: target, figures, evidence, results, the report
registry  what a check is; the list of all checks
run       one check after another, each within its time
session   what a check is given: the endpoint, what was learned about it, where to put evidence
endpoint  HTTP: whole answers, streams, cancellation, what was sent and received
answer    one answer, whichever way it came
checks/   the checks, by what they look at
text, junit, html   the report for a terminal, for CI, for a browser
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from k3stack.verify.html import write_html
    from k3stack.verify.junit import write_junit
    from k3stack.verify.report import (
        CheckReport,
        CheckResult,
        Exchange,
        Figure,
        Level,
        Plot,
        Series,
        Status,
        Target,
        Weights,
    )
    from k3stack.verify.run import run_checks
    from k3stack.verify.text import show

_HOMES = {
    "CheckReport": "report",
    "CheckResult": "report",
    "Exchange": "report",
    "Figure": "report",
    "Level": "report",
    "Plot": "report",
    "Series": "report",
    "Status": "report",
    "Target": "report",
    "Weights": "report",
    "run_checks": "run",
    "show": "text",
    "write_html": "html",
    "write_junit": "junit",
}

__all__ = [
    "CheckReport",
    "CheckResult",
    "Exchange",
    "Figure",
    "Level",
    "Plot",
    "Series",
    "Status",
    "Target",
    "Weights",
    "run_checks",
    "show",
    "write_html",
    "write_junit",
]


def __getattr__(name: str) -> Any:
    """Load a name's module on first use, so that reading a report needs no HTTP client."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"k3stack.verify.{home}"), name)
