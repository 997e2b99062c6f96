"""The report as one HTML file that needs no network: verdict, failures, measurements, every check with its evidence."""

from __future__ import annotations

import shlex
from html import escape
from importlib.resources import files
from pathlib import Path

from k3stack.files import write_text
from k3stack.verify.charts import chart
from k3stack.verify.report import CheckReport, CheckResult, Exchange, Figure, Plot, Status
from k3stack.verify.text import figure_text, repeat_command, verdict_text

__all__ = ["html_text", "write_html"]

# The style sheet's word for a status; an error is as bad as a failure.
_CLASS = {
    Status.PASS: "pass",
    Status.FAIL: "fail",
    Status.ERROR: "fail",
    Status.WARN: "warn",
    Status.NOT_APPLICABLE: "none",
}

# Which figures stand at the top, where the checks that measure them ran: (check, figure, what a reader calls it).
_TILES = (
    ("speed", "1 at once: first token, p50", "to the first token, alone"),
    ("speed", "16 at once: first token, p50", "to the first token, 16 at once"),
    ("speed", "16 at once: all tokens", "all requests, 16 at once"),
    ("recall", "codes found", "recalled from long prompts"),
    ("recall", "longest prompt", "longest prompt"),
    ("needles-32", "right answers", "right, 32 at once"),
    ("needles-8", "right answers", "right, 8 at once"),
    ("schema-accuracy", "schema_accuracy", "schema accuracy"),
    ("schema-accuracy", "tool_call_f1 (trigger similarity)", "trigger F1"),
    ("prefix-cache", "times faster", "sooner from the prefix cache"),
    ("soak", "requests", "requests in the soak"),
)


# A link to a check opens it; the page works without.
_OPEN_TARGET = (
    "function show(){var one=location.hash&&document.getElementById(decodeURIComponent(location.hash.slice(1)));"
    "if(one)one.open=true}addEventListener('hashchange',show);show()"
)


def write_html(report: CheckReport, path: Path | str) -> None:
    """Write the report as one HTML file."""
    write_text(Path(path), html_text(report))


def html_text(report: CheckReport) -> str:
    """The report as one HTML document."""
    style = (files("k3stack.verify") / "data" / "report.css").read_text()
    word = "passed" if report.passed else "NOT passed"
    title = f"{word}: {report.model} at {report.target.url}"
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title><style>{style}</style></head><body><main>",
            _verdict(report),
            _failures(report),
            _measurements(report),
            "<h2>All checks</h2>",
            f'<div class="checks">{"".join(map(_check, report.results))}</div>',
            _footer(report),
            f"</main><script>{_OPEN_TARGET}</script></body></html>\n",
        ]
    )


def _verdict(report: CheckReport) -> str:
    word = "Passed" if report.passed else "Not passed"
    squares = "".join(map(_square, report.results))
    counts = "".join(
        f'<span><i class="{_CLASS[status]}"></i><b>{report.counts[status]}</b> {status.value}</span>'
        for status in Status
        if report.counts[status]
    )
    when = report.started.replace("T", " ").replace("+00:00", " UTC")
    where = f"<code>{escape(report.target.url)}</code>, {escape(report.server)}"
    return (
        f'<section class="verdict {"pass" if report.passed else "fail"}">'
        f"<h1><span>{word}</span>: {escape(report.model)}</h1>"
        f"<p>{where}, weights taken as {report.weights.value}</p>"
        f"<p>level {report.level.value}, {when}, {report.seconds:.0f} s, k3stack {escape(report.version)}</p>"
        f'<ul class="strip">{squares}</ul><div class="counts">{counts}</div></section>'
    )


def _square(result: CheckResult) -> str:
    words = escape(f"{result.title}: {result.status.value}")
    link = f'href="#{escape(result.id)}" title="{words}" aria-label="{words}"'
    return f'<li><a class="{_CLASS[result.status]}" {link}></a></li>'


