"""E2M1: four bits, the values 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives. No NaN, no infinity.

Two codes share a byte: element 2i is the low nibble, element 2i+1 the high one (as K3's checkpoints pack them).
"""

from __future__ import annotations

import numpy as np

from k3stack.errors import FormatError
from k3stack.formats.arrays import Bytes, Floats

__all__ = ["MAX", "VALUES", "decode", "decode_packed", "encode", "pack", "unpack"]

MAX = 6.0
VALUES: Floats = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=np.float32)
"""VALUES[code] for the codes 0..15; code 8 is -0.0."""

_MIDPOINTS = (VALUES[1:8] + VALUES[:7]) / 2
_PAIRS = np.stack([VALUES[np.arange(256) & 15], VALUES[np.arange(256) >> 4]], axis=-1)


def decode(codes: Bytes) -> Floats:
    """Codes 0..15, one a byte, as float32.

    Raises:
        FormatError: a code above 15.
    """
    if codes.size and int(codes.max()) > 15:
        raise FormatError("an E2M1 code is above 15; packed bytes go through unpack first")
    return VALUES[codes]


def decode_packed(packed: Bytes) -> Floats:
    """Packed bytes [..., n] as float32 [..., 2n]; every byte value is valid."""
    pairs: Floats = _PAIRS[packed]
    return pairs.reshape((*packed.shape[:-1], packed.shape[-1] * 2))


def encode(values: Floats) -> Bytes:
    """float32 to codes, ties to even, magnitudes above 6 (infinity too) to 6; the sign of zero is kept.

    Raises:
        FormatError: a NaN; E2M1 has none.
    """
    if np.isnan(values).any():
        raise FormatError("E2M1 cannot hold NaN")
    magnitude = np.abs(values)
    # A value on a midpoint goes to the code with an even mantissa bit: below for even codes, above for odd ones.
    code = np.searchsorted(_MIDPOINTS, magnitude, side="left")
    tie = (code < 7) & (magnitude == _MIDPOINTS[np.minimum(code, 6)])
    code = code + (tie & (code % 2 == 1))
    sign = np.signbit(values).astype(np.uint8) << np.uint8(3)
    signed: Bytes = code.astype(np.uint8) | sign
    return signed


def pack(codes: Bytes) -> Bytes:
    """Codes [..., 2n] into bytes [..., n].

    Raises:
        FormatError: an odd number of codes in the last axis.
    """
    if codes.shape[-1] % 2:
        raise FormatError(f"an odd number of E2M1 codes ({codes.shape[-1]}) cannot be packed")
    return (codes[..., 0::2] | (codes[..., 1::2] << np.uint8(4))).astype(np.uint8)


def unpack(packed: Bytes) -> Bytes:
    """Bytes [..., n] into codes [..., 2n], the inverse of `pack`."""
    return np.stack([packed & np.uint8(15), packed >> np.uint8(4)], axis=-1).reshape(
        *packed.shape[:-1], packed.shape[-1] * 2
    )
