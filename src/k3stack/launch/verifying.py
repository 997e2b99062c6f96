"""The last step of `k3 up`: the checks of the verify room against the new endpoint, and their report."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from k3stack.files import write_text
from k3stack.values import dump

if TYPE_CHECKING:
    from k3stack.launch.up import Options, Steps

__all__ = ["Verified", "verify"]


@dataclass(frozen=True, slots=True)
class Verified:
    """What the checks said.

    Attributes:
        failed: ids of the checks that did not pass.
        page: the report for a browser; `json` and `junit` lie beside it.
    """

    passed: bool
    level: str
    counts: dict[str, int]
    failed: tuple[str, ...]
    seconds: float
    page: str


def verify(url: str, model: str | None, options: Options, folder: Path, steps: Steps) -> Verified | None:
    """Run the checks of a level and keep their report in the run's folder; None when nothing is asked for.

    Raises:
        K3Error: the endpoint answers no chat request at all.
    """
    if options.level is None:
        return None
    from k3stack.verify import CheckResult, Level, Status, Target, Weights, run_checks, write_html, write_junit

    def told(result: CheckResult) -> None:
        steps.line(f"check {result.status.value}: {result.title}: {result.summary}")

    weights = None if options.weights is None else Weights(options.weights)
    report = run_checks(
        Target(url, model, weights=weights),
        Level(options.level),
        on_result=told,
        on_start=lambda one, number, total: steps.status(f"check {number + 1} of {total}: {one.id}"),
    )
    page = folder / "report.html"
    write_html(report, page)
    write_junit(report, folder / "report.xml")
    write_text(folder / "report.json", json.dumps(dump(report), indent=2, ensure_ascii=False) + "\n")
    bad = tuple(one.id for one in report.results if one.status in (Status.FAIL, Status.ERROR))
    counts = {status.value: count for status, count in sorted(report.counts.items())}
    return Verified(report.passed, report.level.value, counts, bad, report.seconds, str(page))
