"""How a batch is cut: index tensors that every layer needs, made once a pass.

Shapes: T tokens of the pass, B sequences with a single token, P pages of S tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from k3stack.reference.batch import Batch, Memory, Piece

__all__ = ["Cut", "Steps", "cells", "cut"]


@dataclass(frozen=True, slots=True)
class Steps:
    """The sequences that have one token in this pass: their rows, state slots, and whether they start [B]."""

    rows: Tensor
    slots: Tensor
    fresh: Tensor


@dataclass(frozen=True, slots=True)
class Cut:
    """A batch's pieces, sorted by how they are worked on.

    Attributes:
        pieces: all of them.
        steps: those with one token, side by side, or None.
        longer: the others, and those that want a trail.
        cells: int64 [T], the row of each token's latent in a layer's pages taken as one list of P * S.
    """

    pieces: tuple[Piece, ...]
    steps: Steps | None
    longer: tuple[Piece, ...]
    cells: Tensor


def cut(batch: Batch, memory: Memory) -> Cut:
    """Cut a batch.

    Raises:
        ValueError: the pieces do not tile the tokens, or have too few pages.
    """
    device, page = batch.tokens.device, memory.latent.shape[2]
    _check(batch, page)
    single = [piece for piece in batch.pieces if piece.length == 1 and not piece.trail]
    steps = None
    if single:
        steps = Steps(
            torch.tensor([piece.first for piece in single], device=device),
            torch.tensor([piece.slot for piece in single], device=device),
            torch.tensor([piece.start == 0 for piece in single], device=device),
        )
    longer = tuple(piece for piece in batch.pieces if piece.length > 1 or piece.trail)
    return Cut(batch.pieces, steps, longer, cells(batch.pieces, page, device))


def _check(batch: Batch, page: int) -> None:
    row = 0
    for piece in batch.pieces:
        if piece.first != row or piece.length < 1:
            raise ValueError(f"a piece begins at row {piece.first} with {piece.length} tokens; expected row {row}")
        if piece.start + piece.length > len(piece.pages) * page:
            raise ValueError(f"{piece.start + piece.length} tokens do not fit {len(piece.pages)} pages of {page}")
        row += piece.length
    if row != len(batch.tokens):
        raise ValueError(f"the pieces have {row} tokens, the batch {len(batch.tokens)}")


def cells(pieces: Sequence[Piece], page: int, device: torch.device) -> Tensor:
    """int64 [T]: the rows of these pieces' tokens in a layer's pages taken as one list of P * S."""
    made = []
    for piece in pieces:
        places = torch.arange(piece.start, piece.start + piece.length, device=device)
        made.append(piece.pages.to(device)[places // page] * page + places % page)
    return torch.cat(made)
