"""The mark of a checkpoint whose weights are random, so that nobody takes an answer for Kimi-K3's."""

from __future__ import annotations

from pathlib import Path

from k3stack.checkpoint.write import write_json

__all__ = ["is_random", "mark_random"]

_MARK = "k3stack_tiny.json"


def mark_random(folder: Path, seed: int) -> None:
    """Say in `folder` that its weights were drawn from a seed; conversions take the mark along."""
    write_json(folder / _MARK, {"random_weights": True, "seed": seed})


def is_random(folder: Path) -> bool:
    """Whether `folder` holds a checkpoint with random weights, as made by `k3 tiny` or converted from one."""
    return (folder / _MARK).is_file()
