"""Percentiles and such, by one definition."""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["median", "percentile", "ratio"]


def percentile(values: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile: a value that really occurred; NaN of nothing."""
    if not values:
        return math.nan
    ordered = sorted(values)
    return ordered[max(math.ceil(percent / 100 * len(ordered)) - 1, 0)]


def median(values: Sequence[float]) -> float:
    """The 50th percentile."""
    return percentile(values, 50)


def ratio(part: float, whole: float) -> float:
    """part / whole, 0 where there is no whole."""
    return part / whole if whole else 0.0
