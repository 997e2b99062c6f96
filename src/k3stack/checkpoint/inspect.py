"""Inspecting a checkpoint: what it is, how it is stored, and every fault, each named once.

What is compared: config.json (through the spec) with the index, the index with the headers of the shards, the headers
with the spec, and where the payload is at hand, the scales. The report says what was looked at and what was not.
"""

from __future__ import annotations

import gc
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from k3stack.checkpoint.faults import Fault, FaultKind, ShardError
from k3stack.checkpoint.header import Header, StoredTensor, read_header
from k3stack.checkpoint.observe import observe
from k3stack.checkpoint.scan import Depth, Looked, scan_payload
from k3stack.checkpoint.source import Source
from k3stack.errors import CheckpointError
from k3stack.files import inside
from k3stack.spec.config import parse_config
from k3stack.spec.model import ModelSpec
from k3stack.spec.published import kimi_k3
from k3stack.spec.schemes import Scheme
from k3stack.spec.sizes import Sizes, measure
from k3stack.spec.tensors import Component, Family, TensorSpec, families, tensors

__all__ = ["InspectReport", "Looked", "StoredAs", "inspect"]


@dataclass(frozen=True, slots=True)
class StoredAs:
    """How the tensors of one component are stored, for example U8 and F8_E4M3."""

    component: Component
    dtypes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class InspectReport:
    """What a checkpoint is and what is wrong with it.

    Attributes:
        looked: how deep the inspection went.
        not_looked: what that leaves unknown, in words.
        release: whether the names are exactly those of Moonshot's release (MXFP4 only).
        sizes: computed from config.json for the checkpoint's scheme.
        read_bytes: safetensors bytes found, None when there are no shards to look at.
    """

    where: str
    scheme: Scheme
    looked: Looked
    not_looked: str
    kda_layers: int
    mla_layers: int
    experts: int
    max_context: int
    vision: bool
    release: bool
    sizes: Sizes
    stored_as: tuple[StoredAs, ...]
    shards_found: int
    read_bytes: int | None
    faults: tuple[Fault, ...]

    @property
    def sound(self) -> bool:
        """Whether nothing wrong was found."""
        return not self.faults


def inspect(
    source: Source, depth: Depth = Depth.AUTO, report: Callable[[int, int | None, str], None] = lambda *_: None
) -> InspectReport:
    """Inspect a checkpoint.

    Args:
        source: where it is.
        depth: how much of the payload to read.
        report: told (done, total, what) as shards are read.

    Raises:
        ConfigError, CheckpointError: config.json or the index cannot be used at all.
    """
    with _no_garbage_collection():
        return _inspect(source, depth, report)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Half a million names hold no cycles; looking for some costs a fifth of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _inspect(source: Source, depth: Depth, report: Callable[[int, int | None, str], None]) -> InspectReport:
    where = f"{source.name}/config.json"
    spec = _spec(source, where)
    found = _Found(source)
    found.read_index()
    found.read_headers(report)
    if found.index is None and not found.sizes:
        raise CheckpointError(
            "has neither an index nor a shard",
            where=source.name,
            hint="Download model.safetensors.index.json, or the *.safetensors files.",
        )
    actual = found.compare(spec)
    looked = Looked.INDEX if not found.sizes else Looked.HEADERS
    if found.headers and depth is not Depth.HEADERS:
        looked = scan_payload(source, found.headers, actual, depth, found.fault, report) or looked
    sizes = measure(actual)
    if found.index is not None and found.total_size not in (None, sizes.payload_bytes) and not found.faults:
        found.fault(
            FaultKind.INDEX_MISMATCH,
            "model.safetensors.index.json: metadata.total_size",
            f"says {found.total_size:,} bytes, the tensors of config.json have {sizes.payload_bytes:,}",
        )
    return InspectReport(
        where=source.name,
        scheme=actual.scheme,
        looked=looked,
        not_looked=_NOT_LOOKED[looked],
        kda_layers=sum(layer.attention == "kda" for layer in actual.layers),
        mla_layers=sum(layer.attention == "mla" for layer in actual.layers),
        experts=actual.moe.experts,
        max_context=actual.max_context,
        vision=actual.vision is not None,
        release=found.complete and actual == kimi_k3(),
        sizes=sizes,
        stored_as=_stored_as(families(actual)),
        shards_found=len(found.sizes),
        read_bytes=sum(found.sizes.values()) if found.sizes else None,
        faults=tuple(found.merged_faults()),
    )


