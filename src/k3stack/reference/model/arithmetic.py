"""How the reference model multiplies: in which dtype, and so that a row's result does not depend on its neighbours.

Shapes: n rows, a and b widths, H heads.

A matrix product of a library is not one function: for 1, 7 or 512 rows it picks other kernels, which add in another
order, and a row's last bits change with the rows beside it. A request would then get other numbers alone than in a
batch. With `steady` every product is made of tiles of `TILE` rows (the last one filled up with zeros), so that the
library sees one shape only; a row then has the same bits wherever it stands. Without it products are as fast as the
library makes them, and rows agree to rounding.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - its customary name
from torch import Tensor

__all__ = ["TILE", "Arithmetic"]

TILE = 8
"""Rows of one product with `steady`. Small, because a single decoded token fills a whole tile."""

NARROW = 8
"""Weights with fewer rows are filled up: MKL has products for 2 and 3 columns whose rows differ in a tile."""


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """What the model computes in.

    Attributes:
        dtype: of activations and of the large weights: float32, bfloat16, or float64 in tests.
        steady: a sequence's numbers do not depend on what else is in the batch, or on where a prompt is cut.
        kernels: use fla's KDA kernels for prefill where tensors are on a CUDA device and fla is installed.
        low_rank_epsilon: of the two norms inside MLA; None takes config.json's (see mla.py).
    """

    dtype: torch.dtype = torch.float32
    steady: bool = True
    kernels: bool = False
    low_rank_epsilon: float | None = None

    @property
    def wide(self) -> torch.dtype:
        """The dtype of norms, gates, routing, softmax and recurrent states: float32, or float64 in a float64 model."""
        return torch.float64 if self.dtype is torch.float64 else torch.float32

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        """x [n, a] times weight [b, a] transposed: [n, b]."""
        if not self.steady:
            return F.linear(x, weight)
        if len(weight) < NARROW:
            return self.linear(x, F.pad(weight, (0, 0, 0, NARROW - len(weight))))[:, : len(weight)]
        made = x.new_empty(len(x) + -len(x) % TILE, len(weight))
        for first in range(0, len(x), TILE):
            made[first : first + TILE] = F.linear(_filled(x[first : first + TILE]), weight)
        return made[: len(x)]

    def per_head(self, x: Tensor, weight: Tensor) -> Tensor:
        """x [n, H, a] times weight [H, a, b] (b at least NARROW), head by head: [n, H, b]."""
        rows = x.transpose(0, 1)
        if not self.steady:
            return torch.bmm(rows, weight).transpose(0, 1)
        tiles = [_filled(tile).transpose(0, 1) for tile in torch.split(x, TILE)]
        return torch.cat([torch.bmm(tile, weight).transpose(0, 1) for tile in tiles])[: len(x)]


def _filled(tile: Tensor) -> Tensor:
    """A tile of up to TILE rows, filled up with rows of zeros."""
    missing = TILE - len(tile)
    return tile if not missing else torch.cat([tile, tile.new_zeros(missing, *tile.shape[1:])])
