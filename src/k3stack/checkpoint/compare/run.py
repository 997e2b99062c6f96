"""Comparing two whole checkpoints: which tensors are equal, converted by rule, different or missing, kind by kind."""

from __future__ import annotations

import hashlib
import multiprocessing
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from k3stack import __version__
from k3stack.checkpoint.compare.matrices import Comparison, Match, compare_matrix
from k3stack.checkpoint.compare.store import Store
from k3stack.checkpoint.convert.finish import other_files, read_report
from k3stack.checkpoint.faults import Fault
from k3stack.checkpoint.inspect import inspect
from k3stack.checkpoint.scan import Depth
from k3stack.checkpoint.source import FolderSource
from k3stack.checkpoint.write import json_text
from k3stack.errors import CheckpointError, UsageError
from k3stack.files import json_value
from k3stack.spec.declare import declare, hf_quant_config
from k3stack.spec.model import ModelSpec
from k3stack.spec.schemes import Encoding, Scheme
from k3stack.spec.tensors import families

__all__ = ["CompareReport", "KindResult", "Receipt", "compare", "make_receipt"]

Report = Callable[[int, "int | None", str], None]


@dataclass(frozen=True, slots=True)
class KindResult:
    """All tensors of one kind, for example every expert's w1.

    Attributes:
        relative_rms: root mean square difference over root mean square value of A, all tensors of the kind together.
        worst: the tensor with the largest difference, and `worst_note` what is said of it.
    """

    kind: str
    equal: int
    converted: int
    other_codes: int
    different: int
    blocks: int
    differing_blocks: int
    max_error: float
    relative_rms: float
    worst: str
    worst_note: str


@dataclass(frozen=True, slots=True)
class CompareReport:
    """What two checkpoints have in common.

    Attributes:
        sample: share of the tensors that was compared.
        faults: what inspection found in A or B; missing and unexpected tensors are here.
        documents: files beside the shards that are not what converting A gives (only for our own conversions).
        strict: whether B says it is our conversion of A; then other codes for the same values count as different.
    """

    a: str
    b: str
    scheme_a: Scheme
    scheme_b: Scheme
    sample: float
    kinds: tuple[KindResult, ...]
    faults: tuple[Fault, ...]
    documents: tuple[str, ...]
    strict: bool

    @property
    def same(self) -> bool:
        """Whether B is A: the same values, or exactly what converting A gives."""
        wrong = any(kind.different or (self.strict and kind.other_codes) for kind in self.kinds)
        return not (wrong or self.faults or self.documents)