_NOT_LOOKED = {
    Looked.INDEX: "No shard is there: shapes, dtypes and data were not looked at; the names come from the index.",
    Looked.HEADERS: "Only the headers of the shards were read: scales and weights may hold anything.",
    Looked.SCALES: "Headers and all scales were read: the weights themselves may hold anything.",
    Looked.ALL: "Everything was read.",
}


def _spec(source: Source, where: str) -> ModelSpec:
    config = source.config()
    parse_config(config, where=where)  # for errors that name the file
    return ModelSpec.from_config(config)


def _stored_as(found: Iterable[Family]) -> tuple[StoredAs, ...]:
    dtypes: dict[Component, dict[str, None]] = defaultdict(dict)
    for family in found:
        dtypes[family.component][family.dtype.value] = None
    return tuple(StoredAs(part, tuple(dtypes[part])) for part in Component if part in dtypes)


@dataclass
class _Found:
    """What was found in a source, and the faults so far."""

    source: Source
    index: dict[str, str] | None = None
    total_size: int | None = None
    sizes: dict[str, int] = field(default_factory=dict)
    headers: dict[str, Header] = field(default_factory=dict)
    unreadable: set[str] = field(default_factory=set)
    complete: bool = False
    faults: list[Fault] = field(default_factory=list)

    def fault(self, kind: FaultKind, where: str, what: str, count: int = 1) -> None:
        self.faults.append(Fault(kind, where, what, count))

    def read_index(self) -> None:
        found = self.source.index()
        if found is None:
            return
        self.index, self.total_size = found
        outside = [shard for shard in dict.fromkeys(self.index.values()) if not inside(shard)]
        for shard in outside:
            self.unreadable.add(shard)
            count = sum(1 for other in self.index.values() if other == shard)
            name = next(name for name, other in self.index.items() if other == shard)
            self.fault(FaultKind.OUTSIDE_PATH, f"index: {name}", f"is said to be in {shard!r}", count)

    def read_headers(self, report: Callable[[int, int | None, str], None]) -> None:
        self.sizes = self.source.shard_sizes()
        for done, (shard, size) in enumerate(self.sizes.items()):
            report(done, len(self.sizes), shard)
            try:
                self.headers[shard] = read_header(partial(self.source.read, shard), size)
            except ShardError as error:
                self.unreadable.add(shard)
                self.faults.append(error.as_fault(shard))
        if self.sizes and self.index is not None:
            for shard in dict.fromkeys(self.index.values()):
                if shard not in self.sizes and shard not in self.unreadable:
                    self.unreadable.add(shard)
                    self.fault(FaultKind.MISSING_SHARD, shard, "is named by the index and not there")

    def stored(self) -> dict[str, tuple[str, StoredTensor]]:
        """Every tensor that the readable shards hold, with its shard; a second copy is a fault."""
        stored: dict[str, tuple[str, StoredTensor]] = {}
        for shard, header in self.headers.items():
            for name, tensor in header.tensors.items():
                if name in stored:
                    self.fault(FaultKind.DUPLICATE, f"{shard}: {name}", f"is in {stored[name][0]} too")
                else:
                    stored[name] = (shard, tensor)
        return stored

    def compare(self, spec: ModelSpec) -> ModelSpec:
        """Compare names, places, shapes and dtypes with the spec; returns the model that the tensors describe."""
        stored = self.stored()
        by_name = {name: shard for name, (shard, _) in stored.items()} if self.sizes else dict(self.index or {})
        # What unreadable shards hold is known from the index alone; without it, nothing can be said to be missing.
        hidden = {name for name, shard in (self.index or {}).items() if shard in self.unreadable}
        names = by_name.keys() | hidden
        expected = {name for family in families(spec) for name in family.names()}
        if names != expected:
            spec, said = observe(spec, names)
            for sentence in said:
                self.fault(FaultKind.CONFIG_MISMATCH, "config.json", sentence)
            expected = {name for family in families(spec) for name in family.names()}
        self.complete = names == expected
        sees_all = self.index is not None or not self.unreadable
        if sees_all:
            for name in sorted(expected - names):
                self.fault(*_missing(name))
        for name in sorted(names - expected - hidden):
            self.fault(FaultKind.UNEXPECTED_TENSOR, f"{by_name[name]}: {name}", "is no tensor of this model")
        if stored:
            self._compare_places(stored, expected)
            self._compare_shapes(spec, stored)
        return spec

    def _compare_places(self, stored: dict[str, tuple[str, StoredTensor]], expected: set[str]) -> None:
        if self.index is None:
            return
        for name, shard in self.index.items():
            if shard in self.unreadable:
                continue
            if name not in stored:
                if name not in expected:
                    self.fault(FaultKind.INDEX_MISMATCH, f"index: {name}", f"is said to be in {shard}, and is nowhere")
            elif stored[name][0] != shard and name not in self.headers[shard].tensors:
                truth = f"is said to be in {shard}, and is in {stored[name][0]}"
                self.fault(FaultKind.INDEX_MISMATCH, f"index: {name}", truth)
        for name, (shard, _) in stored.items():
            if name in expected and name not in self.index:
                self.fault(FaultKind.INDEX_MISMATCH, f"{shard}: {name}", "is not in the index")

    def _compare_shapes(self, spec: ModelSpec, stored: dict[str, tuple[str, StoredTensor]]) -> None:
        wrong: list[tuple[FaultKind, str, str]] = []
        checked = 0
        for tensor in tensors(spec):
            found = stored.get(tensor.name)
            if found is None:
                continue
            checked += 1
            wrong.extend(_differences(tensor, *found))
        misshaped = [entry for entry in wrong if entry[0] is FaultKind.WRONG_SHAPE]
        # A single cut tensor is that tensor's fault; a tenth of them is a config.json of another size.
        if len(misshaped) > max(2, checked // 10):
            _, where, what = misshaped[0]
            self.fault(
                FaultKind.CONFIG_MISMATCH,
                "config.json",
                f"{len(misshaped):,} of {checked:,} tensors have shapes it does not imply, first {where}, which {what}",
            )
            wrong = [entry for entry in wrong if entry[0] is not FaultKind.WRONG_SHAPE]
        for kind, where, what in wrong:
            self.fault(kind, where, what)

    def merged_faults(self) -> list[Fault]:
        """The faults, with those of one kind beyond the third counted instead of listed."""
        kinds = Counter(fault.kind for fault in self.faults)
        shown: Counter[FaultKind] = Counter()
        merged = []
        for fault in self.faults:
            shown[fault.kind] += 1
            if shown[fault.kind] <= 3 or kinds[fault.kind] <= 4:
                merged.append(fault)
            elif shown[fault.kind] == 4:
                rest = sum(other.count for other in self.faults if other.kind is fault.kind) - 3
                merged.append(Fault(fault.kind, fault.where, f"{fault.what}; and so on", rest))
        return merged


def _missing(name: str) -> tuple[FaultKind, str, str]:
    suffix = name.rpartition(".")[2]
    if "scale" in suffix:
        return FaultKind.MISSING_SCALE, name, "is not there: the weight beside it cannot be decoded"
    return FaultKind.MISSING_TENSOR, name, "is not there"


def _differences(tensor: TensorSpec, shard: str, stored: StoredTensor) -> Iterable[tuple[FaultKind, str, str]]:
    where = f"{shard}: {tensor.name}"
    if stored.shape != tensor.shape:
        yield FaultKind.WRONG_SHAPE, where, f"has shape {list(stored.shape)}, expected {list(tensor.shape)}"
    elif stored.dtype is not tensor.dtype:
        yield FaultKind.WRONG_DTYPE, where, f"is {stored.dtype}, expected {tensor.dtype}"
