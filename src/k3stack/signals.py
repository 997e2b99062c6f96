"""Signals for the length of a block: being ended in an orderly way, and not being disturbed."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

__all__ = ["interruptible", "undisturbed"]

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


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
    """SIGTERM and SIGHUP end us as Ctrl-C does: by an exception that cleans up on its way, and that none follows."""

    def interrupt(number: int, frame: Any) -> None:
        for one in _ENDING:
            signal.signal(one, signal.SIG_IGN)
        raise KeyboardInterrupt

    # Under nohup SIGHUP is ignored already, and stays so.
    return _handled((one for one in _ENDING if signal.getsignal(one) is not signal.SIG_IGN), interrupt)


def undisturbed() -> AbstractContextManager[None]:
    """What must be done whole is not interrupted: cleaning up, or handing over."""
    return _handled(_ENDING, signal.SIG_IGN)
