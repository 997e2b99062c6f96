"""Signals for the length of a block: being ended in an orderly way, and cleaning up undisturbed."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

__all__ = ["interruptible", "undisturbed"]


@contextmanager
def _handled(numbers: Iterable[int], handler: Any) -> Iterator[None]:
    """Send these signals to `handler` until the block ends; outside the main thread they are somebody else's."""
    try:
        before = {number: signal.signal(number, handler) for number in numbers}
    except ValueError:
        before = {}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def interruptible() -> AbstractContextManager[None]:
    """SIGTERM and SIGHUP end us as Ctrl-C does: by an exception that cleans up on its way."""

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    # Under nohup SIGHUP is ignored already, and stays so.
    kept = (one for one in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(one) is not signal.SIG_IGN)
    return _handled(kept, interrupt)


def undisturbed() -> AbstractContextManager[None]:
    """Cleaning up is not interrupted: a second Ctrl-C would only leave something behind."""
    return _handled((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), signal.SIG_IGN)
