"""The checks of preflight: each a pure function from the facts to one finding."""

from __future__ import annotations

from collections.abc import Callable

from k3stack.launch.checks_gpu import GPU_CHECKS
from k3stack.launch.facts import Facts
from k3stack.launch.findings import Finding, Status
from k3stack.values import GB, GIB, format_bytes

__all__ = ["CHECKS", "run_checks"]

_KERNEL_CACHE_BYTES = 10 * GB
_SHM_ENOUGH_BYTES = 8 * GIB
_SHM_LEAST_BYTES = GIB
_OPEN_FILES_ENOUGH = 65_536
_OPEN_FILES_LEAST = 4_096
_CLOCK_WARN_S, _CLOCK_FAIL_S = 1.0, 30.0
_SLOW_LOAD_S = 45 * 60


def _ok(name: str, title: str, measured: str) -> Finding:
    return Finding(name, title, Status.PASS, measured)


def _skip(name: str, title: str, why: str) -> Finding:
    return Finding(name, title, Status.NOT_APPLICABLE, why)


def checkpoint(facts: Facts) -> Finding:
    """The checkpoint is complete."""
    name, title, seen = "checkpoint", "checkpoint is complete", facts.checkpoint
    if seen is None:
        return _skip(name, title, "no checkpoint was named")
    if seen.error is not None:
        fix = f"Run `k3 inspect {facts.wanted.model}`."
        return Finding(name, title, Status.FAIL, seen.error, fix)
    if seen.faults:
        shown = "; ".join(seen.faults[:3]) + (f"; {len(seen.faults) - 3} more" if len(seen.faults) > 3 else "")
        fix = f"`k3 inspect {facts.wanted.model}` lists every fault; fetch the named files again."
        return Finding(name, title, Status.FAIL, shown, fix)
    if not seen.known:
        return _skip(name, title, seen.said)
    return _ok(name, title, seen.said)


def disk_space(facts: Facts) -> Finding:
    """There is room for what is downloaded and compiled."""
    name, title, disk = "disk-space", "disk has room", facts.cache_disk
    if disk is None:
        return _skip(name, title, "the disk could not be looked at")
    download = facts.checkpoint.to_download_bytes if facts.checkpoint else 0
    need = (download or 0) + _KERNEL_CACHE_BYTES
    said = f"{format_bytes(disk.free_bytes)} free at {disk.folder}"
    if download:
        said += f", {format_bytes(download)} to download"
    if disk.free_bytes < need:
        status = Status.FAIL if download or disk.free_bytes < GB else Status.WARN
        fix = f"Free space, or set HF_HOME to a disk with {format_bytes(need)} (10 GB are for compiled kernels)."
        return Finding(name, title, status, said, fix)
    return _ok(name, title, said)


def read_rate(facts: Facts) -> Finding:
    """How fast the weights come from their disk, and what that means for the start."""
    name, title, disk = "read-rate", "disk reads fast enough", facts.weights_disk
    if disk is None or disk.read_rate is None:
        return _skip(name, title, "not measured: no shard on a local disk")
    said = f"{format_bytes(round(disk.read_rate))}/s in one stream at {disk.folder} (measured)"
    size = facts.wanted.model_bytes
    if size is None:
        return _ok(name, title, said)
    seconds = size / disk.read_rate
    said += f": {format_bytes(size)} load in {seconds / 60:.1f} minutes"
    if seconds > _SLOW_LOAD_S:
        fix = (
            "Put the weights on a local NVMe disk; a network disk made 8 minutes 95 in one report. "
            "Set VLLM_ENGINE_READY_TIMEOUT_S above the load time."
        )
        return Finding(name, title, Status.WARN, said, fix, "github.com/AMD-AGI/Infera, deploy.yaml, 2026-09-22")
    return _ok(name, title, said)


def host_memory(facts: Facts) -> Finding:
    """The host has memory to stage weights through."""
    name, title = "host-memory", "host memory"
    if not facts.ram_bytes:
        return _skip(name, title, "not reported")
    said = f"{format_bytes(facts.ram_free_bytes)} free of {format_bytes(facts.ram_bytes)}"
    need = facts.wanted.gpus * 16 * GB
    if facts.ram_free_bytes < need:
        fix = "Give the container more memory: each rank stages shards of 16 GB and more through the host."
        return Finding(name, title, Status.WARN, said, fix)
    return _ok(name, title, said)


def shared_memory(facts: Facts) -> Finding:
    """/dev/shm is large enough for the ranks."""
    name, title = "shared-memory", "/dev/shm is large enough"
    if facts.wanted.image is not None:
        return _skip(name, title, "the container is started with --ipc host --shm-size 64g")
    if facts.limits is None or facts.limits.shm_bytes is None:
        return _skip(name, title, "there is no /dev/shm here")
    size, free = facts.limits.shm_bytes, facts.limits.shm_free_bytes or 0
    said = f"{format_bytes(free)} free of {format_bytes(size)}"
    if facts.wanted.gpus <= 1:
        return _ok(name, title, said)
    fix = "Start the container with --ipc host or --shm-size 64g; clear /dev/shm of files that nobody uses."
    source = "docs.nvidia.com, NCCL troubleshooting, 2026-11-29"
    if free < _SHM_LEAST_BYTES:
        return Finding(name, title, Status.FAIL, said, fix, source)
    if free < _SHM_ENOUGH_BYTES:
        return Finding(name, title, Status.WARN, said, fix, source)
    return _ok(name, title, said)


