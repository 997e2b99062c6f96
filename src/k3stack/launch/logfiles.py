"""Logs from files: packed or plain, of any length, one or a folder of them."""

from __future__ import annotations

import bz2
import gzip
import lzma
import sys
import zlib
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO, cast

from k3stack.errors import InputError, next_step
from k3stack.launch.logtext import left_out
from k3stack.launch.recognise import MAX_TEXT

__all__ = ["logs_in", "read_stdin", "read_text"]

_CHUNK = 4 * 2**20

_PACKED = (
    (b"\x1f\x8b", lambda file: gzip.GzipFile(fileobj=file)),
    (b"BZh", bz2.BZ2File),
    (b"\xfd7zXZ\x00", lzma.LZMAFile),
)

_SAMPLE = 2**16

_ZSTD = b"\x28\xb5\x2f\xfd"

_MARKS = (
    b"Error: ",
    b" ERROR ",
    b"NCCL WARN",
    b"startup complete",
    b"ready to roll",
    b": Xid",
    b"error: ",
    b"fault by",
)
"""What may be worth reading in the middle of a log that is too long to be read whole."""

_BEFORE, _AFTER = 16 * 2**10, 16 * 2**10

_LOG_NAMES = ("*.log", "*.log.*", "*.out", "*.err", "*.txt", "*.jsonl", "stdout*", "stderr*")

_MOST_LOGS = 1024


def read_text(path: Path) -> str:
    """A log; where it is very long its beginning, its end, and what looks like errors between them.

    gzip, bzip2 and xz are read as they are.

    Raises:
        InputError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            return read_stream(file, path)
    except OSError as error:
        what = error.strerror or str(error)
        raise InputError(f"cannot be read: {what}", where=path, hint=next_step(error)) from error


def read_stdin() -> str:
    """The log that comes in at standard input."""
    return read_stream(cast(BufferedReader, sys.stdin.buffer), "-")


def read_stream(packed: BufferedReader, where: Path | str) -> str:
    """The same from an open file or a pipe.

    Raises:
        InputError: it is no text, or packed, and damaged or in a way that cannot be read here.
    """
    try:
        file = _unpacked(packed, where)
        head = file.read(MAX_TEXT)
        _be_text(_decoded(head[:_SAMPLE]), where)
        if len(head) < MAX_TEXT:
            return _decoded(head)
        cut = head.rfind(b"\n", 0, MAX_TEXT // 2) + 1 or MAX_TEXT // 2
        return _decoded(head[:cut] + b"".join(_middle_and_end(file, head[cut:])))
    except (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
        hint = "Copy it again, or unpack what is there."
        raise InputError("is packed and not whole", where=where, hint=hint) from error


def _be_text(begins: str, where: Path | str) -> None:
    """Refuse what is no text: nothing would be found in it, and that is no good news.

    Raises:
        InputError: a tenth of it are no characters.
    """
    strange = sum(char == "\ufffd" or (char < " " and char not in "\b\t\n\f\r\x1b") for char in begins)
    if strange * 10 > len(begins):
        raise InputError("is no text", where=where, hint="Give a log as the engine or its container wrote it.")


def _unpacked(file: BufferedReader, where: Path | str) -> BinaryIO:
    begins = file.peek(6)
    if begins.startswith(_ZSTD):
        raise InputError("is packed with zstd", where=where, hint="Unpack it: zstdcat LOG | k3 doctor -")
    for magic, opener in _PACKED:
        if begins.startswith(magic):
            return cast(BinaryIO, opener(file))
    return file


def _middle_and_end(file: BinaryIO, held: bytes) -> Iterator[bytes]:
    """What is worth reading of the middle, with a line for what is left out, and the end."""
    room, keep, skipped = MAX_TEXT // 5, MAX_TEXT // 5, 0
    more = True
    while more:
        chunk = file.read(_CHUNK)
        more, held = bool(chunk), held + chunk
        cut = held.rfind(b"\n", 0, max(0, len(held) - keep)) + 1
        for piece, lines in _worth_reading(held[:cut], room):
            skipped += lines
            if piece:
                yield _mark(skipped) + piece
                room, skipped = room - len(piece), 0
        held = held[cut:]
    yield _mark(skipped) + held


def _mark(skipped: int) -> bytes:
    return f"{left_out(skipped)}\n".encode() if skipped else b""


def _worth_reading(block: bytes, room: int) -> Iterator[tuple[bytes, int]]:
    """Whole lines around each mark, with the number of lines left out before them; last that of the lines after."""
    at = 0
    for begin, end in _windows(block):
        if room <= 0:
            break
        begin = max(at, block.rfind(b"\n", 0, begin) + 1)
        end = block.find(b"\n", end) + 1 or len(block)
        if end <= at:
            continue
        yield block[begin:end], block.count(b"\n", at, begin)
        room -= end - begin
        at = end
    yield b"", block.count(b"\n", at)


def _windows(block: bytes) -> list[tuple[int, int]]:
    places = set()
    for mark in _MARKS:
        at = block.find(mark)
        while at >= 0:
            places.add(at)
            at = block.find(mark, at + _AFTER)
    return [(max(0, at - _BEFORE), min(len(block), at + _AFTER)) for at in sorted(places)]


def _decoded(read: bytes) -> str:
    if read.startswith((b"\xff\xfe", b"\xfe\xff")):
        return read.decode("utf-16", errors="replace")
    text = read.decode("utf-8-sig" if read.startswith(b"\xef\xbb\xbf") else "utf-8", errors="replace")
    return text.replace("\0", "")  # a log that was rotated while it was written begins with them


def logs_in(folder: Path) -> list[Path]:
    """The logs of a folder that is no checkpoint: one of each rank, node or pod.

    Raises:
        InputError: there are more than can be read.
    """
    if any((folder / name).exists() for name in ("config.json", "snapshots")) or any(folder.rglob("*.safetensors")):
        return []
    found = sorted(
        {path for name in _LOG_NAMES for path in folder.rglob(name) if path.is_file() and path.stat().st_size}
    )
    if len(found) > _MOST_LOGS:
        raise InputError(f"holds {len(found):,} logs", where=folder, hint="Name a folder with the logs of one start.")
    return found
