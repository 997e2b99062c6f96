"""The last step of `k3 up`: the checks of the verify room against the new endpoint, and their report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from k3stack.launch.up import Steps

__all__ = ["Verified", "verify"]


@dataclass(frozen=True, slots=True)
class Verified:
    """What the checks said.

    Attributes:
        failed: ids of the checks that did not pass.
        page: the report for a browser.
    """

    passed: bool
    level: str
    counts: dict[str, int]
    failed: tuple[str, ...]
    page: str
    json: str


def verify(
    url: str, model: str | None, level: str | None, folder: Path, random_weights: bool, steps: Steps
) -> Verified | None:
    """Run the checks of a level and keep their report in the run's folder; None when nothing is asked for."""
    if level is None:
        return None
    raise NotImplementedError
