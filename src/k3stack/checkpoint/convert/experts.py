"""Routed experts, MXFP4 to NVFP4, without decoding a weight.

Both formats hold the same E2M1 codes; only the scales differ. MXFP4 has one power of two 2^k per 32 elements, NVFP4 an
E4M3 scale per 16 and a float32 scale per matrix. With k_max the largest k of the matrix (of gate and up together, since
SiTU kernels take one second scale for the pair):

    scale_2 = 2^(k_max - 8)          scale of both halves of a block = 2^(k - k_max + 8)

E4M3 holds 2^e for e from -9 to 8, so a block with k_max - k <= 17 keeps its codes and its values. A block further down
takes the smallest scale, 2^-9, and its codes are rounded to the nearest, ties to even.

The scale bytes of MXFP4 are k + 127. A byte of 0 stands for an all-zero block and does not count for k_max; this and
the formulas follow NVIDIA's converter (Model Optimizer 0.47.0, mxfp4_to_nvfp4_global_amax and _per_block_amax). One
difference: -0 stays -0 here, where Model Optimizer's search for the code makes it +0.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from k3stack.errors import FormatError
from k3stack.formats import e2m1, e4m3, e8m0
from k3stack.formats.arrays import Bytes, Words
from k3stack.formats.groups import grouped, merged

__all__ = ["WINDOW", "Blocks", "Recoded", "out_of_range", "recode", "scale_2", "shared_top", "sharing"]

WINDOW = 17
"""How far below k_max a block may lie and keep its codes."""

_BLOCK_BYTES = 16  # 32 elements of MXFP4


@dataclass(frozen=True, slots=True)
class Blocks:
    """MXFP4 blocks by what became of them.

    Attributes:
        total: all of them.
        moved: out of range, their codes rounded anew.
        exact: moved ones that kept every value all the same.
    """

    total: int = 0
    moved: int = 0
    exact: int = 0

    @property
    def lossless(self) -> int:
        """Blocks whose values are what they were."""
        return self.total - self.moved + self.exact

    def __add__(self, other: Blocks) -> Blocks:
        return Blocks(self.total + other.total, self.moved + other.moved, self.exact + other.exact)


@dataclass(frozen=True, slots=True)
class Recoded:
    """One matrix in NVFP4.

    Attributes:
        packed: the new codes, or None when they are the source's, byte for byte.
        scale: E4M3 bytes [out, in/16].
    """

    packed: Bytes | None
    scale: Bytes
    blocks: Blocks


def sharing(module: str) -> list[str]:
    """The matrices that share their second scale with an expert's matrix, itself among them: gate (w1) and up (w3)."""
    stem, _, last = module.rpartition(".")
    return [f"{stem}.{name}" for name in ("w1", "w3")] if last in ("w1", "w3") else [module]


def shared_top(*scales: Bytes) -> int:
    """The largest scale byte of matrices that share their second scale; 127 (2^0) when all blocks are zero.

    Raises:
        FormatError: a NaN scale (byte 255).
    """
    top = max(int(scale.max(initial=0)) for scale in scales)
    if top == e8m0.NAN:
        raise FormatError("has a NaN scale (byte 255)")
    return top or e8m0.BIAS


def scale_2(top: int) -> np.float32:
    """The matrix's scale, 2^(k_max - 8), for the largest scale byte."""
    return np.float32(np.ldexp(1.0, top - e8m0.BIAS - 8))


@lru_cache(maxsize=256)
def _scale_table(top: int) -> Words:
    """Two equal E4M3 bytes, as one word, for each MXFP4 scale byte; below the window the smallest scale."""
    exponent = np.arange(256) - top + 8
    powers = np.ldexp(1.0, np.clip(exponent, 8 - WINDOW, 8)).astype(np.float32)
    return e4m3.encode(powers).astype(np.uint16) * np.uint16(0x0101)


@lru_cache(maxsize=256)
def _byte_table(shift: int) -> Bytes:
    """Packed byte for each packed byte when every value is divided by 2^shift and rounded to nearest even."""
    every = np.arange(256, dtype=np.uint8)[:, None]
    divided = np.ldexp(e2m1.decode_packed(every).astype(np.float64), -shift).astype(np.float32)
    return e2m1.pack(e2m1.encode(divided))[:, 0]


@lru_cache(maxsize=256)
def _exact_table(shift: int) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Whether both values of each packed byte survive `_byte_table`."""
    every = np.arange(256, dtype=np.uint8)[:, None]
    before = np.ldexp(e2m1.decode_packed(every).astype(np.float64), -shift)
    after = e2m1.decode_packed(_byte_table(shift)[:, None])
    kept: np.ndarray[tuple[int, ...], np.dtype[np.bool_]] = (before == after).all(axis=-1)
    return kept


def out_of_range(scale: Bytes, top: int) -> bool:
    """Whether any block of E8M0 scales [..] lies too far below the exponent byte `top` to keep its codes."""
    return top - int(scale.min(initial=top)) > WINDOW


def recode(packed: Bytes | None, scale: Bytes, top: int) -> Recoded:
    """An MXFP4 matrix in NVFP4.

    Args:
        packed: bytes [out, in/2]; only looked at where blocks are `out_of_range`, else None will do.
        scale: E8M0 bytes [out, in/32].
        top: what `shared_top` gave for this matrix and those that share its second scale.

    Raises:
        FormatError: a scale byte above `top`.
    """
    if int(scale.max(initial=0)) > top and top != e8m0.BIAS:
        raise FormatError(f"has a scale byte above the shared maximum {top}")
    new_scale = _scale_table(top).take(scale, mode="clip").view(np.uint8)
    if not out_of_range(scale, top):
        return Recoded(None, new_scale, Blocks(scale.size))
    assert packed is not None
    below = top - WINDOW - scale.astype(np.int16)
    moved = below > 0
    blocks = grouped(packed, _BLOCK_BYTES).copy()
    exact = 0
    for shift in np.unique(below[moved]):
        here = below == shift
        before = blocks[here]
        exact += int(_exact_table(int(shift))[before].all(axis=-1).sum())
        blocks[here] = _byte_table(int(shift))[before]
    return Recoded(merged(blocks), new_scale, Blocks(scale.size, int(moved.sum()), exact))
