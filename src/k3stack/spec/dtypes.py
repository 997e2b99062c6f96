"""The dtypes of a safetensors header: their sizes, and the order in which the library writes them."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["DType"]


class DType(StrEnum):
    """A dtype as a safetensors header names it, in the library's own order.

    `safetensors` writes the tensors of a file by dtype, widest first, then by name. Its order is that of this list,
    reversed (source: safetensors 0.8.0, `tensor.rs`, enum `Dtype`).
    """

    BOOL = "BOOL"
    U8 = "U8"
    I8 = "I8"
    F8_E5M2 = "F8_E5M2"
    F8_E4M3 = "F8_E4M3"
    F8_E8M0 = "F8_E8M0"
    I16 = "I16"
    U16 = "U16"
    F16 = "F16"
    BF16 = "BF16"
    I32 = "I32"
    U32 = "U32"
    F32 = "F32"
    F64 = "F64"
    I64 = "I64"
    U64 = "U64"

    @property
    def size_bytes(self) -> int:
        """Bytes of one element."""
        return _SIZES[self]

    @property
    def rank(self) -> int:
        """Place in the writing order: a lower rank is written first."""
        return _RANKS[self]


_WIDTHS = {
    1: ("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0"),
    2: ("I16", "U16", "F16", "BF16"),
    4: ("I32", "U32", "F32"),
    8: ("F64", "I64", "U64"),
}
_SIZES = {DType(name): width for width, names in _WIDTHS.items() for name in names}
_RANKS = {dtype: -place for place, dtype in enumerate(DType)}