def open_files(facts: Facts) -> Finding:
    """Enough files may be open."""
    name, title = "open-files", "limit of open files"
    if facts.limits is None:
        return _skip(name, title, "not looked at")
    limit = facts.limits.open_files
    if limit is None or limit >= _OPEN_FILES_ENOUGH:
        return _ok(name, title, "no limit" if limit is None else f"{limit:,}")
    status = Status.FAIL if limit < _OPEN_FILES_LEAST else Status.WARN
    return Finding(name, title, status, f"{limit:,}", "Raise it: ulimit -n 65536 (docker, --ulimit nofile=65536).")


def locked_memory(facts: Facts) -> Finding:
    """RDMA may lock memory."""
    name, title = "locked-memory", "limit of locked memory"
    if facts.wanted.nodes < 2 or facts.wanted.image is not None or facts.limits is None:
        return _skip(name, title, "only plain processes on several nodes lock memory for RDMA")
    limit = facts.limits.locked_bytes
    if limit is None:
        return _ok(name, title, "no limit")
    fix = "Set it to unlimited: ulimit -l unlimited, or LimitMEMLOCK=infinity in the service."
    return Finding(name, title, Status.WARN, format_bytes(limit), fix, "docs.nvidia.com, NCCL troubleshooting")


def port(facts: Facts) -> Finding:
    """The port is free."""
    name, seen = "port", facts.port
    if seen is None:
        return _skip(name, "port is free", "not looked at")
    title = f"port {seen.port} is free"
    if seen.free:
        return _ok(name, title, f"{facts.wanted.host} can listen on it")
    said = seen.error + (f"; held by {seen.holder}" if seen.holder else "")
    return Finding(name, title, Status.FAIL, said, "Stop that process (`k3 down`, if it is k3stack's), or take --port.")


def engine(facts: Facts) -> Finding:
    """The engine is there, in the version that the commands are for."""
    name, title, seen, wanted = "engine", f"{facts.wanted.engine} is installed", facts.engine, facts.wanted
    if wanted.image is not None or wanted.engine == "reference" or seen is None:
        return _skip(name, title, "it comes in the image" if wanted.image else "it is part of k3stack")
    if seen.version is None:
        fix = f"Install {wanted.engine}, name the Python that has it with --python, or use --docker."
        return Finding(name, title, Status.FAIL, seen.error or f"not found ({seen.where})", fix)
    said = f"{seen.version} in {seen.where}"
    if wanted.version is not None and seen.version.partition("+")[0] != wanted.version:
        fix = f"Install {wanted.engine}=={wanted.version}, or plan for this one with --engine-version."
        return Finding(name, title, Status.WARN, f"{said}; the commands are for {wanted.version}", fix)
    return _ok(name, title, said)


def flags(facts: Facts) -> Finding:
    """The engine's parser takes the command."""
    name, title, seen = "flags", "the engine takes every flag", facts.engine
    if seen is None or not seen.read_by:
        return _skip(name, title, (seen.error if seen else None) or "no parser was asked")
    if seen.refused:
        fix = "Plan for the release that is installed: --engine-version."
        return Finding(name, title, Status.FAIL, f"{'; '.join(seen.refused)} ({seen.read_by})", fix)
    return _ok(name, title, f"read by {seen.read_by}")


def patches(facts: Facts) -> Finding:
    """The runtime patches that this release needs are there."""
    name, title, wanted, seen = "patches", "runtime patches", facts.wanted, facts.patches
    if not wanted.patches:
        return _skip(name, title, "none is needed for these choices")
    names = ", ".join(wanted.patches)
    if seen is None or seen.unknown is not None:
        why = "not looked at" if seen is None else str(seen.unknown)
        return Finding(name, title, Status.WARN, f"{names}: {why}", "Run `k3 patches probe --python PYTHON`.")
    if seen.cannot:
        fix = "Take a release that the patches know: `k3 patches`."
        return Finding(name, title, Status.FAIL, f"cannot apply: {', '.join(seen.cannot)}", fix)
    if seen.warnings:
        return Finding(name, title, Status.WARN, "; ".join(seen.warnings), "Correct the environment of the server.")
    return _ok(name, title, f"{names}: written at the start, and on the engine's path")


def image(facts: Facts) -> Finding:
    """The image is built for this processor."""
    name, title, seen = "image", "image is for this machine", facts.image
    if seen is None:
        return _skip(name, title, "no container is used")
    if seen.error is not None:
        return Finding(name, title, Status.FAIL, seen.error, "Start the Docker daemon, or leave --docker out.")
    if seen.architecture is None:
        fix = f"Pull it before: docker pull {seen.name} (tens of GB)."
        return Finding(name, title, Status.WARN, f"{seen.name} is not on this machine yet", fix)
    if seen.architecture != seen.host_architecture:
        fix = f"Pull the one for this machine: docker pull --platform linux/{seen.host_architecture} {seen.name}."
        said = f"it is for {seen.architecture}, this machine is {seen.host_architecture}"
        return Finding(name, title, Status.FAIL, said, fix)
    return _ok(name, title, f"{seen.name}, {seen.architecture}")


