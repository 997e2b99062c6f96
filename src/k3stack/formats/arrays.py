"""The array types of this room."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["Bytes", "Floats", "Words"]

Bytes: TypeAlias = NDArray[np.uint8]
Words: TypeAlias = NDArray[np.uint16]
Floats: TypeAlias = NDArray[np.float32]
