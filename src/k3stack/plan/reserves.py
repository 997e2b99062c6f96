"""Reserves: memory that is neither weights nor cache. Measured where this site was calibrated, else a fit.

Nobody publishes a formula for these. The fit is a straight line through all public points of data/reserves.yaml
(activations and workspaces against tokens per step); its spread is carried along and shown. CUDA graphs are
interpolated between public points by requests in flight, and flat beyond. No constant is tuned to one point.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from itertools import pairwise

import yaml
from pydantic import BaseModel, ConfigDict

from k3stack.plan.layout import Workload
from k3stack.plan.ledger import Line
from k3stack.values import GIB, Origin

__all__ = ["Fit", "Reserves", "fit", "reserve_lines"]


@dataclass(frozen=True, slots=True)
class Reserves:
    """What a start-up log of this site reported, for the same kind of run.

    Attributes:
        other_bytes: consumed memory less weights: CUDA context, NCCL, workspaces.
        activation_bytes: peak activations at `batched_tokens` tokens per step.
        graph_bytes: CUDA graphs.
        source: which log.
    """

    other_bytes: int
    activation_bytes: int
    batched_tokens: int
    graph_bytes: int
    source: str


@dataclass(frozen=True, slots=True)
class Fit:
    """The straight line: `base_bytes` + tokens x `token_bytes`, and how far the points lie from it."""

    base_bytes: int
    token_bytes: int
    spread_bytes: int
    points: int


class _Point(BaseModel):
    model_config = ConfigDict(extra="forbid")

    run: str
    tokens: int
    requests: int
    other: float
    peak: float
    graphs: float | None = None


class _Graph(BaseModel):
    model_config = ConfigDict(extra="forbid")

    requests: int
    gib: float
    run: str


class _Data(BaseModel):
    model_config = ConfigDict(extra="forbid")

    points: list[_Point]
    graphs: list[_Graph]


@lru_cache(maxsize=1)
def _data() -> _Data:
    return _Data.model_validate(yaml.safe_load(files("k3stack.plan").joinpath("data/reserves.yaml").read_text()))


@lru_cache(maxsize=1)
def fit() -> Fit:
    """Least squares of everything but weights, cache and graphs, against tokens per step."""
    points = [(point.tokens, (point.other + point.peak) * GIB) for point in _data().points]
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)
    base = mean_y - slope * mean_x
    spread = max(abs(y - base - slope * x) for x, y in points)
    return Fit(round(base), round(slope), round(spread), len(points))


def graph_bytes(requests: int) -> int:
    """CUDA graphs for this many requests in flight: between the public points a straight line, beyond them flat."""
    known = [(row.requests, row.gib * GIB) for row in _data().graphs]
    if requests <= known[0][0]:
        return round(known[0][1])
    for (low, small), (high, large) in pairwise(known):
        if requests <= high:
            return round(small + (large - small) * (requests - low) / (high - low))
    return round(known[-1][1])


def reserve_lines(workload: Workload, requests: int, known: Reserves | None) -> tuple[Line, Line, Line]:
    """Context and workspaces, activations, CUDA graphs: measured on this site, or estimated."""
    return _lines(workload.batched_tokens, requests, known)


@lru_cache(maxsize=1_024)
def _lines(tokens: int, requests: int, known: Reserves | None) -> tuple[Line, Line, Line]:
    if known is not None:
        scaled = round(known.activation_bytes * tokens / known.batched_tokens)
        return (
            Line("NCCL, CUDA context, workspaces", known.other_bytes, Origin.MEASURED, known.source),
            Line(
                "activations",
                scaled,
                Origin.MEASURED if tokens == known.batched_tokens else Origin.ESTIMATED,
                f"{known.activation_bytes:,} B at {known.batched_tokens:,} tokens per step in {known.source}"
                + ("" if tokens == known.batched_tokens else f", scaled to {tokens:,}"),
            ),
            Line("CUDA graphs", known.graph_bytes, Origin.MEASURED, known.source),
        )
    line = fit()
    spread = f"line through {line.points} public vLLM logs, at most {line.spread_bytes / GIB:.1f} GiB off"
    return (
        Line("NCCL, CUDA context, workspaces", line.base_bytes, Origin.ESTIMATED, f"base of the {spread}"),
        Line(
            "activations",
            tokens * line.token_bytes,
            Origin.ESTIMATED,
            f"{tokens:,} tokens per step x {line.token_bytes:,} B, slope of the same line",
        ),
        Line(
            "CUDA graphs",
            graph_bytes(requests),
            Origin.ESTIMATED,
            f"{requests} requests in flight, between public logs (0.26 GiB at 2, 2.47 at 256; 10.9 seen with DEP16)",
        ),
    )
