"""The layout to start from, out of what was published."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict

from k3stack.errors import NotKnownError
from k3stack.hardware.table import Gpu
from k3stack.plan.layout import KvDtype, Layout
from k3stack.recipe.choice import Goal, Serving

__all__ = ["Suggestion", "suggest"]


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A layout, where it comes from, and whether a vendor published it for K3.

    Attributes:
        workload: settings of a workload that were published with it.
    """

    layout: Layout
    prefill: Layout | None
    published: bool
    source: str
    workload: tuple[tuple[str, Any], ...] = ()


class _Work(BaseModel):
    model_config = ConfigDict(extra="forbid")

    context: int | None = None
    concurrency: int | None = None
    batched_tokens: int | None = None
    utilization: float | None = None
    kv_dtype: KvDtype | None = None


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid")

    engine: str
    serving: str = "unified"
    gpu: list[str]
    goal: list[str] | None = None
    server: Layout | None = None
    prefill: Layout | None = None
    decode: Layout | None = None
    workload: _Work = _Work()
    published: bool
    source: str


@lru_cache(maxsize=1)
def _rows() -> tuple[_Row, ...]:
    data = yaml.safe_load(files("k3stack.engines").joinpath("data/layouts.yaml").read_text())
    return tuple(_Row.model_validate(row) for row in data["layouts"])


def suggest(engine: str, gpu: Gpu, serving: Serving, goal: Goal) -> Suggestion:
    """The first published layout that fits.

    Raises:
        NotKnownError: none is known for this GPU; says for which ones there is.
    """
    for row in _rows():
        same = row.engine == engine and row.serving == serving.value and gpu.id in row.gpu
        if same and (row.goal is None or goal.value in row.goal):
            layout = row.server or row.decode
            assert layout is not None
            work = tuple(row.workload.model_dump(exclude_none=True).items())
            return Suggestion(layout, row.prefill, row.published, row.source, work)
    names = sorted(
        {name for row in _rows() if (row.engine, row.serving) == (engine, serving.value) for name in row.gpu}
    )
    raise NotKnownError(
        f"no {serving} layout for {gpu.name} on {engine} is known",
        where="--hardware",
        hint=f"Known: {', '.join(names)}. `--tp`, `--pp`, `--dp`, `--ep` and `--dcp` set one.",
    )
