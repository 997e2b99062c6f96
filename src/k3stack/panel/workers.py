"""Processes that work for an export, one for each core. They end with it, however it ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from threading import Thread
from typing import Any

from k3stack.signals import interruptible

__all__ = ["workers"]

_LOOK_S = 0.2
"""How often a worker looks whether it should end."""


@contextmanager
def workers() -> Iterator[ProcessPoolExecutor]:
    """The workers. Ctrl-C or SIGTERM ends them at once, in the middle of what they do."""
    context = get_context("spawn")
    stop = context.Event()
    with interruptible(), ProcessPoolExecutor(_cores(), context, initializer=_begin, initargs=(stop,)) as pool:
        try:
            yield pool
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _begin(stop: Any) -> None:
    """In a worker, first: nobody would take what it makes when the export has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends Ctrl-C to us as well; the parent says what follows
    Thread(target=_end_with_parent, args=(stop,), daemon=True).start()


def _end_with_parent(stop: Any) -> None:
    parent = parent_process()
    while not stop.wait(_LOOK_S):
        if parent is not None and not parent.is_alive():
            break
    os._exit(1)
