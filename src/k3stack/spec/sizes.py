"""Sizes of a checkpoint from its spec: parameters, payload bytes, and file bytes with safetensors headers, exact.

A safetensors file is 8 bytes (the header's length), the header (JSON without spaces, padded with spaces to a multiple
of 8) and the payload, tensors by dtype (widest first) and then by name. For Moonshot's release this reproduces the
published total to the byte.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache

from k3stack.spec.model import ModelSpec
from k3stack.spec.tensors import Component, Family, families, shard_count, shard_name

__all__ = ["ComponentSize", "Shard", "Sizes", "active_parameters", "header_bytes", "measure"]


@dataclass(frozen=True, slots=True)
class ComponentSize:
    """What one component holds."""

    component: Component
    tensors: int
    parameters: int
    payload_bytes: int


@dataclass(frozen=True, slots=True)
class Shard:
    """One file of the checkpoint. `header_bytes` includes the 8 bytes of its length."""

    name: str
    tensors: int
    payload_bytes: int
    header_bytes: int

    @property
    def file_bytes(self) -> int:
        """Size of the file on disk."""
        return self.payload_bytes + self.header_bytes


@dataclass(frozen=True, slots=True)
class Sizes:
    """All sizes of a checkpoint, computed."""

    components: tuple[ComponentSize, ...]
    shards: tuple[Shard, ...]
    active_parameters: int

    @property
    def tensors(self) -> int:
        """Tensors in all shards."""
        return sum(part.tensors for part in self.components)

    @property
    def parameters(self) -> int:
        """Model parameters; the same for every scheme."""
        return sum(part.parameters for part in self.components)

    @property
    def payload_bytes(self) -> int:
        """`metadata.total_size` of the index."""
        return sum(part.payload_bytes for part in self.components)

    @property
    def file_bytes(self) -> int:
        """Bytes of all safetensors files on disk."""
        return sum(shard.file_bytes for shard in self.shards)


def measure(spec: ModelSpec) -> Sizes:
    """Sizes of a checkpoint in `spec.scheme`."""
    by_shard: dict[int, list[Family]] = defaultdict(list)
    totals: dict[Component, list[int]] = defaultdict(lambda: [0, 0, 0])
    for family in families(spec):
        by_shard[family.shard_index].append(family)
        total = totals[family.component]
        total[0] += family.count
        total[1] += family.count * family.parameters
        total[2] += family.count * family.size_bytes
    shards = shard_count(spec)
    return Sizes(
        components=tuple(ComponentSize(part, *totals[part]) for part in Component if part in totals),
        shards=tuple(_shard(shard_name(index, shards), found) for index, found in sorted(by_shard.items())),
        active_parameters=active_parameters(spec),
    )


def active_parameters(spec: ModelSpec) -> int:
    """Parameters that one text token passes through.

    Those of the chosen experts, and everything else but the embedding and vision.
    """
    active = 0
    for family in families(spec):
        if family.component is Component.ROUTED_EXPERTS:
            active += spec.moe.experts_per_token * family.parameters
        elif family.component not in (Component.EMBEDDING, Component.VISION, Component.PROJECTOR):
            active += family.parameters
    if spec.tied_head:
        active += spec.vocab * spec.hidden
    return active


def _shard(name: str, found: list[Family]) -> Shard:
    return Shard(
        name=name,
        tensors=sum(family.count for family in found),
        payload_bytes=sum(family.count * family.size_bytes for family in found),
        header_bytes=header_bytes(found),
    )


def header_bytes(found: list[Family]) -> int:
    """Bytes before the payload of a shard that holds these families: length word, JSON, padding.

    Only lengths matter, and layers of one kind differ only in their number, so the number is replaced by zeros and
    the answer kept: K3's 93 layers cost five computations.
    """
    rows = []
    for family in found:
        name = family.name
        if family.layer is not None:
            name = name.replace(f"layers.{family.layer}.", f"layers.{'0' * len(str(family.layer))}.", 1)
        rows.append((family.dtype.rank, name, family.experts, family.size_bytes, _fixed_length(family)))
    return _header_bytes(tuple(rows))


def _fixed_length(family: Family) -> int:
    """Characters of a header entry besides its name and offsets."""
    shape = ",".join(map(str, family.shape))
    return len(f'"":{{"dtype":"{family.dtype}","shape":[{shape}],"data_offsets":[,]}},')


@lru_cache(maxsize=256)
def _header_bytes(rows: tuple[tuple[int, str, int, int, int], ...]) -> int:
    entries = []
    for rank, name, experts, size, fixed in rows:
        for expert in range(experts) if experts else (None,):
            full = name if expert is None else name.replace("{expert}", str(expert))
            entries.append((rank, full, size, fixed))
    entries.sort()
    text, offset = len("{}") - 1, 0  # the last entry has no comma
    for _, name, size, fixed in entries:
        text += fixed + len(name) + len(str(offset)) + len(str(offset + size))
        offset += size
    return 8 + -(-text // 8) * 8
