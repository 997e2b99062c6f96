"""E4M3 (the "fn" variant): 1 sign, 4 exponent and 3 mantissa bits; largest 448, smallest 2^-9, NaN 0x7F and 0xFF, no
infinity."""

from __future__ import annotations

import numpy as np

from k3stack.formats.arrays import Bytes, Floats

__all__ = ["MAX", "MIN_SUBNORMAL", "NANS", "VALUES", "decode", "encode"]

MAX = 448.0
MIN_SUBNORMAL = 2.0**-9
NANS = (0x7F, 0xFF)


def _value(code: int) -> float:
    exponent, mantissa = (code >> 3) & 15, code & 7
    if code & 0x7F == 0x7F:
        magnitude = float("nan")
    elif exponent == 0:
        magnitude = mantissa * 2.0**-9
    else:
        magnitude = (8 + mantissa) * 2.0 ** (exponent - 10)
    return -magnitude if code & 0x80 else magnitude


VALUES: Floats = np.array([_value(code) for code in range(256)], dtype=np.float32)
"""VALUES[byte] for all 256 bytes."""

_LARGEST_THAT_ROUNDS_DOWN = 464.0  # halfway from 448 to the 480 that E4M3 does not have; ties go to 448 (even)


def decode(codes: Bytes) -> Floats:
    """Bytes as float32; 0x7F and 0xFF are NaN."""
    return VALUES.take(codes, mode="clip")  # every byte is in range, and "clip" is the mode without a check


def encode(values: Floats, *, saturate: bool = False) -> Bytes:
    """float32 to bytes, ties to even; the sign of zero is kept and NaN stays NaN.

    Args:
        values: any float32 array.
        saturate: magnitudes above 464 and infinity become 448. By default they become NaN, as in torch and ml_dtypes.
    """
    values = np.ascontiguousarray(values, dtype=np.float32)
    bits = values.view(np.uint32)
    sign = ((bits >> np.uint32(24)) & np.uint32(0x80)).astype(np.uint8)
    magnitude = bits & np.uint32(0x7FFFFFFF)
    # Normal numbers: rebias the exponent (127 to 7) and keep 3 of 23 mantissa bits, rounding half to even.
    kept = (magnitude + np.uint32(0x7FFFF) + ((magnitude >> np.uint32(20)) & np.uint32(1))) >> np.uint32(20)
    code = (kept - np.uint32((127 - 7) << 3)).astype(np.uint8)
    # Below 2^-6 the spacing is constant: adding 2^14 leaves the multiple of 2^-9 in the low mantissa bits, rounded.
    small = magnitude < np.uint32((127 - 6) << 23)
    if small.any():
        tiny = magnitude[small].view(np.float32) + np.float32(2.0**14)
        code[small] = (tiny.view(np.uint32) & np.uint32(0xFF)).astype(np.uint8)
    above = magnitude > np.float32(_LARGEST_THAT_ROUNDS_DOWN).view(np.uint32)
    if above.any():
        nan = magnitude > np.uint32(0x7F800000)
        code[above] = 0x7E if saturate else 0x7F
        code[nan] = 0x7F
    return code | sign
