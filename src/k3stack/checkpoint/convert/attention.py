"""Attention projections, BF16 to FP8 with one scale per 128 x 128 tile, in three ways of choosing the scale.

    pow2    a power of two, the one with the least squared error. On Blackwell, DeepGEMM rounds any other scale up to a
            power of two and the weights a second time; these pass through unchanged.
    fp32    largest magnitude / 448, in float32
    nvidia  the same, computed in BF16 as Model Optimizer 0.47.0 does (FP8QTensor.quantize on BF16 input), bit for bit

A tile of zeros becomes zeros in every way (Model Optimizer divides 0 by 0 there and stores NaN).

With a power of two, the FP8 byte depends on the BF16 word and the exponent alone, so quantising is a table look-up.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

import numpy as np

from k3stack.errors import FormatError
from k3stack.formats import bf16, e4m3, fp8_block
from k3stack.formats.arrays import Bytes, Floats, Words

__all__ = ["AttentionScale", "Fp8Matrix", "RoundingError", "quantize_attention"]

BLOCK = fp8_block.BLOCK


class AttentionScale(StrEnum):
    """How the scale of a tile is chosen; see the module's docstring."""

    POW2 = "pow2"
    FP32 = "fp32"
    NVIDIA = "nvidia"


@dataclass(frozen=True, slots=True)
class RoundingError:
    """Sums over all weights of a matrix or of many: squared error and squared weights."""

    error: float = 0.0
    weight: float = 0.0

    @property
    def relative_rms(self) -> float:
        """Root mean square error over root mean square weight; 0 for zeros."""
        return float(np.sqrt(self.error / self.weight)) if self.weight else 0.0

    def __add__(self, other: RoundingError) -> RoundingError:
        return RoundingError(self.error + other.error, self.weight + other.weight)


@dataclass(frozen=True, slots=True)
class Fp8Matrix:
    """E4M3 bytes [out, in] and tile scales [rows, columns]."""

    weight: Bytes
    scale: Floats
    rounding: RoundingError


def quantize_attention(words: Words, how: AttentionScale, threads: int = 1) -> Fp8Matrix:
    """Quantise a BF16 matrix.

    Args:
        words: BF16 bit patterns [out, in].
        how: the way to choose scales.
        threads: strips of 128 rows at once.

    Returns:
        The matrix; its rounding error is measured on one strip in four.

    Raises:
        FormatError: a weight is NaN or infinite.
    """
    out, into = words.shape
    weight = np.empty((out, into), np.uint8)
    scales = np.empty((-(-out // BLOCK), -(-into // BLOCK)), np.float32)

    def one_strip(row: int) -> RoundingError:
        rows = slice(row * BLOCK, row * BLOCK + BLOCK)
        largest = _tile_max(words[rows])
        if not np.isfinite(largest).all():
            raise FormatError("has a NaN or infinite weight")
        quantise = _strip_pow2 if how is AttentionScale.POW2 else _strip_divided
        quantise(words[rows], largest, weight[rows], scales[row], how)
        if row % MEASURED_STRIPS:
            return RoundingError()
        return _rounding(words[rows], weight[rows], scales[row])

    with ThreadPoolExecutor(threads) as pool:
        rounding = sum(pool.map(one_strip, range(len(scales))), RoundingError())
    return Fp8Matrix(weight, scales, rounding)


MEASURED_STRIPS = 4
"""The rounding error is measured on every fourth strip: thousands of weights, a quarter of the time."""


def _rounding(words: Words, weight: Bytes, scales: Floats) -> RoundingError:
    exact = bf16.decode(words).ravel()
    spread = scales.repeat(BLOCK)[: words.shape[1]]
    error = (e4m3.decode(weight) * spread).ravel() - exact
    return RoundingError(float(np.dot(error, error)), float(np.dot(exact, exact)))


def _tile_max(words: Words) -> Floats:
    """The largest magnitude of every tile of one strip: magnitudes order like their bit patterns."""
    by_column = (words & np.uint16(0x7FFF)).max(axis=0)
    starts = np.arange(0, words.shape[1], BLOCK)
    return bf16.decode(np.maximum.reduceat(by_column, starts))


def _strip_pow2(words: Words, largest: Floats, weight: Bytes, scales: Floats, how: AttentionScale) -> None:
    exponents = _covering_exponents(largest)
    # One step finer clips the largest weights; only just above a power of two can that pay.
    for column in np.flatnonzero(largest < _CLIP_LIMIT * np.ldexp(e4m3.MAX / 2, exponents)):
        tile, covering = words[:, column * BLOCK : column * BLOCK + BLOCK], int(exponents[column])
        if _squared_error(tile, covering - 1) < _squared_error(tile, covering):
            exponents[column] = covering - 1
    begin = 0
    while begin < len(exponents):  # neighbours with the same exponent are looked up together
        same = int(np.argmax(np.append(exponents[begin:] != exponents[begin], True)))
        columns = slice(begin * BLOCK, (begin + same) * BLOCK)
        _byte_table(int(exponents[begin])).take(words[:, columns], mode="clip", out=weight[:, columns])
        begin += same
    scales[:] = np.ldexp(np.float32(1), exponents)


_CLIP_LIMIT = 1.01
"""Clipping by more than 1 % costs the largest weight alone more than a finer grid can give the whole tile: the errors
of 16,384 weights below the smallest normal number add up to at most 16,384 x (2^-10 s)^2 = (0.125 s)^2, and 1 % of
224 s is 2.24 s."""


def _covering_exponents(largest: Floats) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """The smallest e with largest <= 448 * 2^e; 0 for a tile of zeros."""
    mantissa, exponent = np.frexp(largest.astype(np.float64) / e4m3.MAX)
    covering = exponent - (mantissa == 0.5)
    result: np.ndarray[tuple[int, ...], np.dtype[np.int64]] = np.where(largest > 0, covering, 0).astype(np.int64)
    return result.clip(-126, 127)


@lru_cache(maxsize=64)
def _byte_table(exponent: int) -> Bytes:
    """The E4M3 byte of every BF16 word divided by 2^exponent."""
    with np.errstate(over="ignore", invalid="ignore"):
        divided: Floats = np.ldexp(_every_word(), -exponent).astype(np.float32)
        return e4m3.encode(divided, saturate=True)


@lru_cache(maxsize=64)
def _error_table(exponent: int) -> Floats:
    """The squared error of every BF16 word; of no meaning for NaN and infinity."""
    with np.errstate(over="ignore", invalid="ignore"):
        restored = np.ldexp(e4m3.decode(_byte_table(exponent)).astype(np.float64), exponent)
        return np.square(restored - _every_word()).astype(np.float32)


def _every_word() -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return bf16.decode(np.arange(65536, dtype=np.uint16)).astype(np.float64)


def _squared_error(words: Words, exponent: int) -> float:
    return float(_error_table(exponent).take(words, mode="clip").sum(dtype=np.float64))


def _strip_divided(words: Words, largest: Floats, weight: Bytes, scales: Floats, how: AttentionScale) -> None:
    scale: Floats = (largest / np.float32(e4m3.MAX)).astype(np.float32)
    if how is AttentionScale.NVIDIA:
        scale = bf16.decode(bf16.encode(scale))
    spread = np.where(scale > 0, scale, np.float32(1)).repeat(BLOCK)[: words.shape[1]]
    quotient: Floats = (bf16.decode(words) / spread).astype(np.float32)
    if how is AttentionScale.NVIDIA:
        quotient = bf16.decode(bf16.encode(quotient))
    weight[:] = e4m3.encode(quotient, saturate=how is AttentionScale.FP32)
    scales[:] = scale
