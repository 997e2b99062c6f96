"""Byte ranges of open files: copied the fastest way, read whole, written whole."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import struct
import tempfile
from pathlib import Path

from k3stack.errors import CheckpointError

__all__ = ["BLOCK_BYTES", "copy_range", "read_exactly", "shares_blocks", "write_all"]

WRITE_BYTES = 1 << 20
"""One write: larger ones were slower (they leave the processor's cache), smaller ones too (measured)."""

_NO_KERNEL_COPY = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF, errno.EPERM}


BLOCK_BYTES = 4096
"""The unit in which file systems share blocks between files."""

_FICLONERANGE = 0x4020940D  # linux/fs.h


def shares_blocks(source: Path, target: Path) -> bool:
    """Whether files in `target` can share blocks with the file `source` (XFS, Btrfs, ...): tried on one block."""
    if source.stat().st_size < BLOCK_BYTES or not target.is_dir():
        return False
    with source.open("rb") as file, tempfile.TemporaryFile(dir=target) as trial:
        try:
            fcntl.ioctl(trial, _FICLONERANGE, struct.pack("qQQQ", file.fileno(), 0, BLOCK_BYTES, 0))
        except OSError:
            return False
    return True


def copy_range(source: int, mapped: mmap.mmap, target: int, source_at: int, target_at: int, count: int) -> None:
    """Copy `count` bytes from one file to another at given places; `mapped` is the source's mapping.

    Where both places lie alike within their blocks, whole blocks are copied inside the kernel, so that a file system
    that can share them does. Elsewhere the kernel would copy in pieces of a page each, at three quarters of the speed:
    there the mapping is written.

    Raises:
        OSError: the disk is full or fails; the source is shorter than it was.
    """
    head = -source_at % BLOCK_BYTES
    done = 0
    if (source_at - target_at) % BLOCK_BYTES == 0 and count >= head + BLOCK_BYTES:
        _write_mapped(mapped, target, source_at, target_at, head)
        middle = (count - head) // BLOCK_BYTES * BLOCK_BYTES
        done = head + _copy_blocks(source, target, source_at + head, target_at + head, middle)
    _write_mapped(mapped, target, source_at + done, target_at + done, count - done)


def _copy_blocks(source: int, target: int, source_at: int, target_at: int, count: int) -> int:
    """Copy inside the kernel; how many bytes that went for."""
    done = 0
    while done < count:
        try:
            copied = os.copy_file_range(source, target, count - done, source_at + done, target_at + done)
        except OSError as error:
            if error.errno not in _NO_KERNEL_COPY:
                raise
            break
        if copied == 0:  # another kind of file system, or the end of the file: the plain way tells which
            break
        done += copied
    return done


def _write_mapped(mapped: mmap.mmap, target: int, source_at: int, target_at: int, count: int) -> None:
    with memoryview(mapped) as whole:
        if source_at + count > len(whole):
            raise OSError(errno.EIO, "the source became shorter while it was read")
        for done in range(0, count, WRITE_BYTES):
            begin, size = source_at + done, min(WRITE_BYTES, count - done)
            with whole[begin : begin + size] as piece:
                try:
                    write_all(target, piece, target_at + done)
                except OSError as error:
                    if error.errno != errno.EFAULT:
                        raise
                    raise OSError(errno.EIO, "the source became shorter while it was read") from None


def read_exactly(file: int, begin: int, count: int, path: Path) -> bytes:
    """`count` bytes from `begin`.

    Raises:
        CheckpointError: the file ends before; `path` names it.
    """
    data = os.pread(file, count, begin)
    while len(data) < count:  # one call gives at most 2 GiB
        more = os.pread(file, count - len(data), begin + len(data))
        if not more:
            raise CheckpointError("ended while it was read", where=path, hint="Did another program change it?")
        data += more
    return data


def write_all(file: int, data: bytes | memoryview, begin: int) -> None:
    """Write all of `data` at `begin`."""
    view = memoryview(data)
    while view:
        written = os.pwrite(file, view, begin)
        view, begin = view[written:], begin + written
