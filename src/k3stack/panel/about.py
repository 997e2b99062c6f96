"""What the page must know before it asks: where the sliders stop, and what this copy of it can do."""

from __future__ import annotations

from dataclasses import dataclass

from k3stack import __version__
from k3stack.hardware.table import gpus
from k3stack.panel.dimensions import DIMENSIONS
from k3stack.panel.rows import selection
from k3stack.recipe.choice import LONG, Choice

__all__ = ["CONCURRENCIES", "CONTEXTS", "About", "about"]

CONTEXTS = (8_192, 16_384, 32_768, 65_536, 131_072, 196_608, 262_144, 524_288, 1_048_576)
"""Where the context slider stops, in tokens; 196,608 is the validated setting, 1,048,576 the model's limit."""

CONCURRENCIES = (1, 2, 5, 8, 16, 32, 48, 64, 128, 256, 512)
"""Where the concurrency slider stops, in requests."""


@dataclass(frozen=True, slots=True)
class About:
    """What this copy of the page can do.

    Attributes:
        start: the selection it begins with.
        per_node: how many GPUs of each kind a node has.
        covers: releases that an exported site holds, in words; empty when all are there.
    """

    version: str
    served: bool
    start: str
    context: int
    concurrency: int
    contexts: tuple[int, ...]
    concurrencies: tuple[int, ...]
    long: int
    dimensions: tuple[str, ...]
    per_node: dict[str, int]
    covers: tuple[str, ...] = ()


def about(start: Choice, served: bool, covers: tuple[str, ...] = ()) -> About:
    """The description of a served or an exported page."""
    work = start.workload
    return About(
        __version__,
        served,
        selection(start),
        work.context,
        work.concurrency,
        CONTEXTS,
        CONCURRENCIES,
        LONG,
        DIMENSIONS,
        {name: kind.gpus_per_node for name, kind in gpus().items()},
        covers,
    )