def hub(facts: Facts) -> Finding:
    """The hub lets us in, where something must be downloaded."""
    name, title, seen = "hub", "access to the hub", facts.hub
    kind = facts.checkpoint.kind if facts.checkpoint else ""
    if seen is None or kind != "hub":
        return _skip(name, title, "nothing is downloaded")
    token = "a token is set" if seen.token else "no token is set"
    download = facts.checkpoint.to_download_bytes if facts.checkpoint else 0
    if seen.offline and download != 0:
        fix = "Unset HF_HUB_OFFLINE, or download first: hf download."
        return Finding(name, title, Status.FAIL, f"HF_HUB_OFFLINE is set and files are missing; {token}", fix)
    if not seen.token:
        fix = "Public repositories work without, slower and with limits; gated ones need HF_TOKEN."
        return Finding(name, title, Status.WARN, token, fix)
    return _ok(name, title, token)


def clock(facts: Facts) -> Finding:
    """The clocks of the nodes agree."""
    name, title = "clock", "clock"
    offset = facts.head.clock_offset_s if facts.head else None
    if offset is not None:
        said = f"{offset:+.3f} s against the head"
        fix = "Run chrony or systemd-timesyncd on all nodes: logs and leases of several nodes are compared by time."
        if abs(offset) > _CLOCK_WARN_S:
            status = Status.FAIL if abs(offset) > _CLOCK_FAIL_S else Status.WARN
            return Finding(name, title, status, said, fix)
        return _ok(name, title, said)
    if facts.wanted.nodes < 2:
        return _skip(name, title, "one node has one clock")
    if facts.clock is None or facts.clock.synchronised is None:
        return _skip(name, title, "the kernel does not say whether it is synchronised")
    if not facts.clock.synchronised:
        fix = "Run chrony or systemd-timesyncd; `k3 preflight --head HOST:PORT` measures the difference."
        return Finding(name, title, Status.WARN, "not synchronised, says the kernel", fix)
    return _ok(name, title, "synchronised, says the kernel")


def head(facts: Facts) -> Finding:
    """The head can be reached from here."""
    name, title, seen = "head", "the head is reachable", facts.head
    if seen is None:
        if facts.wanted.nodes > 1:
            fix = "On rank 0 run `k3 preflight --wait-for N`, on the others `k3 preflight --head HOST:PORT`."
            return Finding(name, title, Status.WARN, "not tried", fix)
        return _skip(name, title, "there is one node")
    if not seen.reachable:
        fix = (
            "Open the port between the nodes, use the address of the right interface (not fe80:: and not 127.0.0.1), "
            "and start the check on the head first."
        )
        source = "github.com/mnmehta/kimi-k3, docs/tp16-h200-deployment-issues.md, 2026-09-22"
        return Finding(name, title, Status.FAIL, f"{seen.address}: {seen.error}", fix, source)
    trip = "" if seen.round_trip_s is None else f", round trip {seen.round_trip_s * 1e3:.2f} ms"
    return _ok(name, title, f"{seen.address} answers{trip}")


def rdma(facts: Facts) -> Finding:
    """There are RDMA ports that are up."""
    name, title = "rdma", "RDMA devices"
    if facts.wanted.nodes < 2 or facts.rdma is None:
        return _skip(name, title, "only several nodes need them")
    active = [one for one in facts.rdma if one.state == "ACTIVE"]
    fix = "Install the network driver, bind /dev/infiniband into the container, and bring the ports up (ibstat)."
    source = "github.com/llm-jp/abci-kimi-k3-installer, 2026-09-22"
    if not active:
        said = f"{len(facts.rdma)} ports, none active" if facts.rdma else "none: NCCL would fall back to TCP"
        return Finding(name, title, Status.WARN, said, fix, source)
    said = ", ".join(f"{one.device}:{one.port} {one.link_layer} {one.rate}" for one in active)
    if facts.peermem is False and facts.wanted.vendor == "nvidia":
        peer = "Load nvidia-peermem, or use a kernel with dma-buf; else set NCCL_NET_GDR_LEVEL=0."
        return Finding(name, title, Status.WARN, f"{said}; nvidia-peermem is not loaded", peer, source)
    return _ok(name, title, said)


CHECKS: tuple[Callable[[Facts], Finding], ...] = (
    *GPU_CHECKS,
    host_memory,
    shared_memory,
    open_files,
    locked_memory,
    port,
    checkpoint,
    disk_space,
    read_rate,
    engine,
    flags,
    patches,
    image,
    hub,
    clock,
    head,
    rdma,
)
"""Every check, in the order in which they are told."""


def run_checks(facts: Facts) -> tuple[Finding, ...]:
    """Every finding about these facts."""
    return tuple(check(facts) for check in CHECKS)
