"""When tokens came, for the metrics."""

from __future__ import annotations

import time

from k3stack.reference.request import Update
from k3stack.reference.server.metrics import Metrics

__all__ = ["Timing"]


class Timing:
    """The clock of one HTTP request."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._began = time.perf_counter()
        self._last: dict[int, float] = {}

    def update(self, number: int, update: Update) -> None:
        """Note news of choice `number`."""
        now = time.perf_counter()
        if update.tokens:
            if number in self._last:
                self._metrics.between.observe(now - self._last[number])
            else:
                self._metrics.first_token.observe(now - self._began)
            self._last[number] = now
        if update.finish is not None:
            self._metrics.whole.observe(now - self._began)
