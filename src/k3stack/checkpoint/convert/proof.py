"""Reading back: a thread that follows the writer, compares what arrived with what was to be written, and digests.

It reads every byte of the source once more, in file order, and every byte of the output. What was copied must be
equal; what was computed must be what the writer handed over, and must come from bytes that are still the same.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import queue
import threading
import zlib
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from k3stack.errors import CheckpointError
from k3stack.formats.arrays import Bytes

__all__ = ["DigestKind", "ReadBack"]

CHUNK_BYTES = 1 << 18
BACKLOG = 8
"""How far the writer may run ahead, in tensors: what was computed is kept in memory until it was compared."""


class DigestKind(StrEnum):
    """How the source is digested: XXH3 costs nothing beside reading; hubs publish SHA-256."""

    XXH3_128 = "xxh3_128"
    SHA256 = "sha256"


@dataclass(frozen=True, slots=True)
class _Source:
    """The next bytes of the source: copied to a place in the output, or computed with (their checksum), or neither."""

    name: str
    begin: int
    size: int
    copied_to: int | None = None
    checksum: int | None = None


@dataclass(frozen=True, slots=True)
class _Computed:
    """Bytes of the output that were computed."""

    name: str
    begin: int
    data: bytes


class ReadBack:
    """The thread. The writer calls `copied`, `used` and `computed` in the order of the source file, then `finish`.

    Args:
        source: the source file, mapped; `path` is its name.
        output: open output file, at its full size.
        where: the shard's final name, for errors.
    """

    def __init__(self, source: mmap.mmap, path: Path, output: int, where: str, kind: DigestKind) -> None:
        self.path, self.where = path, where
        self.source = source
        self.output = mmap.mmap(output, 0, access=mmap.ACCESS_READ)
        self.digest: Any = xxhash.xxh3_128() if kind is DigestKind.XXH3_128 else hashlib.sha256()
        self.waiting: queue.Queue[_Source | _Computed | None] = queue.Queue(BACKLOG)
        self.failure: BaseException | None = None
        self.thread = threading.Thread(target=self._run, name="read back", daemon=True)
        self.thread.start()

    def copied(self, name: str, begin: int, size: int, to: int) -> None:
        """These source bytes were copied to `to`."""
        self._hand_over(_Source(name, begin, size, copied_to=to))

    def used(self, name: str, begin: int, size: int, checksum: int | None = None) -> None:
        """These source bytes were computed with, and had this CRC-32; or were of no use."""
        self._hand_over(_Source(name, begin, size, checksum=checksum))

    def computed(self, name: str, begin: int, data: bytes) -> None:
        """These bytes were written at `begin`."""
        self._hand_over(_Computed(name, begin, data))

    def finish(self) -> str:
        """Wait until everything was compared; the source's digest.

        Raises:
            CheckpointError: something differs; says what.
        """
        self._hand_over(None)
        self.thread.join()
        if self.failure is not None:
            raise self.failure
        return str(self.digest.hexdigest())

    def stop(self) -> None:
        """End the thread, also early, and let go of the output; whatever it found no longer matters."""
        while self.thread.is_alive():
            try:
                self.waiting.put(None, timeout=0.05)
            except queue.Full:
                continue
            self.thread.join()
        with contextlib.suppress(BufferError):  # an exception on its way holds a view: its end frees it
            self.output.close()

    def _hand_over(self, item: _Source | _Computed | None) -> None:
        while True:
            if self.failure is not None:
                raise self.failure
            try:
                return self.waiting.put(item, timeout=0.2)
            except queue.Full:
                continue

    def _run(self) -> None:
        try:
            while (item := self.waiting.get()) is not None:
                if isinstance(item, _Computed):
                    self._check_computed(item)
                else:
                    self._check_source(item)
        except BaseException as error:  # handed to the writer, which raises it
            self.failure = error
            while self.waiting.get() is not None:
                pass

    def _check_source(self, item: _Source) -> None:
        checksum = 0
        for done in range(0, item.size, CHUNK_BYTES):
            size = min(CHUNK_BYTES, item.size - done)
            here = self._view(self.source, item.begin + done, size)
            self.digest.update(here)
            if item.copied_to is not None:
                if not np.array_equal(here, self._view(self.output, item.copied_to + done, size)):
                    raise self._different(item.name)
            elif item.checksum is not None:
                checksum = zlib.crc32(here.data, checksum)
        if item.checksum is not None and checksum != item.checksum:
            raise self._different(item.name)

    def _check_computed(self, item: _Computed) -> None:
        for done in range(0, len(item.data), CHUNK_BYTES):
            expected = np.frombuffer(item.data, np.uint8)[done : done + CHUNK_BYTES]
            if not np.array_equal(expected, self._view(self.output, item.begin + done, len(expected))):
                raise self._different(item.name)

    def _view(self, mapped: mmap.mmap, begin: int, size: int) -> Bytes:
        return np.frombuffer(mapped, np.uint8, size, begin)

    def _different(self, name: str) -> CheckpointError:
        return CheckpointError(
            "read back differs from what was to be written: the source changed meanwhile, or disk or memory is faulty",
            where=f"{self.where}: {name}",
            hint="Run the same command again; it resumes. If it happens again, test the machine.",
        )
