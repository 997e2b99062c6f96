"""The report as one HTML file that needs no network."""

from __future__ import annotations

from html import escape
from pathlib import Path

from k3stack.files import write_text
from k3stack.verify.report import CheckReport
from k3stack.verify.text import verdict_text

__all__ = ["html_text", "write_html"]


def write_html(report: CheckReport, path: Path) -> None:
    """Write the report as one HTML file."""
    write_text(path, html_text(report))


def html_text(report: CheckReport) -> str:
    """The report as one HTML document."""
    rows = "".join(
        f"<tr><td>{one.status.value}</td><td>{escape(one.title)}</td><td>{escape(one.summary)}</td></tr>"
        for one in report.results
    )
    head = f'<!doctype html><meta charset="utf-8"><title>{escape(report.target.url)}</title>'
    return f"{head}<h1>{escape(verdict_text(report))}</h1><table>{rows}</table>\n"
