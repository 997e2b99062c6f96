"""The GPUs k3stack knows: memory as sold and as reported, nodes, architecture; each figure with its source."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict

from k3stack.errors import NotKnownError
from k3stack.values import GB, GIB, Origin

__all__ = ["Gpu", "MemoryFigure", "gpu", "gpus", "recognise"]


@dataclass(frozen=True, slots=True)
class MemoryFigure:
    """One statement about a GPU's memory: who says how much."""

    says: Literal["sold", "reported", "planned"]
    size_bytes: int
    source: str


@dataclass(frozen=True, slots=True)
class Gpu:
    """One kind of GPU.

    Attributes:
        memory_bytes: what to plan with: the reported memory, or the lowest figure that was read.
        memory_origin: measured (reported by an engine or driver) or estimated.
        nvlink_gpus: how many GPUs share one NVLink (or xGMI) domain.
        source: where `memory_bytes` comes from.
        figures: every memory figure that was read.
        formats: number formats its matrix units compute in.
        driver: the lowest driver for the engines' images, with source.
    """

    id: str
    name: str
    vendor: Literal["nvidia", "amd"]
    architecture: str
    sold_bytes: int
    memory_bytes: int
    memory_origin: Origin
    gpus_per_node: int
    nvlink_gpus: int
    source: str
    figures: tuple[MemoryFigure, ...] = ()
    formats: tuple[str, ...] = ()
    driver: str = ""

    @property
    def blackwell(self) -> bool:
        """Whether it has the FP4 tensor cores of NVIDIA's data-centre Blackwell."""
        return self.architecture in ("sm100", "sm103")

    def with_memory(self, size_bytes: int, source: str) -> Gpu:
        """The same GPU with the memory that this machine's driver reports."""
        return replace(self, memory_bytes=size_bytes, memory_origin=Origin.MEASURED, source=source)


class _Figure(BaseModel):
    model_config = ConfigDict(extra="forbid")

    says: Literal["sold", "reported", "planned"]
    gb: float | None = None
    gib: float | None = None
    source: str

    def figure(self) -> MemoryFigure:
        size = (self.gb or 0) * GB + (self.gib or 0) * GIB
        return MemoryFigure(self.says, int(size), self.source)


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str
    vendor: Literal["nvidia", "amd"]
    architecture: str
    gpus_per_node: int
    nvlink_gpus: int
    formats: list[str]
    match: str
    figures: list[_Figure]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid")

    drivers: dict[str, str]
    gpus: dict[str, _Row]


@lru_cache(maxsize=1)
def _table() -> _Table:
    return _Table.model_validate(yaml.safe_load(files("k3stack.hardware").joinpath("data/gpus.yaml").read_text()))


@lru_cache(maxsize=1)
def gpus() -> dict[str, Gpu]:
    """All known GPUs by id."""
    table = _table()
    return {name: _gpu(name, row, table.drivers[row.vendor]) for name, row in table.gpus.items()}


def _gpu(name: str, row: _Row, driver: str) -> Gpu:
    figures = tuple(figure.figure() for figure in row.figures)
    reported = [figure for figure in figures if figure.says == "reported"]
    used = min(reported or figures, key=lambda figure: figure.size_bytes)
    return Gpu(
        id=name,
        name=row.name,
        vendor=row.vendor,
        architecture=row.architecture,
        sold_bytes=next(figure.size_bytes for figure in figures if figure.says == "sold"),
        memory_bytes=used.size_bytes,
        memory_origin=Origin.MEASURED if reported else Origin.ESTIMATED,
        gpus_per_node=row.gpus_per_node,
        nvlink_gpus=row.nvlink_gpus,
        source=f"{used.source} ({used.says})",
        figures=figures,
        formats=tuple(row.formats),
        driver=driver,
    )


def gpu(name: str) -> Gpu:
    """The GPU with this id, in any case.

    Raises:
        NotKnownError: no such GPU; lists those there are.
    """
    found = gpus().get(name.lower())
    if found is None:
        raise NotKnownError(
            f"{name!r} is no GPU k3stack knows", where="--hardware", hint="Known: " + ", ".join(gpus()) + "."
        )
    return found


def recognise(driver_name: str) -> Gpu | None:
    """The GPU that a driver calls by this name, or None."""
    for name, row in _table().gpus.items():
        if re.search(row.match, driver_name, re.IGNORECASE):
            return gpus()[name]
    return None
