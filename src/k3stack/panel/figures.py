"""What others measured on this hardware and published: data/figures.yaml. None of it is a promise of ours."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

import yaml
from pydantic import BaseModel, ConfigDict, Field

from k3stack.recipe.choice import Choice

__all__ = ["Measured", "Run", "measured"]


@dataclass(frozen=True, slots=True)
class Run:
    """One measured point: prompt and output tokens, requests in flight, and figures under the source's own names."""

    isl: int | None
    osl: int | None
    concurrency: int | str | None
    metrics: dict[str, int | float | str]


@dataclass(frozen=True, slots=True)
class Measured:
    """One published series.

    Attributes:
        same_engine: whether it ran on the engine that is chosen.
        same_size: whether it ran on as many GPUs.
        setup: the engine and its settings, in the source's words.
    """

    setting: str
    setup: str
    same_engine: bool
    same_size: bool
    source: str
    url: str
    notes: str
    runs: tuple[Run, ...]


class _Run(BaseModel):
    model_config = ConfigDict(extra="forbid")

    isl: int | None = None
    osl: int | None = None
    concurrency: int | str | None = None
    metrics: dict[str, int | float | str] = Field(min_length=1)


class _Series(BaseModel):
    model_config = ConfigDict(extra="forbid")

    gpu: str
    engine: str
    setting: str
    setup: str
    gpus: int | None = None
    source: str = Field(min_length=1)
    url: str = Field(pattern=r"^(https://.*)?$")
    notes: str = ""
    runs: list[_Run]


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    figures: list[_Series]


@lru_cache(maxsize=1)
def _series() -> tuple[_Series, ...]:
    text = files("k3stack.panel").joinpath("data/figures.yaml").read_text()
    return tuple(_File.model_validate(yaml.safe_load(text)).figures)


def measured(choice: Choice) -> tuple[Measured, ...]:
    """Every series on this kind of GPU: the chosen engine's first, and of those the ones of this size."""
    gpus = choice.layout.gpus + (choice.prefill.gpus if choice.prefill else 0)
    found = [_measured(one, choice.engine, gpus) for one in _series() if one.gpu == choice.gpu.id]
    return tuple(sorted(found, key=lambda one: (not one.same_engine, not one.same_size)))


def _measured(one: _Series, engine: str, gpus: int) -> Measured:
    runs = tuple(Run(run.isl, run.osl, run.concurrency, dict(run.metrics)) for run in one.runs)
    same = one.engine == engine
    return Measured(one.setting, one.setup, same, one.gpus == gpus, one.source, one.url, one.notes, runs)