@dataclass(frozen=True, slots=True)
class FileDigest:
    """A file and its SHA-256."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Receipt:
    """A comparison that somebody else can check: the report, and a digest of every file of both sides."""

    tool: str
    version: str
    same: bool
    report: CompareReport
    files_a: tuple[FileDigest, ...]
    files_b: tuple[FileDigest, ...]


def compare(a: Path, b: Path, sample: float = 1.0, jobs: int = 1, report: Report = lambda *_: None) -> CompareReport:
    """Compare two checkpoint folders.

    Args:
        a, b: folders with all shards.
        sample: share of the tensors to compare; the same names every time.
        jobs: processes.
        report: told (done tensors, total, what).

    Raises:
        UsageError: they are not the same model, or a folder has no shards.
        ConfigError, CheckpointError: a folder cannot be read at all.
    """
    if not 0 < sample <= 1:
        raise UsageError(f"must be above 0 and at most 100 %, not {sample:.2%}", where="--sample")
    spec_a, faults_a = _inspected(a)
    spec_b, faults_b = _inspected(b)
    if spec_a.with_scheme(spec_b.scheme) != spec_b:
        raise UsageError(f"describes another model than {a}", where=f"{b}/config.json")
    faults = (*_named(a, faults_a), *_named(b, faults_b))
    strict, documents = _documents(a, b, spec_b, sound=not faults_b)
    work = _Work(str(a), str(b), spec_a, spec_b)
    results: dict[str, list[tuple[str, Comparison]]] = defaultdict(list)
    if not faults:
        names = [item for item in work.items() if sample >= 1 or _drawn(item[1], sample)]
        for done, (kind, name, found) in enumerate(_run(work, names, jobs)):
            report(done, len(names), "")
            results[kind].append((name, found))
    kinds = tuple(_kind_result(kind, found) for kind, found in sorted(results.items()))
    return CompareReport(str(a), str(b), spec_a.scheme, spec_b.scheme, sample, kinds, faults, tuple(documents), strict)


def make_receipt(found: CompareReport) -> Receipt:
    """The comparison with a SHA-256 of every file of both sides; reads both checkpoints once."""
    files = [_digests(Path(folder)) for folder in (found.a, found.b)]
    return Receipt("k3stack", __version__, found.same, found, files[0], files[1])


def _inspected(folder: Path) -> tuple[ModelSpec, tuple[Fault, ...]]:
    source = FolderSource(folder)
    found = inspect(source, Depth.HEADERS)
    if not found.shards_found:
        raise UsageError("has no shards", where=folder, hint="Comparing needs the weights of both sides.")
    return ModelSpec.from_config(source.config()), found.faults


def _named(folder: Path, faults: tuple[Fault, ...]) -> Iterator[Fault]:
    return (Fault(fault.kind, f"{folder}: {fault.where}", fault.what, fault.count) for fault in faults)


def _documents(a: Path, b: Path, spec_b: ModelSpec, sound: bool) -> tuple[bool, list[str]]:
    """Whether B claims to be our conversion of A, and which of its documents are then not what that gives.

    The index can only be made again where B is `sound`, that is, inspection found nothing in it.
    """
    wrong = []
    try:
        made = read_report(b)
    except CheckpointError as error:
        return True, [str(error)]
    if made is None:
        return False, []
    expected = {"config.json": json_text(declare(json_value((a / "config.json").read_bytes()), spec_b))}
    if spec_b.scheme is Scheme.NVFP4_MIXED:
        expected["hf_quant_config.json"] = json_text(hf_quant_config(spec_b))
    for name, text in expected.items():
        path = b / name
        if not path.exists() or path.read_bytes() != text.encode():
            wrong.append(f"{path}: is not what converting {a} gives")
    if sound:
        wrong.extend(_index(b, made.payload_bytes))
    wrong.extend(_others(a, b))
    return True, wrong


def _index(b: Path, payload_bytes: int) -> Iterator[str]:
    weights = {name: place[0] for name, place in sorted(Store(b).places.items())}
    text = json_text({"metadata": {"total_size": payload_bytes}, "weight_map": weights})
    if (b / "model.safetensors.index.json").read_bytes() != text.encode():
        yield f"{b}/model.safetensors.index.json: is not the index of these shards"


def _others(a: Path, b: Path) -> Iterator[str]:
    for name in other_files(a):
        other = b / name
        if not other.is_file() or other.read_bytes() != (a / name).read_bytes():
            yield f"{other}: is not the file of {a}"


@dataclass(frozen=True, slots=True)
class _Work:
    """What a worker needs to compare any tensor."""

    a: str
    b: str
    spec_a: ModelSpec
    spec_b: ModelSpec

    def items(self) -> Iterator[tuple[str, str, Encoding | None, Encoding | None]]:
        """(kind, module or tensor name, encoding in A, encoding in B), matrices and plain tensors once each."""
        how_a, how_b = _encodings(self.spec_a), _encodings(self.spec_b)
        for family in families(self.spec_a.with_scheme(Scheme.BF16)):
            matrix = family.encoding is not None
            template = family.module if matrix else family.name
            encodings = (how_a[template], how_b[template]) if matrix else (None, None)
            for name in family.names():
                yield _kind(template), name.rpartition(".")[0] if matrix else name, *encodings


def _encodings(spec: ModelSpec) -> dict[str, Encoding]:
    return {family.module: family.encoding for family in families(spec) if family.encoding is not None}


def _kind(template: str) -> str:
    """What tensors of all layers and experts have in common, for example block_sparse_moe.experts.w1."""
    parts = [part for part in template.split(".") if not part.isdigit() and part != "{expert}"]
    return ".".join(part for part in parts if part not in ("language_model", "model", "layers", "blocks"))


def _drawn(name: str, sample: float) -> bool:
    return zlib.crc32(name.encode()) < sample * 2**32


Item = tuple[str, str, "Encoding | None", "Encoding | None"]


def _run(work: _Work, items: list[Item], jobs: int) -> Iterator[tuple[str, str, Comparison]]:
    if jobs <= 1 or len(items) < 256:
        _begin(work)
        yield from map(_compare_one, items)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, _begin, (work,)) as pool:
        yield from pool.map(_compare_one, items, chunksize=64)


_stores: Any = None


def _begin(work: _Work) -> None:
    global _stores
    _stores = (Store(Path(work.a)), Store(Path(work.b)))


def _compare_one(item: Item) -> tuple[str, str, Comparison]:
    kind, name, how_a, how_b = item
    a, b = _stores
    if how_a is None or how_b is None:
        return kind, name, _compare_plain(a, b, name)
    return kind, name, compare_matrix(a, b, name, how_a, how_b)


def _compare_plain(a: Store, b: Store, name: str) -> Comparison:
    if a.bytes_of(name) == b.bytes_of(name):
        return Comparison(Match.EQUAL, max(a.raw(name).size, 1))
    left, right = a.plain(name), b.plain(name)
    wrong = ~((left == right) | (np.isnan(left) & np.isnan(right)))
    with np.errstate(invalid="ignore"):
        difference = np.where(wrong, right - left, 0.0)
    count = int(wrong.sum())
    match = Match.DIFFERENT if count else Match.OTHER_CODES
    worst, error = float(np.abs(difference).max()), float(np.square(difference).sum())
    return Comparison(match, left.size, count, worst, error, float(np.square(left).sum()))


def _kind_result(kind: str, found: list[tuple[str, Comparison]]) -> KindResult:
    counts = {match: sum(result.match is match for _, result in found) for match in Match}
    order = list(Match)
    worst_name, worst = max(found, key=lambda item: (order.index(item[1].match), item[1].max_error))
    error, weight = sum(result.error for _, result in found), sum(result.weight for _, result in found)
    return KindResult(
        kind=kind,
        equal=counts[Match.EQUAL],
        converted=counts[Match.CONVERTED],
        other_codes=counts[Match.OTHER_CODES],
        different=counts[Match.DIFFERENT],
        blocks=sum(result.blocks for _, result in found),
        differing_blocks=sum(result.differing for _, result in found),
        max_error=max(result.max_error for _, result in found),
        relative_rms=float(np.sqrt(error / weight)) if weight else 0.0,
        worst=worst_name if worst.match is not Match.EQUAL else "",
        worst_note=worst.note,
    )


def _digests(folder: Path) -> tuple[FileDigest, ...]:
    found = []
    for path in sorted(folder.iterdir()):
        if path.is_file() and not path.name.startswith("."):
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            found.append(FileDigest(path.name, path.stat().st_size, digest))
    return tuple(found)
