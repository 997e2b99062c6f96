"""`k3 convert`: MXFP4 to NVFP4."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from k3stack.cli.output import JsonFlag, Output

if TYPE_CHECKING:
    from rich.console import Console

    from k3stack.checkpoint.convert.finish import ConversionReport
    from k3stack.checkpoint.convert.run import ConversionPlan, Outcome

__all__ = ["convert"]


class To(StrEnum):
    """What can be made."""

    NVFP4_MIXED = "nvfp4-mixed"
    NVFP4_EXPERTS = "nvfp4-experts"


class ScaleName(StrEnum):
    """How FP8 tile scales are chosen."""

    POW2 = "pow2"
    FP32 = "fp32"
    NVIDIA = "nvidia"


def convert(
    source: Annotated[Path, typer.Argument(help="Folder of an MXFP4 checkpoint.")],
    target: Annotated[Path, typer.Argument(help="Folder to make, or one that holds this conversion unfinished.")],
    to: Annotated[To, typer.Option(help="nvfp4-mixed: FP8 attention; nvfp4-experts: attention stays BF16.")],
    attention_scale: Annotated[
        ScaleName, typer.Option(help="FP8 tile scales: powers of two, plain, or Model Optimizer's bit for bit.")
    ] = ScaleName.POW2,
    jobs: Annotated[int, typer.Option(min=1, help="Shards at once.")] = 2,
    part: Annotated[
        str | None, typer.Option(metavar="I/N", help="Do every N-th shard from the I-th: several machines, one folder.")
    ] = None,
    finish: Annotated[bool, typer.Option("--finish", help="After all parts: write index, config and report.")] = False,
    sha256: Annotated[
        bool, typer.Option("--sha256", help="Digest the source with SHA-256, as hubs publish it; slower than XXH3.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done; write nothing.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Convert MXFP4 experts to NVFP4, and attention to block FP8, at the speed of the disk. Resumes when run again."""
    from k3stack.checkpoint.convert.attention import AttentionScale
    from k3stack.checkpoint.convert.proof import DigestKind
    from k3stack.checkpoint.convert.run import Conversion
    from k3stack.spec.schemes import Scheme

    output = Output(as_json)
    digest = DigestKind.SHA256 if sha256 else DigestKind.XXH3_128
    conversion = Conversion(source, target, Scheme(to.value), AttentionScale(attention_scale.value), digest)
    wanted = _part(part)
    if dry_run:
        plan = conversion.plan(wanted)
        output.result(plan, lambda console: show_plan(plan, console))
    elif finish:
        report = conversion.finish()
        output.result(report, lambda console: show_report(report, console))
    else:
        with output.progress("converting", unit="bytes") as progress:
            outcome = conversion.run(jobs, wanted, progress)
        output.result(outcome, lambda console: show_outcome(outcome, console))


def _part(text: str | None) -> tuple[int, int]:
    if text is None:
        return 1, 1
    found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    if found is None:
        raise typer.BadParameter("must look like 2/8", param_hint="--part")
    return int(found[1]), int(found[2])


def show_plan(plan: ConversionPlan, console: Console) -> None:
    """What would be done."""
    from rich.markup import escape

    from k3stack.values import format_bytes

    console.print(f"{escape(plan.source)} -> {escape(plan.target)}: mxfp4 to {plan.scheme}")
    console.print(f"{len(plan.shards)} shards to convert, {plan.already_done} already done")
    console.print(
        f"reads {format_bytes(plan.read_bytes)}, writes {format_bytes(plan.write_bytes)} (computed), "
        f"{format_bytes(plan.free_bytes)} free (read)"
    )


def show_outcome(outcome: Outcome, console: Console) -> None:
    """What was done."""
    from rich.markup import escape

    resumed = f", {outcome.resumed} were done before" if outcome.resumed else ""
    console.print(f"{escape(outcome.target)}: {outcome.converted} shards converted and read back{resumed}")
    if outcome.report is not None:
        show_report(outcome.report, console)
    else:
        console.print(f"{outcome.remaining} shards belong to other parts; when all are done: k3 convert ... --finish")


def show_report(report: ConversionReport, console: Console) -> None:
    """The counts of a finished conversion."""
    lossless = report.lossless_blocks / report.blocks if report.blocks else 1.0
    console.print(
        f"{report.scheme}: {report.matrices:,} expert matrices, {report.blocks:,} blocks, {lossless:.4%} lossless, "
        f"{report.moved_blocks:,} out of range"
    )
    if report.modules:
        console.print(f"{report.modules} attention modules in FP8 ({report.attention_scale}); rms error (measured):")
        console.print("  " + ", ".join(f"{kind.kind} {kind.relative_rms:.2%}" for kind in report.attention_error))
    console.print(f"{report.file_bytes:,} bytes in {len(report.source)} shards; see conversion_report.json")
