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

__all__ = ["TILE", "Arithmetic", "by_columns"]

TILE = 8
"""Rows of one product with `steady`. Small, because a single decoded token fills a whole tile."""

NARROW = 8
"""Weights with fewer rows are filled up: MKL has products for 2 and 3 columns whose rows differ in a tile."""


def by_columns(weight: Tensor) -> Tensor:
    """The same weight [.., b, a], laid out column by column: MKL multiplies few rows 1.5 times as fast with it."""
    return weight.mT.contiguous().mT


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """What the model computes in.

    Attributes:
        dtype: of activations and of the large weights: float32, bfloat16, or float64 in tests.
        steady: a sequence's numbers do not depend on what else is in the batch, or on where a prompt is cut.
        kernels: prefill KDA with fla's kernel (BF16 on a CUDA device).
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
        b = weight.shape[0]
        if b < NARROW:
            return self.linear(x, F.pad(weight, (0, 0, 0, NARROW - b)))[:, :b]
        n = x.shape[0]
        if n <= TILE:
            return F.linear(_filled(x), weight)[:n]
        made = x.new_empty(n + -n % TILE, weight.shape[0])
        for first in range(0, n, TILE):
            torch.mm(_filled(x[first : first + TILE]), weight.mT, out=made[first : first + TILE])
        return made[:n]

    def per_head(self, x: Tensor, weight: Tensor) -> Tensor:
        """x [n, H, a] times weight [H, a, b] (b at least NARROW), head by head: [n, H, b]."""
        rows = x.transpose(0, 1)
        if not self.steady:
            return torch.bmm(rows, weight).transpose(0, 1)
        tiles = [_filled(tile).transpose(0, 1) for tile in torch.split(x, TILE)]
        return torch.cat([torch.bmm(tile, weight).transpose(0, 1) for tile in tiles])[: x.shape[0]]


def _filled(tile: Tensor) -> Tensor:
    """A tile of up to TILE rows, filled up with rows of zeros."""
    missing = TILE - tile.shape[0]
    return tile if not missing else torch.cat([tile, tile.new_zeros(missing, *tile.shape[1:])])
