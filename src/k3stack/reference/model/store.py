"""A checkpoint's tensors, given out once each: nothing is missing, left over or of another shape than the spec says."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from k3stack.checkpoint.faults import ShardError
from k3stack.checkpoint.header import Header, read_header
from k3stack.checkpoint.source import FolderSource
from k3stack.errors import CheckpointError
from k3stack.reference.model.arithmetic import Arithmetic
from k3stack.reference.model.matrices import Matrix, build
from k3stack.spec.dtypes import DType
from k3stack.spec.schemes import Encoding
from k3stack.spec.tensors import Family

__all__ = ["Section", "Store"]

_DTYPES = {
    DType.U8: torch.uint8,
    DType.F8_E4M3: torch.float8_e4m3fn,
    DType.BF16: torch.bfloat16,
    DType.F32: torch.float32,
}


class Store:
    """The tensors of a folder of safetensors files.

    Args:
        folder: where the files are.
        expected: what must be there, and nothing else.
        arithmetic: the dtype that matrices get.
        device: where tensors go.
        keep_quantised: quantised matrices stay as they are stored and are decoded at every use.
        optional: what may be there too.

    Raises:
        CheckpointError: a tensor is missing, twice there, not expected, or of another shape or dtype; names both
            file and tensor.
    """

    def __init__(
        self,
        folder: Path,
        expected: Iterable[Family],
        arithmetic: Arithmetic,
        device: str,
        keep_quantised: bool,
        optional: Iterable[Family] = (),
    ) -> None:
        self.source = FolderSource(folder)
        self.arithmetic, self.device, self.keep_quantised = arithmetic, device, keep_quantised
        self.expected = {family.name: family for family in expected}
        self.headers = {shard: self._header(shard, size) for shard, size in self.source.shard_sizes().items()}
        self.shard_of = self._located()
        self.expected |= {family.name: family for family in optional if family.name in self.shard_of}
        self.left = set(self.expected)
        self.modules: dict[str, list[Family]] = {}
        for family in self.expected.values():
            self.modules.setdefault(family.module, []).append(family)
        self._check()

    def section(self, prefix: str) -> Section:
        """The tensors whose names begin with `prefix`."""
        return Section(self, prefix)

    def finish(self) -> None:
        """Nothing may be left that no part of the model has taken."""
        if self.left:
            raise AssertionError(f"the model does not use {sorted(self.left)[:3]}")

    def take(self, name: str) -> Tensor:
        """A tensor, or for a family of every expert a bank of them stacked; each once."""
        family = self.expected[name]
        self.left.remove(name)
        tensors = [self._read(single) for single in family.names()]
        return (torch.stack(tensors) if family.experts else tensors[0]).to(self.device)

    def _header(self, shard: str, size: int) -> Header:
        try:
            return read_header(lambda begin, end: self.source.read(shard, begin, end), size)
        except ShardError as error:
            raise CheckpointError(error.what, where=f"{self.source.name}/{shard}", hint=self._hint) from error

    def _located(self) -> dict[str, str]:
        located: dict[str, str] = {}
        for shard, header in self.headers.items():
            for name in header.tensors:
                if name in located:
                    raise self._error(shard, name, f"is in {located[name]} too")
                located[name] = shard
        return located

    def _check(self) -> None:
        unknown = set(self.shard_of)
        for family in self.expected.values():
            for name in family.names():
                if name not in self.shard_of:
                    raise self._error(None, name, "is missing; no safetensors file has it")
                unknown.discard(name)
                shard = self.shard_of[name]
                stored = self.headers[shard].tensors[name]
                if (stored.shape, stored.dtype) != (family.shape, family.dtype):
                    is_now, must_be = (
                        f"{d} {list(s)}" for s, d in ((stored.shape, stored.dtype), (family.shape, family.dtype))
                    )
                    raise self._error(shard, name, f"is {is_now}, but config.json makes it {must_be}")
        if unknown:
            name = min(unknown)
            raise self._error(self.shard_of[name], name, f"is no tensor of this model ({len(unknown)} such in all)")

    def _error(self, shard: str | None, name: str, what: str) -> CheckpointError:
        where = f"{self.source.name}/{shard}" if shard else self.source.name
        return CheckpointError(f"tensor {name} {what}", where=where, hint=self._hint)

    @property
    def _hint(self) -> str:
        return f"Try: k3 inspect {self.source.name}"

    def _read(self, name: str) -> Tensor:
        shard = self.shard_of[name]
        header = self.headers[shard]
        stored, start = header.tensors[name], header.payload_start
        data = bytearray(self.source.read(shard, start + stored.begin, start + stored.end))
        return torch.frombuffer(data, dtype=_DTYPES[stored.dtype]).reshape(stored.shape)


class Section:
    """The tensors below one prefix, such as a layer's or an attention's."""

    def __init__(self, store: Store, prefix: str) -> None:
        self.store, self.prefix = store, prefix

    def section(self, name: str) -> Section:
        """A part of this part."""
        return Section(self.store, f"{self.prefix}{name}.")

    def matrix(self, module: str) -> Matrix:
        """The matrix of a module (a bank with `{expert}` in its name), in whichever way it is stored."""
        families = self.store.modules[self.prefix + module]
        encoding = families[0].encoding or Encoding.BF16
        parts = {family.name.rpartition(".")[2]: self.store.take(family.name) for family in families}
        return build(encoding, parts, self.store.arithmetic.dtype, self.store.keep_quantised)

    def weight(self, module: str) -> Tensor:
        """The `weight` of a norm or another plain module, in the model's dtype."""
        return self.tensor(f"{module}.weight").to(self.store.arithmetic.dtype)

    def tensor(self, name: str) -> Tensor:
        """A tensor in the wide dtype (float32), for what is computed there."""
        return self.store.take(self.prefix + name).to(self.store.arithmetic.wide)