def _failures(report: CheckReport) -> str:
    bad = [one for one in report.results if one.status in (Status.FAIL, Status.ERROR)]
    if not bad:
        return ""
    return "<h2>What is wrong</h2>" + "".join(map(_failure, bad))


def _failure(result: CheckResult) -> str:
    shown = "".join(map(_exchange, result.evidence[:1]))
    return (
        f'<section class="card fail"><h3><span class="badge fail">{result.status.value}</span> '
        f'<a href="#{escape(result.id)}">{escape(result.title)}</a> <code>{escape(result.id)}</code></h3>'
        f"<p>{escape(result.summary)}</p>"
        f'<p class="soft">This usually means: {escape(result.failure_means)}</p>{shown}</section>'
    )


def _measurements(report: CheckReport) -> str:
    tiles = "".join(_tile(report, *one) for one in _TILES)
    plots = [plot for result in report.results for plot in result.plots]
    if not tiles and not plots:
        return ""
    few = " few" if len(plots) < 3 else ""
    drawn = f'<h2>Pictures</h2><div class="plots{few}">{"".join(map(_plot, plots))}</div>' if plots else ""
    return f'<h2>Measured</h2><div class="tiles">{tiles}</div>{drawn}'


def _tile(report: CheckReport, check_id: str, name: str, words: str) -> str:
    for result in report.results:
        for figure in result.figures:
            if result.id == check_id and figure.name == name:
                value, _, unit = figure_text(figure).partition(" ")
                return (
                    f'<div class="tile"><b>{value} <small>{escape(unit)}</small></b><span>{escape(words)}</span></div>'
                )
    return ""


def _plot(plot: Plot) -> str:
    return f"<figure><figcaption>{escape(plot.title)}</figcaption>{chart(plot)}</figure>"


def _check(result: CheckResult) -> str:
    return (
        f'<details id="{escape(result.id)}"><summary>'
        f'<span class="badge {_CLASS[result.status]}">{result.status.value}</span>'
        f'<span>{escape(result.title)}</span><span class="found">{escape(result.summary)}</span>'
        f'<span class="time">{result.seconds:.1f} s</span></summary><div class="inside"><dl>'
        f"<dt>id</dt><dd><code>{escape(result.id)}</code></dd>"
        f"<dt>proves</dt><dd>{escape(result.proves)}</dd>"
        f"<dt>a failure means</dt><dd>{escape(result.failure_means)}</dd>"
        f"<dt>found</dt><dd>{escape(result.summary)}</dd></dl>"
        f"{_figures(result.figures)}{''.join(map(_exchange, result.evidence))}</div></details>"
    )


def _figures(figures: tuple[Figure, ...]) -> str:
    if not figures:
        return ""
    rows = "".join(
        f'<tr><th>{escape(one.name)}</th><td class="number">{escape(figure_text(one))}</td>'
        f'<td class="origin">{one.origin.value}</td></tr>'
        for one in figures
    )
    return f"<table>{rows}</table>"


def _exchange(exchange: Exchange) -> str:
    note = f'<span class="note">{escape(exchange.note)}</span>' if exchange.note else ""
    sent = f"<pre>{escape(exchange.sent)}</pre>" if exchange.sent else ""
    received = f"<span>came back:</span><pre>{escape(exchange.received)}</pre>" if exchange.received else ""
    word = "<span>sent:</span>" if exchange.sent and exchange.received else ""
    return f'<div class="evidence">{note}{word}{sent}{received}</div>'


def _footer(report: CheckReport) -> str:
    learned = "".join(f"<li>{escape(note)}</li>" for note in report.learned)
    again = shlex.join(repeat_command(report))
    return (
        f"<footer><h2>How it was judged</h2><ul>{learned}<li>prompts from seed {report.seed}</li></ul>"
        f"<p>To repeat it:</p><pre>{escape(again)}</pre>"
        f"<p>{escape(verdict_text(report))}. A warning is right but worth knowing; what is not applicable could not be "
        "judged here and counts as nothing.</p></footer>"
    )
