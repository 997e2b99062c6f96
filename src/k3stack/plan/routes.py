"""Routes: ways to K3 when no full-size deployment fits, with their honest cost in quality and speed.

Which of them this memory and disk can take is computed; sizes, commands and speeds are in data/routes.yaml, with
sources.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict

from k3stack.values import GB, format_bytes

__all__ = ["Route", "routes"]

OVERHEAD_SHARE = 1.08
"""Weights, and what a server needs besides: cache, buffers, the system. Estimated."""

PARAMETERS = 2_779_931_837_184


@dataclass(frozen=True, slots=True)
class Route:
    """One way.

    Attributes:
        size_bytes: the weights, or None where nothing is downloaded or the size was not read.
        possible: whether the memory or disk at hand takes it.
        why: why not, or what the size is based on.
    """

    id: str
    name: str
    size_bytes: int | None
    possible: bool
    why: str
    command: str
    quality: str
    speed: str


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid")

    id: str
    name: str
    needs: Literal["memory", "apple", "disk", "nothing", "never"]
    size_gb: float | None = None
    bits_per_weight: float | None = None
    estimated: bool = False
    memory_gb: float = 0
    command: str
    why: str = ""
    quality: str
    speed: str

    @property
    def size_bytes(self) -> int | None:
        """The weights."""
        if self.bits_per_weight is not None:
            return int(PARAMETERS * self.bits_per_weight / 8)
        return None if self.size_gb is None else int(self.size_gb * GB)


@lru_cache(maxsize=1)
def _rows() -> tuple[_Row, ...]:
    data = yaml.safe_load(files("k3stack.plan").joinpath("data/routes.yaml").read_text())
    return tuple(_Row.model_validate(row) for row in data["routes"])


def routes(gpu_bytes: int, ram_bytes: int, disk_bytes: int, apple: bool | None = None) -> tuple[Route, ...]:
    """Every route, those that are possible first.

    Args:
        gpu_bytes: memory of all GPUs together.
        ram_bytes: main memory.
        disk_bytes: free space of the largest disk.
        apple: whether this is Apple silicon; looked up by default.
    """
    apple = platform.machine() == "arm64" and platform.system() == "Darwin" if apple is None else apple
    found = [_route(row, gpu_bytes + ram_bytes, ram_bytes, disk_bytes, apple) for row in _rows()]
    return tuple(sorted(found, key=lambda route: not route.possible))


def _route(row: _Row, memory: int, ram: int, disk: int, apple: bool) -> Route:
    size = row.size_bytes
    why = row.why
    if row.needs == "never":
        possible = False
    elif row.needs == "nothing":
        possible = True
    elif row.needs == "apple" and not apple:
        possible, why = False, "needs Apple silicon"
    elif row.needs == "disk":
        assert size is not None
        possible = disk >= size and ram >= row.memory_gb * GB
        why = (
            f"needs {format_bytes(size)} of disk and {row.memory_gb:.0f} GB of RAM; {format_bytes(disk)} are free here"
        )
    else:
        assert size is not None
        need = int(size * OVERHEAD_SHARE)
        possible = memory >= need
        why = f"needs about {format_bytes(need)} of memory; {format_bytes(memory)} are here"
        why += f" (size estimated from {row.bits_per_weight} bits per weight)" if row.estimated else ""
    return Route(row.id, row.name, size, possible, why, row.command, row.quality, row.speed)
