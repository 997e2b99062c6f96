"""The checks of preflight that are about GPUs: pure functions from the facts to one finding each."""

from __future__ import annotations

import re
from collections.abc import Callable

from k3stack.hardware.table import gpus as table
from k3stack.launch.facts import Facts
from k3stack.launch.findings import Finding, Status
from k3stack.values import format_bytes

__all__ = ["GPU_CHECKS"]


def _skip(name: str, title: str, why: str = "no GPU is needed") -> Finding:
    return Finding(name, title, Status.NOT_APPLICABLE, why)


def gpus(facts: Facts) -> Finding:
    """There are the GPUs that the plan is for."""
    name, title, wanted = "gpus", "GPUs", facts.wanted
    if wanted.gpus == 0:
        return _skip(name, title)
    kinds = sorted({one.name for one in facts.gpus})
    said = f"{len(facts.gpus)} x {', '.join(kinds)}" if facts.gpus else "none"
    if not facts.gpus:
        fix = "Load the driver (nvidia-smi must answer), or give the container its GPUs: --gpus all."
        return Finding(name, title, Status.FAIL, said, fix)
    right = [one for one in facts.gpus if one.known == wanted.gpu]
    if len(right) < wanted.gpus:
        fix = "Plan for what is here (leave --hardware and --gpus out), or start on the right node."
        return Finding(name, title, Status.FAIL, f"{said}; the plan is for {wanted.gpus} x {wanted.gpu}", fix)
    return Finding(name, title, Status.PASS, said)


def driver(facts: Facts) -> Finding:
    """The driver runs CUDA 13."""
    source = next(one.driver for one in table().values() if one.vendor == "nvidia")
    floor = int(source.split()[0])
    name, title = "driver", f"driver is r{floor} or newer"
    if facts.wanted.gpus == 0 or facts.wanted.vendor != "nvidia":
        return _skip(name, title, "no NVIDIA GPU is needed")
    if facts.driver is None:
        return Finding(name, title, Status.FAIL, "no driver answers", f"Install the NVIDIA driver r{floor} or newer.")
    branch = re.match(r"\d+", facts.driver)
    if branch is None or int(branch.group(0)) < floor:
        fix = "Update the driver on this node: images and wheels are built for CUDA 13."
        return Finding(name, title, Status.FAIL, facts.driver, fix, source)
    return Finding(name, title, Status.PASS, facts.driver)


def gpu_memory(facts: Facts) -> Finding:
    """Every GPU has free what the engine will ask for."""
    name, title, wanted = "gpu-memory", "GPU memory is free", facts.wanted
    if wanted.gpus == 0 or not facts.gpus:
        return _skip(name, title, "no GPU is needed" if wanted.gpus == 0 else "there is no GPU")
    short = [one for one in facts.gpus if one.free_bytes < wanted.utilization * one.memory_bytes]
    least = min(facts.gpus, key=lambda one: one.free_bytes / one.memory_bytes)
    said = f"least: {format_bytes(least.free_bytes)} of {format_bytes(least.memory_bytes)} on GPU {least.index}"
    if len(facts.gpus) - len(short) < min(wanted.gpus, len(facts.gpus)):  # GPUs that are missing are told above
        need = f"{wanted.utilization:.0%} is asked for"
        fix = "End the processes that hold it (next line), or plan with a lower --utilization."
        source = "github.com/mnmehta/kimi-k3, docs/tp8-pp2-h200-deployment-issues.md, 2026-09-22"
        return Finding(name, title, Status.FAIL, f"{said}; {need}", fix, source)
    return Finding(name, title, Status.PASS, said)


def gpu_processes(facts: Facts) -> Finding:
    """No left-over process holds a GPU."""
    name, title = "gpu-processes", "no other process on the GPUs"
    if facts.wanted.gpus == 0 or not facts.gpus:
        return _skip(name, title, "no GPU is needed" if facts.wanted.gpus == 0 else "there is no GPU")
    if facts.processes is None:
        return _skip(name, title, "the driver does not list processes here (another namespace?)")
    if not facts.processes:
        return Finding(name, title, Status.PASS, "none")
    said = ", ".join(
        f"GPU {one.gpu}: {one.name} (pid {one.pid})"
        + ("" if one.used_bytes is None else f" {format_bytes(one.used_bytes)}")
        for one in facts.processes[:8]
    )
    pids = " ".join(str(pid) for pid in sorted({one.pid for one in facts.processes}))
    fix = f"If they are left over from an earlier start: `k3 down`, or kill {pids}."
    return Finding(name, title, Status.WARN, said, fix)


def nvlink(facts: Facts) -> Finding:
    """NVLink and its fabric are up."""
    name, title, wanted = "nvlink", "NVLink and fabric are up", facts.wanted
    if wanted.gpus < 2 or wanted.vendor != "nvidia" or not facts.gpus:
        return _skip(name, title, "one GPU, or none of NVIDIA, needs no NVLink")
    if facts.links is None:
        return _skip(name, title, "the driver does not tell")
    down = [one for one in facts.links if one.total and one.active < one.total]
    unregistered = [one for one in facts.links if one.fabric not in (None, "completed", "not supported")]
    without = [one for one in facts.links if not one.total]
    fix = "Look at `nvidia-smi nvlink -s`, the service nvidia-fabricmanager, and `dmesg -T | grep -i nvlink`."
    if unregistered:
        said = ", ".join(f"GPU {one.gpu}: fabric {one.fabric}" for one in unregistered)
        return Finding(name, title, Status.FAIL, said, fix)
    if down:
        said = ", ".join(f"GPU {one.gpu}: {one.active} of {one.total} links" for one in down)
        return Finding(name, title, Status.FAIL, said, fix)
    if without:
        slow = "Expect slow exchanges: tensor parallelism over PCIe. Give the process GPUs that are linked."
        return Finding(name, title, Status.WARN, f"{len(without)} GPUs have no NVLink", slow)
    links = {one.active for one in facts.links}
    return Finding(name, title, Status.PASS, f"{'/'.join(map(str, sorted(links)))} links on each GPU")


def imex(facts: Facts) -> Finding:
    """The nodes of a rack can share memory over NVLink."""
    name, title = "imex", "IMEX channels"
    if not facts.wanted.rack:
        return _skip(name, title, "only racks such as GB200 NVL72 need them")
    if facts.imex:
        return Finding(name, title, Status.PASS, "/dev/nvidia-caps-imex-channels is there")
    fix = "Start nvidia-imex on all nodes of the domain, and load the driver with NVreg_CreateImexChannel0=1."
    return Finding(name, title, Status.FAIL, "/dev/nvidia-caps-imex-channels is missing", fix, "docs.nvidia.com, IMEX")


GPU_CHECKS: tuple[Callable[[Facts], Finding], ...] = (gpus, driver, gpu_memory, gpu_processes, nvlink, imex)
