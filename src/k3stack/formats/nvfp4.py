"""NVFP4: E2M1 values in groups of 16 along the last axis, an E4M3 scale a group and a float32 scale a matrix.

    value[..., 16 g + i] = E2M1[...] * E4M3(scale[..., g]) * scale_2

Shapes: values [..., n], packed bytes [..., n/2], scales [..., n/16], scale_2 a scalar.
"""

from __future__ import annotations

import numpy as np

from k3stack.errors import FormatError
from k3stack.formats import e2m1, e4m3
from k3stack.formats.arrays import Bytes, Floats
from k3stack.formats.groups import grouped, merged

__all__ = ["GROUP", "dequantize", "quantize"]

GROUP = 16


def dequantize(packed: Bytes, scale: Bytes, scale_2: np.float32 | float) -> Floats:
    """float32 [..., n] from packed bytes [..., n/2], E4M3 scale bytes [..., n/16] and the second scale.

    The two scales are multiplied first, in float32, as the engines' reference paths do.

    Raises:
        FormatError: the shapes do not belong together.
    """
    values = grouped(e2m1.decode_packed(packed), GROUP)
    if values.shape[:-1] != scale.shape:
        raise FormatError(f"NVFP4 scales have shape {scale.shape}, but the weights need {values.shape[:-1]}")
    return merged(values * (e4m3.decode(scale) * np.float32(scale_2))[..., None])


def quantize(values: Floats, scale_2: float | None = None) -> tuple[Bytes, Bytes, np.float32]:
    """Packed bytes, scale bytes and the second scale of float32 [..., n].

    Args:
        values: finite float32.
        scale_2: the matrix's scale; by default largest magnitude / (6 * 448), or 1 for an all-zero matrix.

    Raises:
        FormatError: n is no multiple of 16, a value is NaN or infinite, or scale_2 is not positive.
    """
    groups = grouped(np.asarray(values, dtype=np.float32), GROUP)
    if not np.isfinite(groups).all():
        raise FormatError("NVFP4 weights must be finite")
    largest = np.abs(groups).max(axis=-1)
    if scale_2 is None:
        top = float(largest.max(initial=0.0))
        scale_2 = top / (e2m1.MAX * e4m3.MAX) if top > 0 else 1.0
    second = np.float32(scale_2)
    if not (np.isfinite(second) and second > 0):
        raise FormatError(f"the second scale of NVFP4 must be a positive number, not {scale_2!r}")
    scale = e4m3.encode((largest / np.float32(e2m1.MAX) / second).astype(np.float32), saturate=True)
    step = (e4m3.decode(scale) * second)[..., None]
    with np.errstate(divide="ignore", invalid="ignore"):
        scaled = np.where(step > 0, groups / step, np.copysign(np.float32(0), groups))
    return e2m1.pack(merged(e2m1.encode(scaled))), scale, second
