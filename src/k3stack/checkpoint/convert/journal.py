"""The journal of a conversion: what is being made of what, and which shards are done.

It lies in the target folder as `.k3-convert/`: job.json, and one small file per finished shard, each written
atomically. So several machines can work on one folder, nothing is rewritten as the number of shards grows, and a
conversion that was killed goes on where it stopped. It is removed when the last step has written index, config.json
and report.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from k3stack.checkpoint.convert.attention import AttentionScale, RoundingError
from k3stack.checkpoint.convert.experts import Blocks
from k3stack.checkpoint.convert.proof import DigestKind
from k3stack.checkpoint.convert.shard import ShardResult
from k3stack.checkpoint.header import MAX_HEADER_BYTES
from k3stack.checkpoint.write import write_json
from k3stack.errors import CheckpointError
from k3stack.files import json_value
from k3stack.spec.schemes import Scheme

__all__ = ["JOURNAL", "Identity", "Journal", "digest_source"]

JOURNAL = ".k3-convert"


@dataclass(frozen=True, slots=True)
class Identity:
    """What a conversion is of and what for; two runs may continue each other only if this is equal.

    `source` digests config.json, the index and every shard's size and header: any other checkpoint differs in it.
    """

    source: str
    scheme: Scheme
    attention_scale: AttentionScale
    digest_kind: DigestKind
    version: str


def digest_source(folder: Path, shards: list[str]) -> str:
    """A digest that any other checkpoint differs in; reads documents and headers only."""
    digest = hashlib.sha256()
    for name in ("config.json", "model.safetensors.index.json"):
        path = folder / name
        digest.update(hashlib.sha256(path.read_bytes() if path.exists() else b"").digest())
    for shard in sorted(shards):
        with (folder / shard).open("rb") as file:
            prefix = file.read(8)
            header = file.read(min(int.from_bytes(prefix, "little"), MAX_HEADER_BYTES))
            size = os.fstat(file.fileno()).st_size
        digest.update(f"{shard} {size} ".encode() + hashlib.sha256(prefix + header).digest())
    return digest.hexdigest()


class Journal:
    """The journal in a target folder."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.folder = target / JOURNAL

    @property
    def exists(self) -> bool:
        """Whether a conversion was begun here and not finished."""
        return (self.folder / "job.json").exists()

    def open(self, identity: Identity) -> None:
        """Begin a conversion, or continue it.

        Raises:
            CheckpointError: another conversion was begun here.
        """
        if not self.exists:
            self.folder.mkdir(exist_ok=True)
            write_json(self.folder / "job.json", asdict(identity))
            return
        begun = self._read(self.folder / "job.json")
        wanted = json.loads(json.dumps(asdict(identity)))
        for field, value in wanted.items():
            if begun.get(field) != value:
                raise CheckpointError(
                    f"holds a conversion with {_NAMES[field]} {begun.get(field)!r}, not {value!r}",
                    where=self.target,
                    hint="Finish that one with the same source and options, or choose another folder.",
                )

    def done(self, source: Path, shard: str) -> ShardResult | None:
        """The record of a finished shard, if its file is still the one that was written.

        Raises:
            CheckpointError: its file is gone or has another size, or the source's has.
        """
        path = self._path(shard)
        if not path.exists():
            return None
        record = self._read(path)
        result = _result(record)
        written = self.target / shard
        if not written.exists() or written.stat().st_size != result.target_bytes:
            return None  # somebody removed or damaged it: make it again
        if (source / shard).stat().st_size != result.source_bytes:
            raise CheckpointError(
                "changed since it was converted", where=source / shard, hint="Start a new conversion."
            )
        return result

    def record(self, result: ShardResult) -> None:
        """Note that a shard is done; after its file has its final name."""
        write_json(self._path(result.shard), asdict(result))

    def close(self) -> None:
        """Remove the journal."""
        shutil.rmtree(self.folder)

    def _path(self, shard: str) -> Path:
        return self.folder / f"{shard}.json"

    @staticmethod
    def _read(path: Path) -> dict[str, Any]:
        try:
            data = json_value(path.read_bytes())
        except ValueError as error:
            raise CheckpointError(
                "is damaged", where=path, hint="Remove it; its shard is then converted again."
            ) from error
        if not isinstance(data, dict):
            raise CheckpointError("is damaged", where=path, hint="Remove it; its shard is then converted again.")
        return data


_NAMES = {
    "source": "source",
    "scheme": "scheme",
    "attention_scale": "attention scale",
    "digest_kind": "digest",
    "version": "k3stack version",
}


def _result(record: dict[str, Any]) -> ShardResult:
    record = dict(record)
    blocks = Blocks(**record.pop("blocks"))
    rounding = {kind: RoundingError(**sums) for kind, sums in record.pop("rounding").items()}
    return ShardResult(**{**record, "tensors": tuple(record["tensors"])}, blocks=blocks, rounding=rounding)
