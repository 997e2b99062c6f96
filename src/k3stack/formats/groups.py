"""Splitting the last axis into groups that share a scale, and joining them again."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from k3stack.errors import FormatError

__all__ = ["grouped", "merged"]


def grouped(values: NDArray[Any], size: int) -> NDArray[Any]:
    """[..., n] as [..., n/size, size].

    Raises:
        FormatError: the last axis is no multiple of `size`.
    """
    if values.ndim == 0 or values.shape[-1] % size:
        raise FormatError(f"the last axis of shape {values.shape} is no multiple of the group size {size}")
    return values.reshape(*values.shape[:-1], values.shape[-1] // size, size)


def merged(groups: NDArray[Any]) -> NDArray[Any]:
    """[..., g, size] as [..., g*size], the inverse of `grouped`."""
    return np.ascontiguousarray(groups).reshape(*groups.shape[:-2], groups.shape[-2] * groups.shape[-1])
