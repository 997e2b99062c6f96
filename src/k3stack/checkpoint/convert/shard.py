"""Converting one shard: plan its output, write it at its offsets, read it back, and only then give it its name.

Memory holds one matrix at a time, whatever the shard's size. Unchanged bytes go from the page cache to the page cache;
file systems that share blocks share them where offsets allow.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from k3stack.checkpoint.convert.attention import AttentionScale, RoundingError, quantize_attention
from k3stack.checkpoint.convert.experts import Blocks, out_of_range, recode, scale_2, shared_top, sharing
from k3stack.checkpoint.convert.files import BLOCK_BYTES, copy_range, read_exactly, write_all
from k3stack.checkpoint.convert.proof import DigestKind, ReadBack
from k3stack.checkpoint.header import Entry, Header, StoredTensor, build_header, lengthen_header, read_header
from k3stack.errors import CheckpointError, FormatError
from k3stack.files import ordinary_mode, sync_folder
from k3stack.formats.arrays import Bytes
from k3stack.spec.schemes import Encoding, Scheme

__all__ = ["ShardJob", "ShardResult", "convert_shard"]

Advance = Callable[[int], None]
FLUSH_BYTES = 1 << 26


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
    digest: DigestKind = DigestKind.XXH3_128


@dataclass(slots=True)
class ShardResult:
    """What was done, and proof: the source's digest, counts, errors by kind of module."""

    shard: str
    source_digest: str = ""
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
        self.recent: dict[str, bytes] = {}
        self.input = os.open(self.path, os.O_RDONLY)
        try:
            self.header = _header_of(self.input)
            # Mapped: copying page cache into a buffer costs more than writing or comparing it.
            self.mapped = mmap.mmap(self.input, 0, access=mmap.ACCESS_READ)
        except BaseException:
            os.close(self.input)
            raise

    def run(self) -> ShardResult:
        """The whole conversion."""
        target = Path(self.job.target)
        self.output, temporary = tempfile.mkstemp(dir=target, prefix=f".{self.job.shard}.", suffix=".part")
        try:
            header = self._place(*build_header(self._entries()))
            os.ftruncate(self.output, self.result.target_bytes)
            self.read_back = ReadBack(
                self.mapped, self.path, self.output, f"{target}/{self.job.shard}", self.job.digest
            )
            try:
                self._write(header)
                self.result.source_digest = self.read_back.finish()
                os.fsync(self.output)
            finally:
                self.read_back.stop()
            os.fchmod(self.output, ordinary_mode())
            Path(temporary).replace(target / self.job.shard)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        finally:
            os.close(self.output)
            with contextlib.suppress(BufferError):  # an exception on its way holds a view: its end frees it
                self.mapped.close()
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

    # Writing, in the order of the source file; the read-back follows

    def _write(self, header: bytes) -> None:
        self.read_back.used("header", 0, self.header.payload_start)
        self._put("header", header, 0)
        with ThreadPoolExecutor(1) as thread:
            unsynced, flushing = 0, thread.submit(os.fdatasync, self.output)
            for name, tensor in self.header.tensors.items():
                self._write_tensor(name, tensor)
                size = tensor.end - tensor.begin
                self.advance(size)
                unsynced += size
                if unsynced > FLUSH_BYTES and flushing.done():  # the disk works while we do
                    flushing.result()
                    unsynced, flushing = 0, thread.submit(os.fdatasync, self.output)
            flushing.result()

    def _write_tensor(self, name: str, tensor: StoredTensor) -> None:
        module, _, suffix = name.rpartition(".")
        if self._is_expert(name):
            if suffix == "weight_packed":
                self._write_expert(module, name)
            else:
                self.read_back.used(
                    name, self._at(tensor), tensor.end - tensor.begin, zlib.crc32(self._recently_read(name))
                )
        elif module in self.job.attention and suffix == "weight":
            self._write_attention(module, name)
        else:
            self._copy(name, name)

    def _copy(self, name: str, new_name: str) -> None:
        """Copy a tensor's bytes unchanged."""
        tensor = self.header.tensors[name]
        begin, size, to = self._at(tensor), tensor.end - tensor.begin, self.offsets[new_name]
        copy_range(self.input, self.mapped, self.output, begin, to, size)
        self.read_back.copied(new_name, begin, size, to)

    def _write_expert(self, module: str, name: str) -> None:
        made = self._expert(module)
        self.result.blocks += made.blocks
        if made.packed is None:
            self._copy(name, self._weight_name(module))
        else:
            tensor = self.header.tensors[name]
            self.read_back.used(name, self._at(tensor), tensor.end - tensor.begin, made.source_checksum)
            self._put(self._weight_name(module), made.packed.tobytes())
        for suffix, data in made.small.items():
            self._put(f"{module}.{suffix}", data)

    def _write_attention(self, module: str, name: str) -> None:
        tensor = self.header.tensors[name]
        data = self._read(name)
        words = np.frombuffer(data, np.uint16).reshape(tensor.shape)
        try:
            made = quantize_attention(words, self.job.attention_scale, threads=2)
        except FormatError as error:
            raise CheckpointError(error.what, where=f"{self.path}: {name}") from error
        kind = module.rpartition(".")[2]
        self.result.rounding[kind] = self.result.rounding.get(kind, RoundingError()) + made.rounding
        self.read_back.used(name, self._at(tensor), len(data), zlib.crc32(data))
        self._put(f"{module}.weight", made.weight.tobytes())
        self._put(f"{module}.weight_scale", made.scale.tobytes())

    def _put(self, name: str, data: bytes, begin: int | None = None) -> None:
        """Write what was computed."""
        begin = self.offsets[name] if begin is None else begin
        write_all(self.output, data, begin)
        self.read_back.computed(name, begin, data)

    # One expert matrix

    def _expert(self, module: str) -> _ExpertMatrix:
        scale = self._scale_of(module)
        checksum = None
        try:
            top = shared_top(scale, *(self._scale_of(mate) for mate in sharing(module) if mate != module))
            if out_of_range(scale, top):
                name = f"{module}.weight_packed"
                data = self._read(name)
                checksum = zlib.crc32(data)
                packed = np.frombuffer(data, np.uint8).reshape(self.header.tensors[name].shape)
                made = recode(packed, scale, top)
            else:
                made = recode(None, scale, top)
        except FormatError as error:
            raise CheckpointError(error.what, where=f"{self.path}: {module}.weight_scale") from error
        second = scale_2(top)
        if self.encoding is Encoding.NVFP4_MODELOPT:
            numbers = {"weight_scale_2": second, "input_scale": np.float32(1)}
        else:  # compressed-tensors divides by its global scales
            numbers = {"weight_global_scale": np.float32(1) / second, "input_global_scale": np.float32(1)}
        small = {name: value.astype("<f4").tobytes() for name, value in numbers.items()}
        return _ExpertMatrix(made.packed, made.blocks, {"weight_scale": made.scale.tobytes(), **small}, checksum)

    def _weight_name(self, module: str) -> str:
        return f"{module}.{'weight' if self.encoding is Encoding.NVFP4_MODELOPT else 'weight_packed'}"

    def _scale_of(self, module: str) -> Bytes:
        name = f"{module}.weight_scale"
        if name in self.header.tensors:
            return np.frombuffer(self._recently_read(name), np.uint8).reshape(self.header.tensors[name].shape)
        return _read_elsewhere(Path(self.job.source) / self.job.elsewhere[name], name)

    def _recently_read(self, name: str) -> bytes:
        """Scales are needed up to three times, for their own matrix, for its mate and for the proof: read them once."""
        if name not in self.recent:
            if len(self.recent) >= 3:
                self.recent.clear()
            self.recent[name] = self._read(name)
        return self.recent[name]

    def _read(self, name: str) -> bytes:
        tensor = self.header.tensors[name]
        return read_exactly(self.input, self._at(tensor), tensor.end - tensor.begin, self.path)

    def _at(self, tensor: StoredTensor) -> int:
        return self.header.payload_start + tensor.begin


def _stored(module: str, encoding: Encoding, out: int, into: int) -> Iterator[Entry]:
    """The tensors that hold a matrix [out, into]."""
    return (Entry(f"{module}.{part.suffix}", part.dtype, part.shape) for part in encoding.parts(out, into))


@dataclass(frozen=True, slots=True)
class _ExpertMatrix:
    packed: Bytes | None
    blocks: Blocks
    small: dict[str, bytes]
    source_checksum: int | None


def _header_of(file: int) -> Header:
    return read_header(lambda begin, end: os.pread(file, end - begin, begin), os.fstat(file).st_size)


def _read_elsewhere(path: Path, name: str) -> Bytes:
    with path.open("rb") as file:
        header = _header_of(file.fileno())
        tensor = header.tensors[name]
        begin = header.payload_start + tensor.begin
        data = read_exactly(file.fileno(), begin, tensor.end - tensor.begin, path)
    return np.frombuffer(data, np.uint8).reshape(tensor.shape)
