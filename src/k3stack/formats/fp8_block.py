"""Block FP8: E4M3 weights [out, in] with one float32 scale for every tile of 128 x 128.

    value[r, c] = E4M3(weight[r, c]) * scale[r // 128, c // 128]

Tiles at the edges are smaller; the weight is stored at its own shape. Model Optimizer stores the scale as
[rows, 1, columns, 1], others as [rows, columns]; both are read, `quantize` gives the latter.
"""

from __future__ import annotations

import numpy as np

from k3stack.errors import FormatError
from k3stack.formats import e4m3
from k3stack.formats.arrays import Bytes, Floats

__all__ = ["BLOCK", "dequantize", "quantize", "spread", "tile_max"]

BLOCK = 128


def dequantize(weight: Bytes, scale: Floats) -> Floats:
    """float32 [out, in] from E4M3 bytes [out, in] and tile scales [rows, columns] or [rows, 1, columns, 1].

    Raises:
        FormatError: the shapes do not belong together.
    """
    rows, columns = (-(-size // BLOCK) for size in weight.shape)
    if scale.shape not in ((rows, columns), (rows, 1, columns, 1)):
        raise FormatError(f"block scales have shape {scale.shape}, but the weight needs ({rows}, {columns})")
    return e4m3.decode(weight) * spread(scale.reshape(rows, columns), weight.shape)


def quantize(values: Floats) -> tuple[Bytes, Floats]:
    """E4M3 bytes [out, in] and scales [rows, columns] of float32 [out, in]: scale = tile's largest magnitude / 448.

    An all-zero tile gets scale 0 and weights 0.

    Raises:
        FormatError: not two-dimensional, or a value is NaN or infinite.
    """
    values = np.asarray(values, dtype=np.float32)
    if values.ndim != 2 or not np.isfinite(values).all():
        raise FormatError("block FP8 takes a finite matrix")
    scale = tile_max(values) / np.float32(e4m3.MAX)
    divisor = spread(np.where(scale > 0, scale, np.float32(1)), values.shape)
    return e4m3.encode(values / divisor, saturate=True), scale


def tile_max(values: Floats) -> Floats:
    """The largest magnitude of every tile of [out, in], as [rows, columns]."""
    starts = [np.arange(0, size, BLOCK) for size in values.shape]
    by_row = np.maximum.reduceat(np.abs(values), starts[0], axis=0)
    return np.asarray(np.maximum.reduceat(by_row, starts[1], axis=1), dtype=np.float32)


def spread(scale: Floats, shape: tuple[int, ...]) -> Floats:
    """Tile scales [rows, columns] repeated over the elements of a matrix of `shape`."""
    return scale.repeat(BLOCK, axis=0)[: shape[0]].repeat(BLOCK, axis=1)[:, : shape[1]]
