"""Disks: free space, and how fast they really read. A 1.56 TB checkpoint loads at this rate, so it is measured."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Disk", "disks", "read_rate"]

SAMPLE_BYTES = 256 * 2**20
_CHUNK = 8 * 2**20


@dataclass(frozen=True, slots=True)
class Disk:
    """The disk that a folder lies on. `read_rate` in bytes per second, None where it was not measured."""

    folder: str
    total_bytes: int
    free_bytes: int
    read_rate: float | None


def disks(folders: tuple[Path, ...], measure: bool, missing: list[str]) -> tuple[Disk, ...]:
    """The disks of these folders, each once; what cannot be measured is added to `missing`."""
    found: dict[int, Disk] = {}
    for folder in folders:
        try:
            device, usage = folder.stat().st_dev, shutil.disk_usage(folder)
        except OSError as error:
            missing.append(f"disk of {folder}: {error.strerror}")
            continue
        if device in found:
            continue
        rate = None
        if measure:
            try:
                rate = read_rate(folder)
            except OSError as error:
                missing.append(f"read rate of {folder}: {error.strerror}")
        found[device] = Disk(str(folder), usage.total, usage.free, rate)
    return tuple(found.values())


def read_rate(folder: Path, sample_bytes: int = SAMPLE_BYTES) -> float:
    """Bytes per second of one sequential read from disk: writes a temporary file, drops it from the cache, reads it.

    Raises:
        OSError: the folder cannot be written, or is too full for the sample.
    """
    if shutil.disk_usage(folder).free < 4 * sample_bytes:
        raise OSError(28, "too little free space for a sample")
    chunk = os.urandom(_CHUNK)
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        for _ in range(sample_bytes // _CHUNK):
            file.write(chunk)
        os.fsync(file.fileno())
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        file.seek(0)
        buffer = memoryview(bytearray(_CHUNK))
        start, read = time.perf_counter(), 0
        while count := file.readinto(buffer):
            read += count
        return read / (time.perf_counter() - start)
