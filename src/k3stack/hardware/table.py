"""The GPUs k3stack knows: memory as sold and as reported, nodes, architecture; each figure with its source."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict

from k3stack.errors import NotKnownError
from k3stack.values import GB, GIB, Origin

__all__ = ["Gpu", "gpu", "gpus"]


@dataclass(frozen=True, slots=True)
class Gpu:
    """One kind of GPU.

    Attributes:
        memory_bytes: what to plan with: the reported memory, or the lowest figure a public recipe uses.
        memory_origin: measured (reported by an engine or driver) or estimated.
        nvlink_gpus: how many GPUs share one NVLink (or xGMI) domain.
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

    @property
    def blackwell(self) -> bool:
        """Whether it has the FP4 tensor cores of NVIDIA's data-centre Blackwell."""
        return self.architecture in ("sm100", "sm103")


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str
    vendor: Literal["nvidia", "amd"]
    architecture: str
    sold_gb: int
    reported_gib: float | None = None
    lowest_gb: int | None = None
    gpus_per_node: int
    nvlink_gpus: int
    source: str


@lru_cache(maxsize=1)
def gpus() -> dict[str, Gpu]:
    """All known GPUs by id."""
    data = yaml.safe_load(files("k3stack.hardware").joinpath("data/gpus.yaml").read_text())
    return {name: _gpu(name, _Row.model_validate(row)) for name, row in data["gpus"].items()}


def _gpu(name: str, row: _Row) -> Gpu:
    reported = row.reported_gib is not None
    memory = row.reported_gib * GIB if row.reported_gib is not None else (row.lowest_gb or row.sold_gb) * GB
    return Gpu(
        id=name,
        name=row.name,
        vendor=row.vendor,
        architecture=row.architecture,
        sold_bytes=row.sold_gb * GB,
        memory_bytes=int(memory),
        memory_origin=Origin.MEASURED if reported else Origin.ESTIMATED,
        gpus_per_node=row.gpus_per_node,
        nvlink_gpus=row.nvlink_gpus,
        source=row.source,
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
