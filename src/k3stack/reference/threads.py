"""How many CPU threads a checkpoint is worth."""

from __future__ import annotations

from pathlib import Path

import torch

from k3stack.errors import UsageError

__all__ = ["set_threads"]

_SMALL_BYTES = 10**9


def set_threads(folder: Path, device: str = "cpu", threads: int | None = None) -> None:
    """Use `threads` CPU threads; None: one for a checkpoint below 1 GB, PyTorch's own number for a larger one.

    The matrices of a small one are done before a second thread has begun; on a busy machine the threads then wait for
    each other, which can take a hundred times as long as the work.

    Raises:
        UsageError: fewer than one thread.
    """
    if threads is None and device == "cpu":
        shards = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
        threads = 1 if shards < _SMALL_BYTES else None
    if threads is not None:
        if threads < 1:
            raise UsageError("must be at least 1", where="--threads")
        torch.set_num_threads(threads)
