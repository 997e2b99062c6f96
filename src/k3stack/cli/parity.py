"""`k3 parity`: whether two checkpoints or endpoints compute the same."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from k3stack.cli.output import NO, JsonFlag, Output

if TYPE_CHECKING:
    from rich.console import Console

    from k3stack.reference.parity import ParityReport, Side

__all__ = ["parity"]

_Side = Annotated[str, typer.Argument(help="A checkpoint's folder, or the address of a live endpoint.")]


def parity(
    a: _Side,
    b: _Side,
    prompts: Annotated[
        Path | None, typer.Option(help="A file with one JSON value a line: a text or a chat. Default: eight chats.")
    ] = None,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens of answer compared for each prompt.")] = 32,
    top: Annotated[
        int, typer.Option(min=0, help="Most likely tokens compared at each place; 0: all (two checkpoints only).")
    ] = 20,
    model: Annotated[str | None, typer.Option(help="The endpoint's model. Default: the first it lists.")] = None,
    bfloat16: Annotated[bool, typer.Option("--bfloat16", help="Compute checkpoints in BF16, not float32.")] = False,
    device: Annotated[str, typer.Option(help="Where checkpoints run: cpu or cuda.")] = "cpu",
    report: Annotated[Path | None, typer.Option(help="Also write a page (.html) or a plot (.png).")] = None,
    max_kl: Annotated[
        float | None, typer.Option(min=0, help="Exit with 1 if the mean KL is above this many nats.")
    ] = None,
    min_agreement: Annotated[
        float | None, typer.Option(min=0, max=1, help="Exit with 1 if fewer places agree than this share.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Compare what A and B make of the same tokens: KL per token, agreement, first divergence.

    A answers each prompt at temperature 0; then both score the same prompt and answer.
    """
    from k3stack.errors import UnavailableError, UsageError

    try:
        from k3stack.reference.parity import compare
        from k3stack.reference.parity.page import require_page, write_page
        from k3stack.reference.parity.prompts import built_in, read_prompts
    except ModuleNotFoundError as error:
        hint = "Install it: pip install 'k3stack[reference]'"
        raise UnavailableError(f"the reference engine needs the package {error.name}", hint=hint) from None
    if top == 0 and any(map(_is_address, (a, b))):
        raise UsageError("an endpoint does not tell all of its vocabulary", where="--top", hint="Give 1 to 20")
    if report is not None:
        require_page(report)
    texts = built_in() if prompts is None else read_prompts(prompts)
    output = Output(as_json)
    sides = [_side(each, model, bfloat16, device) for each in (a, b)]
    with output.progress("comparing") as progress:
        found = compare(sides[0], sides[1], texts, tokens, top, progress)
    if report is not None:
        write_page(found, report)
        output.note(f"wrote {report}")
    output.result(found, lambda console: _show(found, console))
    too_far = max_kl is not None and found.mean_kl > max_kl
    if too_far or (min_agreement is not None and found.agreement < min_agreement):
        raise typer.Exit(NO)


def _is_address(side: str) -> bool:
    return side.startswith(("http://", "https://"))


def _side(side: str, model: str | None, bfloat16: bool, device: str) -> Side:
    if _is_address(side):
        from k3stack.reference.parity.endpoint import EndpointSide

        return EndpointSide(side, model)
    import torch

    from k3stack.reference.parity.checkpoint import CheckpointSide

    return CheckpointSide(Path(side), torch.bfloat16 if bfloat16 else torch.float32, device)


def _show(found: ParityReport, console: Console) -> None:
    from rich.table import Table

    console.print(f"A: {found.a}\nB: {found.b}")
    table = Table(box=None)
    for title in ("prompt", "tokens", "same", "mean KL", "largest KL", "first difference"):
        table.add_column(title, justify="left" if title == "prompt" else "right")
    for each in found.prompts:
        same = f"{sum(each.agree) / len(each.agree):.1%}"
        kl = [f"{value:.3g}" for value in (sum(each.kl) / len(each.kl), max(each.kl))]
        table.add_row(each.prompt, str(len(each.kl)), same, *kl, each.first_text)
    console.print(table)
    bound = "exact" if found.exact_kl else f"{found.top} most likely tokens of each side: a lower bound"
    console.print(
        f"measured: same most likely token at {found.agreement:.1%} of {found.tokens} places; "
        f"mean KL(A || B) {found.mean_kl:.3g} nats, largest {found.max_kl:.3g} ({bound}; covers {found.covered:.1%})"
    )
