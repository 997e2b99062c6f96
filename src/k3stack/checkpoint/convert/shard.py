"""Converting one shard: plan its output, write it at its offsets, read it back, and only then give it its name.

Memory holds one matrix at a time, whatever the shard's size. Unchanged bytes are copied inside the kernel
(copy_file_range; file systems that share blocks share them where offsets allow).
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from k3stack.checkpoint.convert.attention import AttentionScale, RoundingError, quantize_attention
from k3stack.checkpoint.convert.experts import Blocks, recode, scale_2, shared_top
from k3stack.checkpoint.convert.files import BLOCK_BYTES, copy_range, mapped, read_exactly, write_all
from k3stack.checkpoint.header import Entry, Header, StoredTensor, build_header, lengthen_header, read_header
from k3stack.errors import CheckpointError, FormatError
from k3stack.files import sync_folder
from k3stack.formats.arrays import Bytes
from k3stack.spec.schemes import Encoding, Scheme

__all__ = ["ShardJob", "ShardResult", "convert_shard"]

Advance = Callable[[int], None]
FLUSH_BYTES = 1 << 28


@dataclass(frozen=True, slots=True)
class ShardJob:
    """What to do with one shard.

    Attributes:
        source: folder of the MXFP4 checkpoint.
        target: folder that gets the new shard.
        elsewhere: shard of every expert scale that lies in another shard than this one (none in Moonshot's layout).
        attention: modules to store in block FP8.
        share: lay the output out so that the file system can share the experts' blocks with the source.
    """

    source: str
    target: str
    shard: str
    scheme: Scheme
    attention_scale: AttentionScale
    attention: frozenset[str]
    elsewhere: dict[str, str]
    share: bool = False


@dataclass(slots=True)
class ShardResult:
    """What was done, and proof: the source's digest, counts, errors by kind of module."""

    shard: str
    source_sha256: str = ""
    source_bytes: int = 0
    target_bytes: int = 0
    payload_bytes: int = 0
    matrices: int = 0
    modules: int = 0
    blocks: Blocks = field(default_factory=Blocks)
    rounding: dict[str, RoundingError] = field(default_factory=dict)
    tensors: tuple[str, ...] = ()


def convert_shard(job: ShardJob, advance: Advance = lambda count: None) -> ShardResult:
    """Convert, sync, read back, rename. Calls `advance` with source bytes as they are done.

    Raises:
        CheckpointError: the source is broken or changed meanwhile, or what was read back is not what was written.
        OSError: the disk is full, the target cannot be written, ...
    """
    return _Conversion(job, advance).run()


class _Conversion:
    """One shard on its way. Offsets are of whole files, not of payloads."""

    def __init__(self, job: ShardJob, advance: Advance) -> None:
        self.job, self.advance = job, advance
        self.path = Path(job.source) / job.shard
        self.encoding = job.scheme.expert
        self.result = ShardResult(job.shard)
        self.checksums: dict[str, int] = {}
        self.source_checksums: dict[str, int] = {}
        self.copied: list[_Copied] = []
        self.input = os.open(self.path, os.O_RDONLY)
        try:
            self.header = self._read_header(self.input, self.path)
        except BaseException:
            os.close(self.input)
            raise

    def run(self) -> ShardResult:
        """The whole conversion."""
        target = Path(self.job.target)
        output, temporary = tempfile.mkstemp(dir=target, prefix=f".{self.job.shard}.", suffix=".part")
        try:
            header = self._place(*build_header(self._entries()))
            os.ftruncate(output, self.result.target_bytes)
            with ThreadPoolExecutor(3) as threads:
                digest = threads.submit(self._digest)
                write_all(output, header, 0)
                self._write(output, threads)
                synced = threads.submit(os.fsync, output)
                self._verify(output, header, threads)
                synced.result()
                self.result.source_sha256 = digest.result()
            umask = os.umask(0)
            os.umask(umask)
            os.fchmod(output, 0o666 & ~umask)
            Path(temporary).replace(target / self.job.shard)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        finally:
            os.close(output)
            os.close(self.input)
        sync_folder(target)
        return self.result

    # What becomes of each tensor

    def _entries(self) -> Iterator[Entry]:
        for name, tensor in self.header.tensors.items():
            module, _, suffix = name.rpartition(".")
            if self._is_expert(name):
                if suffix == "weight_packed":
                    out, half = tensor.shape
                    self.result.matrices += 1
                    yield from (
                        Entry(f"{module}.{p.suffix}", p.dtype, p.shape) for p in self.encoding.parts(out, half * 2)
                    )
            elif module in self.job.attention and suffix == "weight":
                out, into = tensor.shape
                self.result.modules += 1
                yield from _stored(module, Encoding.FP8_BLOCK_MODELOPT, out, into)
            else:
                yield Entry(name, tensor.dtype, tensor.shape)

    @staticmethod
    def _is_expert(name: str) -> bool:
        return ".block_sparse_moe.experts." in name

    def _place(self, header: bytes, ordered: list[Entry]) -> bytes:
        """Decide where each tensor goes; returns the header, longer if that lets experts share their blocks."""
        self.offsets: dict[str, int] = {}
        if self.job.share:
            header = lengthen_header(header, self._sharing_shift(len(header), ordered))
        offset = len(header)
        for entry in ordered:
            self.offsets[entry.name] = offset
            offset += entry.size_bytes
        self.result.target_bytes = offset
        self.result.payload_bytes = offset - len(header)
        self.result.source_bytes = self.header.payload_start + self.header.payload_bytes
        self.result.tensors = tuple(entry.name for entry in ordered)
        return header

    def _sharing_shift(self, begin: int, ordered: list[Entry]) -> int:
        """How far to move the payload so that the first expert's codes lie in their blocks as in the source."""
        packed = next((name for name in self.header.tensors if name.endswith(".weight_packed")), None)
        if packed is None:
            return 0
        wanted = self._weight_name(packed.rpartition(".")[0])
        for entry in ordered:
            if entry.name == wanted:
                shift = (self._at(self.header.tensors[packed]) - begin) % BLOCK_BYTES
                return 0 if shift % 8 else shift
            begin += entry.size_bytes
        return 0

    # Writing

    def _write(self, output: int, threads: ThreadPoolExecutor) -> None:
        unsynced, flushing = 0, threads.submit(os.fdatasync, output)
        for name, tensor in self.header.tensors.items():
            module, _, suffix = name.rpartition(".")
            size = tensor.end - tensor.begin
            if self._is_expert(name):
                if suffix == "weight_packed":
                    self._write_expert(output, module, tensor)
            elif module in self.job.attention and suffix == "weight":
                self._write_attention(output, module, tensor)
            else:
                self._copy(output, tensor, name)
            self.advance(size)
            unsynced += size
            if unsynced > FLUSH_BYTES and flushing.done():  # the disk works while we do
                flushing.result()
                unsynced, flushing = 0, threads.submit(os.fdatasync, output)
        flushing.result()

    def _copy(self, output: int, tensor: StoredTensor, name: str) -> None:
        """Copy a tensor's bytes unchanged to where `name` goes, and remember to compare them."""
        copied = _Copied(name, self._at(tensor), self.offsets[name], tensor.end - tensor.begin)
        copy_range(self.input, output, copied.source_at, copied.target_at, copied.size)
        self.copied.append(copied)

    def _write_expert(self, output: int, module: str, tensor: StoredTensor) -> None:
        made = self._expert(module)
        self.result.blocks += made.blocks
        weight = self._weight_name(module)
        if made.packed is None:
            self._copy(output, tensor, weight)
        else:
            self._put(output, weight, made.packed.tobytes())
        for name, data in made.small.items():
            self._put(output, f"{module}.{name}", data)

    def _write_attention(self, output: int, module: str, tensor: StoredTensor) -> None:
        words = np.frombuffer(self._read(f"{module}.weight"), np.uint16).reshape(tensor.shape)
        try:
            made = quantize_attention(words, self.job.attention_scale, threads=2)
        except FormatError as error:
            raise CheckpointError(error.what, where=f"{self.path}: {module}.weight") from error
        kind = module.rpartition(".")[2]
        self.result.rounding[kind] = self.result.rounding.get(kind, RoundingError()) + made.rounding
        self._put(output, f"{module}.weight", made.weight.tobytes())
        self._put(output, f"{module}.weight_scale", made.scale.tobytes())

    def _put(self, output: int, name: str, data: bytes) -> None:
        """Write what was computed, and remember its checksum for reading back."""
        write_all(output, data, self.offsets[name])
        self.checksums[name] = zlib.crc32(data)

    # One expert matrix

    def _expert(self, module: str) -> _ExpertMatrix:
        packed, scale = self._tensor(f"{module}.weight_packed"), self._scale_of(module)
        stem, _, last = module.rpartition(".")
        mates = [f"{stem}.{other}" for other in ("w1", "w3")] if last in ("w1", "w3") else [module]
        try:
            top = shared_top(scale, *(self._scale_of(mate) for mate in mates if mate != module))
            made = recode(packed, scale, top)
        except FormatError as error:
            raise CheckpointError(error.what, where=f"{self.path}: {module}.weight_scale") from error
        second = scale_2(top)
        if self.encoding is Encoding.NVFP4_MODELOPT:
            numbers = {"weight_scale_2": second, "input_scale": np.float32(1)}
        else:  # compressed-tensors divides by its global scales
            numbers = {"weight_global_scale": np.float32(1) / second, "input_global_scale": np.float32(1)}
        small = {name: value.astype("<f4").tobytes() for name, value in numbers.items()}
        return _ExpertMatrix(made.packed, made.blocks, {"weight_scale": made.scale.tobytes(), **small})

    def _weight_name(self, module: str) -> str:
        return f"{module}.{'weight' if self.encoding is Encoding.NVFP4_MODELOPT else 'weight_packed'}"

    def _tensor(self, name: str) -> Bytes:
        """A byte tensor of this shard, mapped rather than read: codes are looked at only where blocks move."""
        tensor = self.header.tensors[name]
        return np.memmap(self.path, np.uint8, "r", self._at(tensor), tensor.shape)

    def _scale_of(self, module: str) -> Bytes:
        name = f"{module}.weight_scale"
        if name in self.header.tensors:
            return np.frombuffer(self._read(name), np.uint8).reshape(self.header.tensors[name].shape)
        return _read_elsewhere(Path(self.job.source) / self.job.elsewhere[name], name)

    def _read(self, name: str) -> bytes:
        """The bytes of a source tensor that is computed with; they must be the same when all is read again."""
        tensor = self.header.tensors[name]
        data = read_exactly(self.input, self._at(tensor), tensor.end - tensor.begin, self.path)
        checksum = zlib.crc32(data)
        if self.source_checksums.setdefault(name, checksum) != checksum:
            raise self._not_what_was_written(name)
        return data

    # Proof

    def _digest(self) -> str:
        """SHA-256 of the source shard, as hubs publish it; read sequentially beside the writing."""
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def _verify(self, output: int, header: bytes, threads: ThreadPoolExecutor) -> None:
        """Read back everything: copied bytes against the source, computed ones against their checksums."""
        if read_exactly(output, 0, len(header), self.path) != header:
            raise self._not_what_was_written("header")
        with mapped(self.input) as source, mapped(output) as target:

            def same(copied: _Copied) -> bool:
                left = source[copied.source_at : copied.source_at + copied.size]
                return np.array_equal(left, target[copied.target_at : copied.target_at + copied.size])

            for copied, is_same in zip(self.copied, threads.map(same, self.copied), strict=True):
                if not is_same:
                    raise self._not_what_was_written(copied.name)
        for name in self.source_checksums:
            self._read(name)
        places = sorted(self.offsets.values())
        ends = dict(zip(places, [*places[1:], self.result.target_bytes], strict=True))
        for name, checksum in self.checksums.items():
            begin = self.offsets[name]
            if zlib.crc32(read_exactly(output, begin, ends[begin] - begin, self.path)) != checksum:
                raise self._not_what_was_written(name)

    def _not_what_was_written(self, name: str) -> CheckpointError:
        return CheckpointError(
            "read back differs from what was to be written: the source changed meanwhile, or disk or memory is faulty",
            where=f"{self.job.target}/{self.job.shard}: {name}",
            hint="Run the same command again; it resumes. If it happens again, test the machine.",
        )

    def _at(self, tensor: StoredTensor) -> int:
        return self.header.payload_start + tensor.begin

    @staticmethod
    def _read_header(file: int, path: Path) -> Header:
        return read_header(lambda begin, end: os.pread(file, end - begin, begin), os.fstat(file).st_size)


def _stored(module: str, encoding: Encoding, out: int, into: int) -> Iterator[Entry]:
    """The tensors that hold a matrix [out, into]."""
    return (Entry(f"{module}.{part.suffix}", part.dtype, part.shape) for part in encoding.parts(out, into))


@dataclass(frozen=True, slots=True)
class _Copied:
    """Bytes that were copied unchanged."""

    name: str
    source_at: int
    target_at: int
    size: int


@dataclass(frozen=True, slots=True)
class _ExpertMatrix:
    packed: Bytes | None
    blocks: Blocks
    small: dict[str, bytes]


def _read_elsewhere(path: Path, name: str) -> Bytes:
    with path.open("rb") as file:
        header = read_header(lambda begin, end: os.pread(file.fileno(), end - begin, begin), path.stat().st_size)
        tensor = header.tensors[name]
        begin = header.payload_start + tensor.begin
        data = read_exactly(file.fileno(), begin, tensor.end - tensor.begin, path)
    return np.frombuffer(data, np.uint8).reshape(tensor.shape)
