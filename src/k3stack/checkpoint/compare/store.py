"""Reading tensors of a checkpoint folder by name, mapped into memory, and decoding rows of a matrix exactly.

Every format here decodes into float64 without rounding: E2M1 x E8M0, E2M1 x E4M3 x float32, E4M3 x float32, BF16 and
float32 all have products of at most 30 significant bits.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from k3stack.checkpoint.header import Header, StoredTensor, read_header
from k3stack.formats import bf16, e2m1, e4m3, e8m0, fp8_block
from k3stack.spec.dtypes import DType
from k3stack.spec.schemes import Encoding

__all__ = ["Doubles", "Store"]

Doubles = NDArray[np.float64]


class Store:
    """The tensors of a folder of sound shards."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.places: dict[str, tuple[str, int, StoredTensor]] = {}
        for path in sorted(folder.glob("*.safetensors")):
            header = _header(path)
            for name, tensor in header.tensors.items():
                self.places[name] = (path.name, header.payload_start + tensor.begin, tensor)

    def __contains__(self, name: str) -> bool:
        return name in self.places

    def shard(self, name: str) -> str:
        """The file that holds a tensor."""
        return self.places[name][0]

    def raw(self, name: str) -> NDArray[Any]:
        """A tensor's elements as unsigned integers (or float32) of its shape, mapped, not read."""
        shard, offset, tensor = self.places[name]
        kind = _ARRAYS[tensor.dtype]
        if 0 in tensor.shape:
            return np.zeros(tensor.shape, kind)
        return np.memmap(self.folder / shard, kind, "r", offset, tensor.shape or (1,)).reshape(tensor.shape)

    def bytes_of(self, name: str) -> bytes:
        """A tensor's bytes."""
        shard, offset, tensor = self.places[name]
        with (self.folder / shard).open("rb") as file:
            return os.pread(file.fileno(), tensor.end - tensor.begin, offset)

    def number(self, name: str) -> float:
        """A tensor of one float32."""
        return float(self.raw(name).reshape(-1)[0])

    def plain(self, name: str) -> Doubles:
        """A BF16 or float32 tensor, exactly."""
        raw = self.raw(name)
        values = bf16.decode(raw) if self.places[name][2].dtype is DType.BF16 else raw
        return values.astype(np.float64)

    def rows(self, module: str, encoding: Encoding, begin: int, end: int) -> Doubles:
        """Rows [begin, end) of a weight matrix, exactly; `begin` is a multiple of 128."""
        part = slice(begin, end)
        match encoding:
            case Encoding.BF16:
                return self._plain_rows(f"{module}.weight", part)
            case Encoding.MXFP4:
                codes = e2m1.decode_packed(self.raw(f"{module}.weight_packed")[part]).astype(np.float64)
                scale = e8m0.decode(self.raw(f"{module}.weight_scale")[part]).astype(np.float64)
                return codes * scale.repeat(32, axis=-1)
            case Encoding.NVFP4_MODELOPT | Encoding.NVFP4_CT:
                name = "weight" if encoding is Encoding.NVFP4_MODELOPT else "weight_packed"
                codes = e2m1.decode_packed(self.raw(f"{module}.{name}")[part]).astype(np.float64)
                scale = e4m3.decode(self.raw(f"{module}.weight_scale")[part]).astype(np.float64)
                return codes * scale.repeat(16, axis=-1) * self.second_scale(module, encoding)
            case Encoding.FP8_BLOCK_MODELOPT | Encoding.FP8_BLOCK_CT:
                codes = e4m3.decode(self.raw(f"{module}.weight")[part]).astype(np.float64)
                scale = self.plain(f"{module}.weight_scale")
                scale = scale.reshape(scale.shape[0], -1)[begin // fp8_block.BLOCK :]
                return codes * fp8_block.spread(scale, codes.shape)  # type: ignore[arg-type]

    def _plain_rows(self, name: str, part: slice) -> Doubles:
        raw = self.raw(name)[part]
        values = bf16.decode(raw) if self.places[name][2].dtype is DType.BF16 else raw
        return values.astype(np.float64)

    def second_scale(self, module: str, encoding: Encoding) -> float:
        """The matrix's scale in NVFP4; compressed-tensors stores what to divide by."""
        if encoding is Encoding.NVFP4_MODELOPT:
            return self.number(f"{module}.weight_scale_2")
        return 1 / self.number(f"{module}.weight_global_scale")


_ARRAYS: dict[DType, Any] = {
    DType.U8: np.uint8,
    DType.F8_E4M3: np.uint8,
    DType.BF16: np.uint16,
    DType.F32: np.float32,
}


def _header(path: Path) -> Header:
    with path.open("rb") as file:
        return read_header(lambda begin, end: os.pread(file.fileno(), end - begin, begin), path.stat().st_size)
