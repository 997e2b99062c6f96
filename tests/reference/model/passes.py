"""Running a model over sequences cut in some way."""

from collections.abc import Sequence

import torch
from torch import Tensor

from k3stack.reference.batch import Batch, Memory, Piece
from k3stack.reference.model import K3

PAGE = 8


def new_memory(model: K3, latent: torch.dtype | None = None) -> Memory:
    return model.new_memory(60, PAGE, 6, latent)


def pages_for(place: int, tokens: int) -> Tensor:
    """Up to ten pages that no other place has, out of order; more tokens only add pages."""
    count = -(-tokens // PAGE)
    assert count <= 10
    return (torch.arange(count) * 7 + 1) % 10 + 10 * place


def run(model: K3, tokens: Tensor, lengths: Sequence[int], memory: Memory | None = None, place: int = 0) -> Tensor:
    """The hidden states [T, hidden] of one sequence whose tokens come in pieces of these lengths."""
    memory, made, start = memory or new_memory(model), [], 0
    pages = pages_for(place, len(tokens))
    for length in lengths:
        piece = Piece(0, length, start, pages, place)
        made.append(model.forward(Batch(tokens[start : start + length], (piece,)), memory).hidden)
        start += length
    return torch.cat(made)
