"""Looking at the GPUs: who holds them, and how they are linked. NVML where its package is, else nvidia-smi.

Nothing here judges; what cannot be looked at is None.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from k3stack.hardware.machine import vendor_tool
from k3stack.launch.facts import GpuLinks, GpuProcess

__all__ = ["gpu_links", "gpu_processes", "imex_channels", "parse_nvlink_status", "parse_processes"]

_MAX_LINKS = 18
_FABRIC = {0: "not supported", 1: "not started", 2: "in progress", 3: "completed"}


def gpu_processes() -> tuple[GpuProcess, ...] | None:
    """Every process that holds memory of a GPU; None where nothing tells."""
    nvml = _nvml()
    if nvml is None:
        apps = vendor_tool(
            "nvidia-smi", "--query-compute-apps=gpu_uuid,pid,process_name,used_memory", "--format=csv,noheader,nounits"
        )
        uuids = vendor_tool("nvidia-smi", "--query-gpu=index,uuid", "--format=csv,noheader")
        return None if apps is None or uuids is None else parse_processes(apps, uuids)
    found = []
    try:
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            for one in nvml.nvmlDeviceGetComputeRunningProcesses(handle):
                used = one.usedGpuMemory
                found.append(GpuProcess(index, one.pid, _name(one.pid), None if used is None else int(used)))
    except nvml.NVMLError:
        return None
    finally:
        nvml.nvmlShutdown()
    return tuple(found)


def parse_processes(apps: str, uuids: str) -> tuple[GpuProcess, ...]:
    """Processes from what nvidia-smi prints: rows of uuid, pid, name, MiB, and rows of index, uuid."""
    rows = (line.partition(",") for line in uuids.splitlines() if "," in line)
    index = {uuid.strip(): int(number) for number, _, uuid in rows}
    found = []
    for line in apps.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) >= 4 and cells[1].isdigit():
            used = int(cells[-1]) * 2**20 if cells[-1].isdigit() else None
            found.append(GpuProcess(index.get(cells[0], -1), int(cells[1]), ",".join(cells[2:-1]), used))
    return tuple(found)


def gpu_links() -> tuple[GpuLinks, ...] | None:
    """NVLink and fabric state of every GPU; None where nothing tells."""
    nvml = _nvml()
    if nvml is None:
        status = vendor_tool("nvidia-smi", "nvlink", "--status")
        return None if status is None else parse_nvlink_status(status)
    found = []
    try:
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            states = [state for link in range(_MAX_LINKS) if (state := _link(nvml, handle, link)) is not None]
            found.append(GpuLinks(index, sum(states), len(states), _fabric(nvml, handle)))
    except nvml.NVMLError:
        return None
    finally:
        nvml.nvmlShutdown()
    return tuple(found)


def _link(nvml: Any, handle: Any, link: int) -> bool | None:
    """Whether a link is active; None where the GPU has no such link."""
    try:
        return bool(nvml.nvmlDeviceGetNvLinkState(handle, link))
    except nvml.NVMLError:
        return None


def _fabric(nvml: Any, handle: Any) -> str | None:
    try:
        info = nvml.c_nvmlGpuFabricInfoV_t()
        nvml.nvmlDeviceGetGpuFabricInfoV(handle, nvml.byref(info))
        return _FABRIC.get(int(info.state))
    except (AttributeError, nvml.NVMLError):
        return None


def parse_nvlink_status(text: str) -> tuple[GpuLinks, ...]:
    """Links from `nvidia-smi nvlink --status`: a line for each GPU, below it one for each link."""
    found: list[GpuLinks] = []
    for part in re.split(r"^GPU ", text, flags=re.MULTILINE)[1:]:
        number = re.match(r"\d+", part)
        links = re.findall(r"^\s+Link \d+: (.+)$", part, re.MULTILINE)
        active = sum("inactive" not in link for link in links)
        found.append(GpuLinks(int(number.group(0)) if number else -1, active, len(links), None))
    return tuple(found)


def imex_channels() -> bool:
    """Whether there is a channel for sharing memory over NVLink between nodes."""
    folder = Path("/dev/nvidia-caps-imex-channels")
    return folder.is_dir() and any(folder.iterdir())


def _nvml() -> Any:
    """The driver's library, initialised; or None."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "a process of another namespace"
