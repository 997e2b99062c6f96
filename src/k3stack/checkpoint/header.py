"""The header of a safetensors file: read without trusting it, written in the order in which the release was written.

8 bytes   header length n, little endian
n bytes   JSON: {"name": {"dtype": "BF16", "shape": [..], "data_offsets": [begin, end]}, ...}, padded with spaces
payload   offsets count from its first byte; tensors lie without gaps, widest dtype first, then by name
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any, NamedTuple

from k3stack.checkpoint.faults import FaultKind, ShardError
from k3stack.files import json_value
from k3stack.spec.dtypes import DType

__all__ = ["MAX_HEADER_BYTES", "Entry", "Header", "StoredTensor", "build_header", "lengthen_header", "read_header"]

MAX_HEADER_BYTES = 100_000_000
"""The largest header that the safetensors library reads (safetensors 0.8.0, MAX_HEADER_SIZE)."""


class StoredTensor(NamedTuple):
    """One tensor of a file; `begin` and `end` count from the start of the payload."""

    dtype: DType
    shape: tuple[int, ...]
    begin: int
    end: int


class Header(NamedTuple):
    """A checked header: `tensors` in file order, the payload starts at byte `payload_start`."""

    tensors: dict[str, StoredTensor]
    payload_start: int
    payload_bytes: int


class Entry(NamedTuple):
    """A tensor to be written."""

    name: str
    dtype: DType
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of the payload."""
        return prod(self.shape) * self.dtype.size_bytes


def build_header(entries: Iterable[Entry]) -> tuple[bytes, list[Entry]]:
    """The first bytes of a file that holds `entries`, and the entries in the order of their payload.

    `lengthen_header` may make them longer, so that the payload begins at another place.
    """
    ordered = sorted(entries, key=lambda entry: (entry.dtype.rank, entry.name))
    listing, offset = {}, 0
    for entry in ordered:
        end = offset + entry.size_bytes
        listing[entry.name] = {"dtype": entry.dtype.value, "shape": entry.shape, "data_offsets": (offset, end)}
        offset = end
    text = json.dumps(listing, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, ordered


def lengthen_header(header: bytes, more: int) -> bytes:
    """The same header with `more` spaces of padding, a multiple of 8."""
    return (len(header) - 8 + more).to_bytes(8, "little") + header[8:] + b" " * more


def read_header(read: Callable[[int, int], bytes], file_bytes: int) -> Header:
    """Read and check a header.

    Args:
        read: gives the bytes [begin, end) of the file.
        file_bytes: size of the file.

    Raises:
        ShardError: the file is no complete safetensors file; says exactly in which way.
    """
    if file_bytes < 8:
        raise ShardError(FaultKind.TRUNCATED, f"has {file_bytes} bytes, too few for a safetensors file")
    length = int.from_bytes(read(0, 8), "little")
    if length > MAX_HEADER_BYTES:
        raise ShardError(
            FaultKind.HEADER_TOO_LARGE, f"says its header has {length:,} bytes; the format allows {MAX_HEADER_BYTES:,}"
        )
    listing = _parse(read, length, file_bytes)
    tensors = _tensors(listing)
    payload = _check_offsets(tensors)
    _check_size(read, length, payload, file_bytes)
    return Header(tensors, 8 + length, payload)


def _parse(read: Callable[[int, int], bytes], length: int, file_bytes: int) -> dict[str, Any]:
    available = min(length, file_bytes - 8)
    raw = read(8, 8 + available)
    try:
        if available == length:
            listing = json_value(raw, object_pairs_hook=_no_duplicates)
            if isinstance(listing, dict):
                return listing
    except ValueError:
        pass
    if not raw.lstrip().startswith(b"{") or not _looks_like_header(raw):
        raise ShardError(FaultKind.NOT_JSON, "has a header that is not JSON")
    end = _json_end(read, file_bytes)
    if end is not None:
        raise _wrong_length(length, f"its JSON ends at {end:,}")
    if available < length:
        raise ShardError(FaultKind.TRUNCATED, f"has {file_bytes:,} bytes, and its header alone needs {8 + length:,}")
    raise ShardError(FaultKind.NOT_JSON, "has a header that is not JSON")


def _wrong_length(length: int, truth: str) -> ShardError:
    return ShardError(FaultKind.HEADER_LENGTH, f"says its header has {length:,} bytes, but {truth}")


def _looks_like_header(raw: bytes) -> bool:
    return raw.lstrip()[1:].lstrip().startswith((b'"', b"}"))


def _no_duplicates(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        name = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ShardError(FaultKind.DUPLICATE, "names it twice in one header", name)
    return found


def _json_end(read: Callable[[int, int], bytes], file_bytes: int) -> int | None:
    """Where the header's JSON really ends, counted from byte 8, or None when there is none."""
    text = read(8, min(file_bytes, 8 + MAX_HEADER_BYTES)).decode("latin-1")  # one character a byte
    try:
        return json.JSONDecoder().raw_decode(text)[1]
    except ValueError:
        return None


def _tensors(listing: dict[str, Any]) -> dict[str, StoredTensor]:
    tensors = {}
    for name, entry in listing.items():
        if name == "__metadata__":
            continue
        try:
            dtype, shape, (begin, end) = DType(entry["dtype"]), tuple(entry["shape"]), entry["data_offsets"]
            numbers = (*shape, begin, end)
            if not all(type(number) is int and 0 <= number < 2**63 for number in numbers):
                raise ValueError
        except (ValueError, KeyError, TypeError) as error:
            raise ShardError(FaultKind.BAD_ENTRY, f"describes it as {str(entry)[:120]}", name) from error
        if end - begin != prod(shape) * dtype.size_bytes:
            raise ShardError(
                FaultKind.BAD_ENTRY, f"gives it {end - begin:,} bytes for {dtype.value} {list(shape)}", name
            )
        tensors[name] = StoredTensor(dtype, shape, begin, end)
    return dict(sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)))


def _check_offsets(tensors: dict[str, StoredTensor]) -> int:
    offset = 0
    for name, tensor in tensors.items():
        if tensor.begin != offset:
            kind = "overlaps the tensor before it" if tensor.begin < offset else "leaves a gap before it"
            raise ShardError(FaultKind.BAD_ENTRY, f"{kind}: begins at {tensor.begin:,}, expected {offset:,}", name)
        offset = tensor.end
    return offset


def _check_size(read: Callable[[int, int], bytes], length: int, payload: int, file_bytes: int) -> None:
    expected = 8 + length + payload
    if file_bytes < expected:
        raise ShardError(
            FaultKind.TRUNCATED, f"has {file_bytes:,} bytes, its header promises {expected:,}: download it again"
        )
    extra = file_bytes - expected
    if extra:
        if extra < 8 and read(8 + length, 8 + length + extra) == b" " * extra:
            raise _wrong_length(length, f"its padding ends at {length + extra:,}")
        raise ShardError(FaultKind.TRAILING, f"has {extra:,} bytes more than its header accounts for")
