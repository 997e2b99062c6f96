"""Weight matrices as a checkpoint stores them, and as the model multiplies with them.

Shapes: b rows (outputs), a columns (inputs), E experts of a bank (then every tensor has a leading E).

The tables are those of the formats room, so that a number means the same here and there; the arithmetic is torch's,
because a quantised matrix stays on its device and is decoded there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from k3stack.formats import e2m1, e4m3, e8m0, fp8_block, mxfp4, nvfp4
from k3stack.reference.model.arithmetic import by_columns
from k3stack.spec.schemes import Encoding

__all__ = ["Matrix", "build"]

_PAIRS = torch.from_numpy(e2m1.decode_packed(np.arange(256, dtype=np.uint8)[:, None]))  # [256, 2]: low nibble first
_POWERS = torch.from_numpy(e8m0.decode(np.arange(256, dtype=np.uint8)))
_EIGHTHS = torch.from_numpy(e4m3.decode(np.arange(256, dtype=np.uint8)))


@dataclass(frozen=True, slots=True)
class Matrix:
    """One matrix [b, a], or a bank [E, b, a].

    Attributes:
        encoding: how `parts` hold it; BF16 stands for any plain dtype.
        parts: the stored tensors by their suffix.
        dtype: of what `dense` returns.
    """

    encoding: Encoding
    parts: Mapping[str, Tensor]
    dtype: torch.dtype

    def dense(self, expert: int | None = None) -> Tensor:
        """The matrix [b, a], or of a bank the one of an expert; decoded in float32 when it is quantised."""
        parts = self.parts if expert is None else {suffix: part[expert] for suffix, part in self.parts.items()}
        if self.encoding is Encoding.BF16:
            return parts["weight"]
        return by_columns(decode(self.encoding, parts).to(self.dtype))

    def decoded(self) -> Matrix:
        """The same matrix or bank, decoded once and for all."""
        weight = by_columns(decode(self.encoding, self.parts).to(self.dtype))
        return Matrix(Encoding.BF16, {"weight": weight}, self.dtype)


def build(encoding: Encoding, parts: Mapping[str, Tensor], dtype: torch.dtype, keep_quantised: bool) -> Matrix:
    """A matrix [b, a] or bank [E, b, a] from its stored tensors, decoded now or at every use."""
    matrix = Matrix(encoding, parts, dtype)
    return matrix if keep_quantised and encoding is not Encoding.BF16 else matrix.decoded()


def decode(encoding: Encoding, parts: Mapping[str, Tensor]) -> Tensor:
    """The values of a matrix [b, a] or bank [E, b, a]: float32 where it is quantised, else as stored."""
    match encoding:
        case Encoding.BF16:
            return parts["weight"]
        case Encoding.MXFP4:  # E2M1 * 2^(scale - 127), groups of 32
            return _grouped(parts["weight_packed"], _look_up(_POWERS, parts["weight_scale"]), mxfp4.GROUP)
        case Encoding.NVFP4_MODELOPT:  # E2M1 * (E4M3 * scale_2), groups of 16
            return _nvfp4(parts["weight"], parts["weight_scale"], parts["weight_scale_2"])
        case Encoding.NVFP4_CT:  # compressed-tensors stores the inverse of scale_2
            return _nvfp4(parts["weight_packed"], parts["weight_scale"], 1 / parts["weight_global_scale"])
        case Encoding.FP8_BLOCK_MODELOPT | Encoding.FP8_BLOCK_CT:  # E4M3 * scale of the 128 x 128 tile
            return _tiled(parts["weight"], parts["weight_scale"].to(torch.float32))
    raise AssertionError(encoding)


def _look_up(table: Tensor, codes: Tensor) -> Tensor:
    return table.to(codes.device)[codes.view(torch.uint8).int()]


def _grouped(packed: Tensor, scale: Tensor, group: int) -> Tensor:
    values = _look_up(_PAIRS, packed).flatten(-2)  # [.., a]
    groups: Tensor = values.reshape(*scale.shape, group) * scale[..., None]
    return groups.flatten(-2)


def _nvfp4(packed: Tensor, scale: Tensor, second: Tensor) -> Tensor:
    return _grouped(
        packed, _look_up(_EIGHTHS, scale) * second.reshape(*second.shape[: packed.dim() - 2], 1, 1), nvfp4.GROUP
    )


def _tiled(weight: Tensor, scale: Tensor) -> Tensor:
    rows, columns = weight.shape[-2:]
    tiles = scale.reshape(*weight.shape[:-2], -(-rows // fp8_block.BLOCK), -(-columns // fp8_block.BLOCK))
    spread = tiles.repeat_interleave(fp8_block.BLOCK, -2)[..., :rows, :]
    return _look_up(_EIGHTHS, weight) * spread.repeat_interleave(fp8_block.BLOCK, -1)[..., :columns]
