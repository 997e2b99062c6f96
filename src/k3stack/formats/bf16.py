"""BF16: the upper half of a float32. 1 sign bit, 8 exponent bits, 7 mantissa bits."""

from __future__ import annotations

import numpy as np

from k3stack.formats.arrays import Floats, Words

__all__ = ["decode", "encode"]


def decode(words: Words) -> Floats:
    """BF16 bit patterns as float32; exact for every pattern, NaN payloads kept."""
    return (words.astype(np.uint32) << 16).view(np.float32)


def encode(values: Floats) -> Words:
    """float32 to BF16, ties to even; overflow gives infinity, NaN stays a quiet NaN of the same sign."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + (np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1)))) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x0040)
    nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return np.where(nan, quiet, rounded).astype(np.uint16)
