"""The last step of a conversion: index, config.json, hf_quant_config.json, the other files, the report."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k3stack.checkpoint.convert.attention import AttentionScale, RoundingError
from k3stack.checkpoint.convert.experts import Blocks
from k3stack.checkpoint.convert.journal import Identity
from k3stack.checkpoint.convert.proof import DigestKind
from k3stack.checkpoint.convert.shard import ShardResult
from k3stack.checkpoint.write import write_index, write_json
from k3stack.errors import CheckpointError
from k3stack.files import atomic_write, json_value
from k3stack.spec.declare import declare, hf_quant_config
from k3stack.spec.model import ModelSpec
from k3stack.spec.schemes import Scheme
from k3stack.values import dump, load

__all__ = [
    "REPORT",
    "ConversionReport",
    "KindError",
    "SourceShard",
    "finish",
    "other_files",
    "read_report",
    "report_digest",
]

REPORT = "conversion_report.json"
MADE = {"config.json", "model.safetensors.index.json", "hf_quant_config.json", REPORT}


@dataclass(frozen=True, slots=True)
class KindError:
    """FP8 rounding of one kind of attention module over all layers (measured while converting)."""

    kind: str
    relative_rms: float


@dataclass(frozen=True, slots=True)
class SourceShard:
    """A source shard and its digest, by the report's `digest_kind`."""

    name: str
    size_bytes: int
    digest: str


@dataclass(frozen=True, slots=True)
class ConversionReport:
    """What was converted, with counts that can be checked and digests of the source.

    Attributes:
        matrices: expert matrices; modules: attention projections stored in FP8.
        blocks: MXFP4 blocks; of these `moved_blocks` were out of range, and `lossless_blocks` kept every value.
        report_sha256: digest of this report without this field.
    """

    tool: str
    version: str
    source_identity: str
    scheme: Scheme
    attention_scale: AttentionScale | None
    matrices: int
    modules: int
    blocks: int
    moved_blocks: int
    lossless_blocks: int
    payload_bytes: int
    file_bytes: int
    attention_error: tuple[KindError, ...]
    source: tuple[SourceShard, ...]
    digest_kind: DigestKind
    report_sha256: str = ""


def finish(
    source: Path, target: Path, spec: ModelSpec, identity: Identity, results: list[ShardResult]
) -> ConversionReport:
    """Write everything besides the shards; the report comes last, so its presence means the folder is complete."""
    weight_map = {name: result.shard for result in results for name in result.tensors}
    payload = sum(result.payload_bytes for result in results)
    write_index(target, weight_map, payload)
    config = json_value((source / "config.json").read_bytes())
    write_json(target / "config.json", declare(config, spec))
    if spec.scheme is Scheme.NVFP4_MIXED:
        write_json(target / "hf_quant_config.json", hf_quant_config(spec))
    _bring_others(source, target)
    report = _report(spec, identity, results, payload)
    write_json(target / REPORT, dump(report))
    return report


def _report(spec: ModelSpec, identity: Identity, results: list[ShardResult], payload: int) -> ConversionReport:
    blocks, rounding = Blocks(), dict[str, RoundingError]()
    for result in results:
        blocks += result.blocks
        for kind, sums in result.rounding.items():
            rounding[kind] = rounding.get(kind, RoundingError()) + sums
    mixed = spec.scheme is Scheme.NVFP4_MIXED
    report = ConversionReport(
        tool="k3stack",
        version=identity.version,
        source_identity=identity.source,
        scheme=spec.scheme,
        attention_scale=identity.attention_scale if mixed else None,
        matrices=sum(result.matrices for result in results),
        modules=sum(result.modules for result in results),
        blocks=blocks.total,
        moved_blocks=blocks.moved,
        lossless_blocks=blocks.lossless,
        payload_bytes=payload,
        file_bytes=sum(result.target_bytes for result in results),
        attention_error=tuple(KindError(kind, sums.relative_rms) for kind, sums in sorted(rounding.items())),
        source=tuple(SourceShard(result.shard, result.source_bytes, result.source_digest) for result in results),
        digest_kind=identity.digest_kind,
    )
    data = dump(report) | {"report_sha256": report_digest(dump(report))}
    return load(ConversionReport, data)


def report_digest(data: dict[str, Any]) -> str:
    """SHA-256 of a report's JSON without its own digest, keys sorted, no spaces."""
    rest = {key: value for key, value in data.items() if key != "report_sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def read_report(target: Path) -> ConversionReport | None:
    """The report of a finished conversion, or None.

    Raises:
        CheckpointError: it is damaged.
    """
    path = target / REPORT
    if not path.exists():
        return None
    try:
        data = json_value(path.read_bytes())
        if report_digest(data) != data["report_sha256"]:
            raise CheckpointError("does not match its own digest", where=path)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError("is damaged", where=path, hint="Convert again into another folder.") from error
    return load(ConversionReport, data)


def other_files(folder: Path) -> Iterator[Path]:
    """The files of a checkpoint, relative to it, that a conversion takes over unchanged."""
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        hidden = any(part.startswith(".") for part in name.parts)
        if not hidden and path.is_file() and path.suffix != ".safetensors" and str(name) not in MADE:
            yield name


def _bring_others(source: Path, target: Path) -> None:
    """Copy what is no weight: tokenizer, processor, code and licence files, also in sub-folders.

    No links: whoever edits a file of the new checkpoint does not mean the old one.
    """
    for name in other_files(source):
        there = target / name
        there.parent.mkdir(parents=True, exist_ok=True)
        with (source / name).open("rb") as old, atomic_write(there) as new:
            shutil.copyfileobj(old, new)
