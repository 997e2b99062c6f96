"""Byte ranges of open files: copied inside the kernel where it can, read whole, written whole, compared."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import tempfile
from pathlib import Path

from k3stack.errors import CheckpointError

__all__ = ["BLOCK_BYTES", "copy_range", "read_exactly", "shares_blocks", "write_all"]

CHUNK_BYTES = 1 << 23
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


def copy_range(source: int, target: int, source_at: int, target_at: int, count: int) -> None:
    """Copy `count` bytes from one file to another at given places.

    Where both places lie alike within their blocks, whole blocks are copied by themselves, so that a file system that
    can share them does.

    Raises:
        OSError: the disk is full or fails; the source is shorter than it was.
    """
    head = -source_at % BLOCK_BYTES
    if (source_at - target_at) % BLOCK_BYTES == 0 and count >= head + BLOCK_BYTES:
        middle = (count - head) // BLOCK_BYTES * BLOCK_BYTES
        _copy(source, target, source_at, target_at, head)
        _copy(source, target, source_at + head, target_at + head, middle)
        begin = head + middle
        _copy(source, target, source_at + begin, target_at + begin, count - begin)
    else:
        _copy(source, target, source_at, target_at, count)


def _copy(source: int, target: int, source_at: int, target_at: int, count: int) -> None:
    done = 0
    while done < count:
        try:
            copied = os.copy_file_range(source, target, count - done, source_at + done, target_at + done)
        except OSError as error:
            if error.errno not in _NO_KERNEL_COPY:
                raise
            copied = 0
        if copied == 0:  # another kind of file system, or the end of the file: the plain way tells which
            data = os.pread(source, min(CHUNK_BYTES, count - done), source_at + done)
            if not data:
                raise OSError(errno.EIO, "the source became shorter while it was read")
            write_all(target, data, target_at + done)
            copied = len(data)
        done += copied


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


def write_all(file: int, data: bytes, begin: int) -> None:
    """Write all of `data` at `begin`."""
    view = memoryview(data)
    while view:
        written = os.pwrite(file, view, begin)
        view, begin = view[written:], begin + written
