"""What this machine really has: GPUs and driver, memory, disks with their read rate, network.

Everything is read from the operating system and the vendors' own tools; what is not there is named as not there.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k3stack.hardware.disk import Disk, disks
from k3stack.hardware.table import Gpu, recognise
from k3stack.hardware.visible import VARIABLE, visible

__all__ = ["FoundGpu", "Machine", "Nic", "look", "plannable", "vendor_tool"]

_TOOL_SECONDS = 20


@dataclass(frozen=True, slots=True)
class FoundGpu:
    """One GPU as its driver reports it. `known` is its id in the table, or None.

    `memory_bytes` is what programs can have: the total less what the driver reserves.
    """

    index: int
    name: str
    memory_bytes: int
    free_bytes: int
    known: str | None


@dataclass(frozen=True, slots=True)
class Nic:
    """One network interface; `megabits` is None where the kernel does not say. `rdma` names its InfiniBand device."""

    name: str
    megabits: int | None
    rdma: bool


@dataclass(frozen=True, slots=True)
class Machine:
    """What was found.

    Attributes:
        gpus: those that programs here may use; CUDA_VISIBLE_DEVICES may leave others out.
        driver: the GPU driver's version, or None.
        missing: what could not be looked at, and why.
    """

    gpus: tuple[FoundGpu, ...]
    driver: str | None
    cpus: int
    ram_bytes: int
    ram_free_bytes: int
    disks: tuple[Disk, ...]
    nics: tuple[Nic, ...]
    missing: tuple[str, ...] = ()


def look(folders: tuple[Path, ...] = (), measure: bool = True) -> Machine:
    """Look at this machine. `folders`: whose disks to look at (the working folder and the hub cache by default)."""
    missing: list[str] = []
    found, driver = _nvidia(missing)
    if not found:
        found = _amd(missing)
    total, free = _ram()
    return Machine(
        tuple(found),
        driver,
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1),
        total,
        free,
        disks(folders or _default_folders(), measure, missing),
        _nics(),
        tuple(missing),
    )


def plannable(machine: Machine) -> tuple[Gpu, int] | None:
    """The GPU kind to plan with and how many of it there are, with the memory that the driver reports; or None."""
    kinds: dict[str, list[FoundGpu]] = {}
    for one in machine.gpus:
        if one.known is not None:
            kinds.setdefault(one.known, []).append(one)
    if not kinds:
        return None
    found = max(kinds.values(), key=len)
    kind = recognise(found[0].name)
    assert kind is not None
    return kind.with_memory(min(one.memory_bytes for one in found), "this machine's driver"), len(found)


def _nvidia(missing: list[str]) -> tuple[list[FoundGpu], str | None]:
    """NVIDIA GPUs through NVML, or through nvidia-smi where the Python package is not installed."""
    try:
        import pynvml
    except ImportError:
        return _nvidia_smi(missing)
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        missing.append(f"NVIDIA GPUs: none ({error})")
        return [], None
    try:
        found, uuids = [], []
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            uuids.append(_text(pynvml.nvmlDeviceGetUUID(handle)))
            # Version 2 tells what the driver reserves: an H200's 143,771 MiB are 143,156 for programs, as vLLM prints.
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2)
            usable = int(memory.total) - int(memory.reserved)
            found.append(_found(index, _text(pynvml.nvmlDeviceGetName(handle)), usable, int(memory.free)))
        return _usable(found, uuids, missing), _text(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError as error:
        missing.append(f"NVIDIA GPUs: the driver refused ({error})")
        return [], None
    finally:
        pynvml.nvmlShutdown()


def _nvidia_smi(missing: list[str]) -> tuple[list[FoundGpu], str | None]:
    fields = "index,name,memory.total,memory.reserved,memory.free,driver_version,uuid"
    text = vendor_tool("nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits")
    if text is None:
        missing.append("NVIDIA GPUs: none (neither the driver's library nor nvidia-smi answers)")
        return [], None
    found, uuids, driver = [], [], None
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != 7 or not all(cells[at].isdigit() for at in (0, 2, 3, 4)):
            missing.append(f"NVIDIA GPUs: nvidia-smi printed {line!r}")
            continue
        total, reserved, free = (int(cells[at]) * 2**20 for at in (2, 3, 4))
        found.append(_found(int(cells[0]), cells[1], total - reserved, free))
        uuids.append(cells[6])
        driver = cells[5]
    return _usable(found, uuids, missing), driver


def _usable(found: list[FoundGpu], uuids: list[str], missing: list[str]) -> list[FoundGpu]:
    """Those that CUDA_VISIBLE_DEVICES leaves; the others are named as missing."""
    left = visible([(one.index, uuid) for one, uuid in zip(found, uuids, strict=True)], os.environ)
    if left is None or len(left) == len(found):
        return found
    out = ", ".join(str(one.index) for one in found if one.index not in left)
    missing.append(f"NVIDIA GPUs: {out} left out by {VARIABLE}={os.environ[VARIABLE]}")
    return [one for one in found if one.index in left]


def _amd(missing: list[str]) -> list[FoundGpu]:
    """AMD GPUs through rocm-smi."""
    text = vendor_tool("rocm-smi", "--showproductname", "--showmeminfo", "vram", "--json")
    if text is None:
        missing.append("AMD GPUs: none (no rocm-smi)")
        return []
    try:
        cards = json.loads(text)
        return [
            _amd_card(index, row)
            for index, (_, row) in enumerate(sorted(cards.items()))
            if "VRAM Total Memory (B)" in row
        ]
    except (ValueError, AttributeError, TypeError, KeyError) as error:
        missing.append(f"AMD GPUs: rocm-smi printed something else than expected ({error})")
        return []


def _amd_card(index: int, row: dict[str, Any]) -> FoundGpu:
    total, used = int(row["VRAM Total Memory (B)"]), int(row.get("VRAM Total Used Memory (B)", 0))
    name = str(row.get("Card Series") or row.get("Card series") or row.get("Card Model") or "AMD GPU")
    return _found(index, name, total, total - used)


def _found(index: int, name: str, total: int, free: int) -> FoundGpu:
    kind = recognise(name)
    return FoundGpu(index, name, total, free, None if kind is None else kind.id)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def vendor_tool(*command: str) -> str | None:
    """What a vendor's tool prints, or None if it is absent or fails."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TOOL_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _ram() -> tuple[int, int]:
    """Total and available memory, bytes."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        rows = {
            key: int(rest.split()[0]) * 1024 for key, _, rest in (line.partition(":") for line in lines) if rest.split()
        }
        return rows["MemTotal"], rows["MemAvailable"]
    except (OSError, KeyError, ValueError):
        page = os.sysconf("SC_PAGE_SIZE")
        return os.sysconf("SC_PHYS_PAGES") * page, 0


def _nics() -> tuple[Nic, ...]:
    """Interfaces that lead out of this machine."""
    root = Path("/sys/class/net")
    if not root.is_dir():
        return ()
    return tuple(
        Nic(entry.name, _speed(entry), (entry / "device" / "infiniband").is_dir())
        for entry in sorted(root.iterdir())
        if entry.name != "lo" and (entry / "device").exists()
    )


def _speed(entry: Path) -> int | None:
    try:
        value = int((entry / "speed").read_text())
    except (OSError, ValueError):
        return None
    return value if value > 0 else None


def _default_folders() -> tuple[Path, ...]:
    """The working folder, and where the hub's files would land."""
    home = Path(os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface"))
    while not home.exists() and home != home.parent:
        home = home.parent
    return (Path.cwd(), home)
