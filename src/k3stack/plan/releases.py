"""Engine releases as far as they change the memory arithmetic: data/releases.yaml, each change with its source."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

import yaml
from pydantic import BaseModel, ConfigDict, Field

from k3stack.errors import NotKnownError, UsageError

__all__ = ["ENGINES", "Release", "planned_release", "release"]

ENGINES = ("vllm", "sglang")


@dataclass(frozen=True, slots=True)
class Release:
    """One release of an engine and how it counts memory.

    Attributes:
        version: as the engine prints it.
        experts_whole_under_ep: experts are not padded when they are spread whole.
        checkpoint_block: prefix caching with FlashKDA keeps one more state per group.
        null_block: the start-up check sets one block aside.
        graphs_in_budget: CUDA graphs are taken out of the budget before the cache.
    """

    engine: str
    version: str
    experts_whole_under_ep: bool = True
    checkpoint_block: bool = True
    null_block: bool = True
    graphs_in_budget: bool = True


class _Change(BaseModel):
    model_config = ConfigDict(extra="forbid")

    since: str = Field(alias="from")
    what: str
    source: str


class _Engine(BaseModel):
    model_config = ConfigDict(extra="forbid")

    planned: str
    changes: dict[str, _Change]


@lru_cache(maxsize=1)
def _engines() -> dict[str, _Engine]:
    data = yaml.safe_load(files("k3stack.plan").joinpath("data/releases.yaml").read_text())
    return {name: _Engine.model_validate(row) for name, row in data.items()}


def planned_release(engine: str) -> str:
    """The release that plans are made for unless another is named.

    Raises:
        NotKnownError: an engine we know no memory arithmetic of.
    """
    return _engine(engine).planned


@lru_cache(maxsize=64)
def release(engine: str, version: str | None = None) -> Release:
    """How a release counts memory; a development build older than 0.27.1 counts like the image of July 2026.

    Raises:
        NotKnownError: an engine we know no memory arithmetic of.
        UsageError: a version that is none.
    """
    known = _engine(engine)
    version = version or known.planned
    number = _number(version)
    return Release(engine, version, **{name: number >= _number(change.since) for name, change in known.changes.items()})


def _engine(engine: str) -> _Engine:
    found = _engines().get(engine)
    if found is None:
        raise NotKnownError(
            f"no memory arithmetic is known for {engine!r}",
            where="engine",
            hint="Known: " + ", ".join(_engines()) + ".",
        )
    return found


def _number(version: str) -> tuple[int, ...]:
    found = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", version)
    if found is None:
        raise UsageError(f"{version!r} is no version number", where="release", hint="Write it like 0.33.0.")
    return tuple(int(part or 0) for part in found.groups())
