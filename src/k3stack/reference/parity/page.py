"""The report as a page or a picture."""

from __future__ import annotations

import base64
import html
import io
from pathlib import Path

from k3stack.errors import UnavailableError, UsageError
from k3stack.files import atomic_write, require_place
from k3stack.reference.parity.compare import ParityReport

__all__ = ["require_page", "write_page"]

_STYLE = (
    "body{font:15px/1.5 sans-serif;max-width:60em;margin:2em auto;color:#1c2733}table{border-collapse:collapse}"
    "td,th{padding:.25em .8em;text-align:right;border-bottom:1px solid #d5dce4}td:first-child,th:first-child"
    "{text-align:left}img{max-width:100%}"
)


def require_page(path: Path) -> None:
    """Check, before the work, that `write_page` can write there.

    Raises:
        UsageError: another ending than .html or .png, no such folder, or a folder.
    """
    if path.suffix not in (".html", ".png"):
        raise UsageError("ends in neither .html nor .png", where=path, hint="Name it report.html or report.png.")
    require_place(path, path)


def write_page(report: ParityReport, path: Path) -> None:
    """Write `path`: .html holds tables and the plot in one file, .png the plot alone.

    Raises:
        UsageError: as `require_page`.
        UnavailableError: matplotlib is not installed.
    """
    require_page(path)
    picture = _plot(report)
    data = picture if path.suffix == ".png" else _page(report, picture).encode()
    with atomic_write(path) as file:
        file.write(data)


def _plot(report: ParityReport) -> bytes:
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        hint = "Install it: pip install 'k3stack[plot]'"
        raise UnavailableError("the plot needs the package matplotlib", hint=hint) from None
    figure = Figure(figsize=(9, 4.5), layout="constrained")
    axes = figure.subplots()
    floor = 1e-9  # a logarithm has no place for 0
    for each in report.prompts:
        places = range(1, len(each.kl) + 1)
        (line,) = axes.plot(places, [max(floor, kl) for kl in each.kl], marker=".", linewidth=1, label=each.prompt)
        apart = [place for place, same in zip(places, each.agree, strict=True) if not same]
        axes.plot(apart, [max(floor, each.kl[place - 1]) for place in apart], "x", color=line.get_color(), markersize=9)
    axes.set_yscale("log")
    axes.set_xlabel("token of the answer")
    axes.set_ylabel(f"KL(A || B), nats{'' if report.exact_kl else ' (lower bound)'}")
    axes.set_title("x: the most likely token differs", fontsize=10)
    axes.legend(fontsize=8)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130)
    return buffer.getvalue()


def _page(report: ParityReport, picture: bytes) -> str:
    rows = "".join(
        f"<tr><td>{html.escape(each.prompt)}</td><td>{len(each.kl)}</td>"
        f"<td>{sum(each.agree) / len(each.agree):.1%}</td><td>{sum(each.kl) / len(each.kl):.3g}</td>"
        f"<td>{max(each.kl):.3g}</td><td>{each.first_text}</td></tr>"
        for each in report.prompts
    )
    bound = "exact" if report.exact_kl else f"over the {report.top} most likely tokens of each side, a lower bound"
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>k3 parity</title><style>{_STYLE}</style>"
        f"<h1>k3 parity</h1><p>A: {html.escape(report.a)}<br>B: {html.escape(report.b)}</p>"
        f"<p>{report.tokens} tokens compared. Same most likely token: <b>{report.agreement:.1%}</b>. "
        f"Mean KL(A || B) <b>{report.mean_kl:.3g}</b> nats, largest {report.max_kl:.3g} ({bound}; "
        f"{report.covered:.1%} of A's probability is on tokens that both report). All figures are measured.</p>"
        f"<table><tr><th>prompt<th>tokens<th>same<th>mean KL<th>largest KL<th>first difference</tr>{rows}</table>"
        f'<p><img alt="KL by token" src="data:image/png;base64,{base64.b64encode(picture).decode()}"></p></html>\n'
    )
