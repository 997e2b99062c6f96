"""E8M0: a byte that is a power of two, 2^(byte - 127). 255 is NaN; there is no zero, no sign, no infinity."""

from __future__ import annotations

import numpy as np

from k3stack.errors import FormatError
from k3stack.formats.arrays import Bytes, Floats

__all__ = ["BIAS", "NAN", "decode", "encode"]

BIAS = 127
NAN = 255
_VALUES = np.append(np.ldexp(np.float64(1), np.arange(255) - BIAS).astype(np.float32), np.float32(np.nan))


def decode(codes: Bytes) -> Floats:
    """Scale bytes as float32: exact, byte 0 is the subnormal 2^-127, byte 255 is NaN."""
    return _VALUES.take(codes, mode="clip")


def encode(values: Floats) -> Bytes:
    """Powers of two in float32 to bytes; NaN becomes 255. Nothing is rounded.

    Raises:
        FormatError: a value that is no power of two from 2^-127 to 2^127.
    """
    mantissa, exponent = np.frexp(np.asarray(values, dtype=np.float32))
    nan = np.isnan(values)
    code = exponent + (BIAS - 1)
    wrong = ~nan & ((mantissa != 0.5) | (code < 0) | (code > 254))
    if wrong.any():
        raise FormatError(f"E8M0 holds powers of two from 2^-127 to 2^127, not {np.asarray(values)[wrong].flat[0]!r}")
    return np.where(nan, NAN, code).astype(np.uint8)
