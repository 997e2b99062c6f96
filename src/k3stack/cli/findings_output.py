"""Findings as text, for every verb that has some."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from k3stack.launch.findings import Finding, Findings

__all__ = ["show_findings"]

_COLOURS = {"pass": "green", "warn": "yellow", "fail": "red", "not applicable": "dim"}


def show_findings(found: Findings, console: Console, quiet: bool = False) -> None:
    """Every finding with its fix; `quiet` leaves out what passed or does not apply."""
    from rich.markup import escape

    for one in found.findings:
        if not quiet or one.status.value in ("warn", "fail"):
            _show(one, console)
    tally = ", ".join(
        f"{sum(one.status.value == status for one in found.findings)} {status}"
        for status in _COLOURS
        if any(one.status.value == status for one in found.findings)
    )
    took = f" ({found.seconds:.1f} s)" if found.seconds else ""
    console.print(f"[bold]{escape(found.subject)}[/]: {tally or 'nothing to look at'}{took}")


def _show(one: Finding, console: Console) -> None:
    from rich.markup import escape

    status = one.status.value
    name = "n/a " if status == "not applicable" else status
    console.print(f"[{_COLOURS[status]}]{name}[/] [bold]{escape(one.title)}[/]: {escape(one.measured)}")
    if one.fix and status in ("warn", "fail"):
        source = f" ({one.source})" if one.source else ""
        console.print(escape(f"     {one.fix}{source}"))
