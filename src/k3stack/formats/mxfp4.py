"""MXFP4: E2M1 values in groups of 32 along the last axis, one E8M0 scale a group.

    value[..., 32 g + i] = E2M1[...] * 2^(scale[..., g] - 127)

Shapes: values [..., n], packed bytes [..., n/2], scales [..., n/32].
"""

from __future__ import annotations

import numpy as np

from k3stack.errors import FormatError
from k3stack.formats import e2m1, e8m0
from k3stack.formats.arrays import Bytes, Floats
from k3stack.formats.groups import grouped, merged

__all__ = ["GROUP", "dequantize", "quantize"]

GROUP = 32


def dequantize(packed: Bytes, scale: Bytes) -> Floats:
    """float32 [..., n] from packed bytes [..., n/2] and scale bytes [..., n/32].

    A NaN scale gives NaN, a value beyond float32 infinity (only for scales from 2^126).

    Raises:
        FormatError: the shapes do not belong together.
    """
    values = grouped(e2m1.decode_packed(packed), GROUP)
    if values.shape[:-1] != scale.shape:
        raise FormatError(f"MXFP4 scales have shape {scale.shape}, but the weights need {values.shape[:-1]}")
    with np.errstate(over="ignore"):
        return merged(values * e8m0.decode(scale)[..., None])


def quantize(values: Floats) -> tuple[Bytes, Bytes]:
    """Packed bytes and scale bytes of float32 [..., n], by the rule of OCP MX 1.0, section 6.3.

    The scale's exponent is floor(log2(largest magnitude)) - 2, so the largest magnitude lies in [4, 8) and saturates
    at 6. An all-zero group gets exponent 0 (byte 127).

    Raises:
        FormatError: n is no multiple of 32, or a value is NaN or infinite.
    """
    groups = grouped(np.asarray(values, dtype=np.float32), GROUP)
    if not np.isfinite(groups).all():
        raise FormatError("MXFP4 weights must be finite")
    largest = np.abs(groups).max(axis=-1)
    exponent = np.where(largest > 0, np.frexp(largest)[1] - 1 - 2, 0).clip(-e8m0.BIAS, e8m0.BIAS)
    codes = e2m1.encode(np.ldexp(groups.astype(np.float64), -exponent[..., None]).astype(np.float32))
    return e2m1.pack(merged(codes)), (exponent + e8m0.BIAS).astype(np.uint8)
