"""`k3 tiny`: write a tiny checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from k3stack.cli.options import SchemeName
from k3stack.cli.output import JsonFlag, Output

__all__ = ["tiny"]


def tiny(
    folder: Annotated[Path, typer.Argument(help="The folder to make; it must not be there yet.")],
    scheme: Annotated[SchemeName, typer.Option(help="How the weights are stored.")] = SchemeName.MXFP4,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same model in every scheme.")] = 0,
    layers: Annotated[int, typer.Option(min=4, max=93, help="Decoder layers.")] = 5,
    experts: Annotated[int, typer.Option(min=4, max=896, help="Routed experts per layer.")] = 16,
    draft: Annotated[Path | None, typer.Option(help="Also make a tiny DSpark draft for it, in this folder.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Write a small checkpoint with K3's architecture, tensor names and number formats."""
    from k3stack.checkpoint.tiny import TinyShape, write_tiny
    from k3stack.checkpoint.tiny_draft import write_tiny_draft
    from k3stack.checkpoint.write import require_new
    from k3stack.spec.schemes import Scheme
    from k3stack.values import format_bytes

    output = Output(as_json)
    shape = TinyShape(layers=layers, experts=experts)
    if draft is not None:
        require_new(draft)  # before anything is written
    with output.progress("writing") as progress:
        made = write_tiny(folder, Scheme(scheme.value), seed, shape, progress)
    size = format_bytes(made.payload_bytes)
    text = f"{made.folder}: {made.scheme}, {made.tensors:,} tensors in {made.shards} shards, {size}, seed {made.seed}"
    if draft is not None:
        beside = write_tiny_draft(draft, seed, shape)
        text += f"\n{beside.folder}: its draft, {beside.tensors} tensors, {format_bytes(beside.payload_bytes)}"
    output.result(made, lambda console: console.print(text))
