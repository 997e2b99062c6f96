"""`k3 compare`: are two checkpoints the same model?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from k3stack.cli.output import NO, YES, JsonFlag, Output

if TYPE_CHECKING:
    from rich.console import Console

    from k3stack.checkpoint.compare.run import CompareReport

__all__ = ["compare"]


def compare(
    a: Annotated[Path, typer.Argument(help="Folder of the original.")],
    b: Annotated[Path, typer.Argument(help="Folder of what was made of it, in any scheme.")],
    sample: Annotated[str, typer.Option(help="Share of the tensors to compare, such as 1%.")] = "100%",
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = 2,
    receipt: Annotated[
        Path | None, typer.Option(help="Write the result and SHA-256 digests of all files to this JSON file.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Compare two checkpoints value by value, in exact arithmetic. Exit code 1 when they differ."""
    from k3stack.checkpoint.compare.run import compare as run
    from k3stack.checkpoint.compare.run import make_receipt
    from k3stack.checkpoint.write import write_json
    from k3stack.values import dump

    output = Output(as_json)
    with output.progress("comparing") as progress:
        report = run(a, b, _share(sample), jobs, progress)
    if receipt is not None:
        write_json(receipt, dump(make_receipt(report)))
        output.note(f"receipt: {receipt}")
    output.result(report, lambda console: show(report, console))
    raise typer.Exit(YES if report.same else NO)


def _share(text: str) -> float:
    try:
        return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError as error:
        raise typer.BadParameter("must look like 1% or 0.01", param_hint="--sample") from error


def show(report: CompareReport, console: Console) -> None:
    """The report as text."""
    from rich.markup import escape
    from rich.table import Table

    console.print(f"A {escape(report.a)} ({report.scheme_a})   B {escape(report.b)} ({report.scheme_b})")
    same = [kind for kind in report.kinds if not (kind.converted or kind.other_codes or kind.different)]
    rest = [kind for kind in same if "experts.w" not in kind.kind]
    shown = [kind for kind in report.kinds if kind not in rest]
    if shown:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for title in ("kind", "equal", "by rule", "other codes", "different", "max error", "rms"):
            table.add_column(title, justify="left" if title == "kind" else "right")
        for kind in shown:
            counts = (kind.equal, kind.converted, kind.other_codes, kind.different)
            numbers = (f"{count:,}" if count else "" for count in counts)
            table.add_row(kind.kind, *numbers, f"{kind.max_error:.3g}", f"{kind.relative_rms:.3%}")
        console.print(table)
    if rest:
        console.print(f"{len(rest)} other kinds: all {sum(kind.equal for kind in rest):,} tensors equal")
    for kind in shown:
        if kind.different or kind.other_codes:
            note = f": {kind.worst_note}" if kind.worst_note else ""
            console.print(f"worst {kind.kind}: {escape(kind.worst)}{escape(note)}")
    for fault in report.faults:
        console.print(f"[red]fault[/] {fault.kind}: {escape(fault.where)} {escape(fault.what)}")
    for document in report.documents:
        console.print(f"[red]document[/] {escape(document)}")
    share = "" if report.sample >= 1 else f" in a sample of {report.sample:.2%}"
    answer = "[green]the same model[/]" if report.same else "[red]not the same[/]"
    console.print(f"{answer}{share}: equal = every value; by rule = exactly what converting A gives")
