"""What preflight knows before it judges: what is wanted, and what was observed. Values only; `probes` fills them."""

from __future__ import annotations

from dataclasses import dataclass

from k3stack.hardware.disk import Disk
from k3stack.hardware.machine import FoundGpu

__all__ = [
    "CheckpointSeen",
    "ClockSeen",
    "EngineSeen",
    "Facts",
    "GpuLinks",
    "GpuProcess",
    "HeadSeen",
    "HubSeen",
    "ImageSeen",
    "LimitsSeen",
    "PatchesSeen",
    "PortSeen",
    "RdmaPort",
    "Wanted",
]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is about to be started on this node.

    Attributes:
        engine: vllm, sglang or reference.
        version: of the engine that the commands are for; None where any will do.
        gpu: the kind of GPU by its id; None where none is needed.
        gpus: how many on this node.
        utilization: share of a GPU's memory that the engine will ask for.
        model: a folder or a hub id.
        model_bytes: of its safetensors files, if known.
        image: of the container; None for a plain process.
        patches: runtime patches that must be there, by name.
        rack: whether nodes share an NVLink domain.
        head: HOST:PORT of rank 0, to be reached from here.
    """

    engine: str = "vllm"
    version: str | None = None
    gpu: str | None = None
    gpus: int = 0
    vendor: str = "nvidia"
    nodes: int = 1
    utilization: float = 0.9
    model: str = ""
    model_bytes: int | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    image: str | None = None
    patches: tuple[str, ...] = ()
    rack: bool = False
    head: str | None = None


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that holds memory of a GPU. `used_bytes` is None where the driver does not tell."""

    gpu: int
    pid: int
    name: str
    used_bytes: int | None


@dataclass(frozen=True, slots=True)
class GpuLinks:
    """NVLink of one GPU: active links of all, and the fabric manager's state ("completed" when it is up)."""

    gpu: int
    active: int
    total: int
    fabric: str | None


@dataclass(frozen=True, slots=True)
class CheckpointSeen:
    """The checkpoint: its faults, in words; what it is; `error` when it could not be looked at.

    Attributes:
        kind: folder, hub, or other.
        known: whether it is a model that k3stack knows; a fault is only looked for in those.
        to_download_bytes: what is not on this machine yet; None where that is not known.
    """

    kind: str
    known: bool = True
    said: str = ""
    faults: tuple[str, ...] = ()
    error: str | None = None
    size_bytes: int | None = None
    to_download_bytes: int | None = 0


@dataclass(frozen=True, slots=True)
class EngineSeen:
    """The engine: its version here, who read the flags, and what was refused."""

    version: str | None
    where: str
    read_by: str = ""
    refused: tuple[str, ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True)
class PatchesSeen:
    """The runtime patches for this release: those that cannot apply, and what else is in their way."""

    cannot: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    unknown: str | None = None


@dataclass(frozen=True, slots=True)
class ImageSeen:
    """The container image: `architecture` is None where it is not on this machine."""

    name: str
    architecture: str | None
    host_architecture: str
    error: str | None = None


@dataclass(frozen=True, slots=True)
class HubSeen:
    """Access to the hub; of a token only whether there is one."""

    token: bool
    offline: bool


@dataclass(frozen=True, slots=True)
class LimitsSeen:
    """Limits of this process; None is no limit."""

    open_files: int | None
    locked_bytes: int | None
    shm_bytes: int | None
    shm_free_bytes: int | None


@dataclass(frozen=True, slots=True)
class PortSeen:
    """Whether the port can be listened on, and who has it."""

    port: int
    free: bool
    error: str = ""
    holder: str = ""


@dataclass(frozen=True, slots=True)
class ClockSeen:
    """The clock: whether the kernel holds it to be synchronised; None where it does not say."""

    synchronised: bool | None


@dataclass(frozen=True, slots=True)
class HeadSeen:
    """The head of the ranks, as reached from here: round trip, and its clock less ours, in seconds."""

    address: str
    reachable: bool
    error: str = ""
    round_trip_s: float | None = None
    clock_offset_s: float | None = None


@dataclass(frozen=True, slots=True)
class RdmaPort:
    """A port of an RDMA device."""

    device: str
    port: int
    state: str
    link_layer: str
    rate: str


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that was observed; None where it was not looked at."""

    wanted: Wanted
    gpus: tuple[FoundGpu, ...] = ()
    driver: str | None = None
    processes: tuple[GpuProcess, ...] | None = None
    links: tuple[GpuLinks, ...] | None = None
    imex: bool | None = None
    ram_bytes: int = 0
    ram_free_bytes: int = 0
    weights_disk: Disk | None = None
    cache_disk: Disk | None = None
    limits: LimitsSeen | None = None
    port: PortSeen | None = None
    checkpoint: CheckpointSeen | None = None
    engine: EngineSeen | None = None
    patches: PatchesSeen | None = None
    image: ImageSeen | None = None
    hub: HubSeen | None = None
    clock: ClockSeen | None = None
    head: HeadSeen | None = None
    rdma: tuple[RdmaPort, ...] | None = None
    peermem: bool | None = None
