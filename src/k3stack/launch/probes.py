"""Looking at this machine for preflight: disks, limits, port, checkpoint, engine, image. Nothing here judges."""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import shutil
import socket
import subprocess
import time
from pathlib import Path

from k3stack.checkpoint.source import FolderSource, HubSource, open_source
from k3stack.errors import K3Error
from k3stack.files import json_value
from k3stack.hardware.disk import SAMPLE_BYTES, Disk
from k3stack.launch.facts import (
    CheckpointSeen,
    ClockSeen,
    EngineSeen,
    HubSeen,
    ImageSeen,
    LimitsSeen,
    PatchesSeen,
    PortSeen,
    RdmaPort,
    Wanted,
)
from k3stack.ports import holder_of, try_to_listen
from k3stack.recipe.deployment import Deployment

__all__ = [
    "cache_folder",
    "checkpoint_seen",
    "clock_seen",
    "disk_of",
    "engine_seen",
    "file_read_rate",
    "hub_seen",
    "image_seen",
    "limits_seen",
    "patches_seen",
    "port_seen",
    "rdma_ports",
]

_CHUNK = 8 * 2**20
_READ_SECONDS = 3.0


def cache_folder() -> Path:
    """Where the hub's files land, or the nearest folder above it that exists."""
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    while not home.exists() and home != home.parent:
        home = home.parent
    return home


def disk_of(folder: Path, measured: Path | None = None) -> Disk | None:
    """The disk of a folder; with a file to measure, also how fast it comes from the disk."""
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        return None
    rate = None
    if measured is not None:
        try:
            rate = file_read_rate(measured)
        except OSError:
            rate = None
    return Disk(str(folder), usage.total, usage.free, rate)


def file_read_rate(path: Path, sample_bytes: int = SAMPLE_BYTES, seconds: float = _READ_SECONDS) -> float | None:
    """Bytes per second of one stream from this very file, past the page cache; None for a file too small to tell.

    Raises:
        OSError: it cannot be read.
    """
    size = min(path.stat().st_size, sample_bytes)
    if size < _CHUNK:
        return None
    with path.open("rb", buffering=0) as file:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, size, os.POSIX_FADV_DONTNEED)
        buffer = memoryview(bytearray(_CHUNK))
        began, done = time.perf_counter(), 0
        while done < size and time.perf_counter() - began < seconds:
            count = file.readinto(buffer) or 0
            if not count:
                break
            done += count
        return done / (time.perf_counter() - began)


def limits_seen() -> LimitsSeen:
    """Limits of this process. The launcher raises the soft limit of open files, so the hard one counts."""

    def hard(which: int) -> int | None:
        value = resource.getrlimit(which)[1]
        return None if value == resource.RLIM_INFINITY else value

    shm = Path("/dev/shm")
    usage = shutil.disk_usage(shm) if shm.is_dir() else None
    return LimitsSeen(
        hard(resource.RLIMIT_NOFILE),
        hard(resource.RLIMIT_MEMLOCK),
        usage.total if usage else None,
        usage.free if usage else None,
    )


def port_seen(host: str, port: int) -> PortSeen:
    """Whether the port can be listened on, and else who does."""
    error = try_to_listen(host, port)
    return PortSeen(port, error is None, error or "", holder_of(port) if error else "")


def checkpoint_seen(model: str) -> CheckpointSeen | None:
    """What the checkpoint is, from headers of local shards, or from the hub's list of files."""
    if not model:
        return None
    try:
        source = open_source(model)
        if isinstance(source, FolderSource):
            return _folder_seen(source)
        if isinstance(source, HubSource):
            return _hub_seen(source)
    except K3Error as error:
        return CheckpointSeen("other", error=str(error))
    return CheckpointSeen("other", known=False, said=f"{source.name}: nothing to load")


def _folder_seen(source: FolderSource) -> CheckpointSeen:
    from k3stack.checkpoint.inspect import inspect
    from k3stack.checkpoint.scan import Depth
    from k3stack.errors import CheckpointError, ConfigError

    config = source.config()
    size = sum(source.shard_sizes().values()) or None
    kind = config.get("model_type") if isinstance(config, dict) else None
    if kind not in ("kimi_k3", "kimi_k25", "kimi_linear"):
        if not size:
            return CheckpointSeen("folder", error=f"{source.name} holds no *.safetensors file")
        said = f"model type {kind}: k3stack knows only Kimi-K3, so its tensors were not looked at"
        return CheckpointSeen("folder", known=False, said=said, size_bytes=size)
    try:
        report = inspect(source, Depth.HEADERS)
    except (ConfigError, CheckpointError) as error:
        return CheckpointSeen("folder", error=str(error), size_bytes=size)
    faults = tuple(f"{fault.kind}: {fault.where} {fault.what}" for fault in report.faults)
    if not report.shards_found:
        faults = (*faults, "no shard is there")
    said = f"scheme {report.scheme}, {report.shards_found} shards, headers read"
    return CheckpointSeen("folder", said=said, faults=faults, size_bytes=size)


def _hub_seen(source: HubSource) -> CheckpointSeen:
    """The hub's files against the index, and what is in the cache; no shard is transferred."""
    cached = _cached_shards(source.repository)
    if cached is not None and not cached[1]:
        return CheckpointSeen("hub", said=f"{len(cached[0])} shards, all in the cache")
    if not _hub_reachable():
        lacks = "nothing of it is in the cache" if cached is None else f"{len(cached[1])} shards are not in the cache"
        return CheckpointSeen("hub", error=f"{source.repository}: the hub cannot be reached, and {lacks}")
    sizes, index = source.shard_sizes(), source.index()
    wanted = set(index[0].values()) if index else set(sizes)
    faults = tuple(f"missing shard: {name}" for name in sorted(wanted - set(sizes)))
    there = set(cached[0]) if cached else set()
    missing = sum(size for name, size in sizes.items() if name not in there)
    said = f"{len(sizes)} shards on the hub, {len(there)} of them in the cache"
    return CheckpointSeen("hub", said=said, faults=faults, size_bytes=sum(sizes.values()), to_download_bytes=missing)


def _cached_shards(repository: str) -> tuple[list[str], list[str]] | None:
    """The shards that the cached index names: those in the cache and those not; None without an index."""
    from huggingface_hub import try_to_load_from_cache

    from k3stack.checkpoint.source import INDEX

    index = try_to_load_from_cache(repository, INDEX)
    if not isinstance(index, str):
        return None
    try:
        names = sorted(set(json_value(Path(index).read_text())["weight_map"].values()))
    except (OSError, ValueError, KeyError, AttributeError):
        return None
    there = [name for name in names if isinstance(try_to_load_from_cache(repository, name), str)]
    return there, [name for name in names if name not in there]


def _hub_reachable(timeout_s: float = 4.0) -> bool:
    """Whether the hub's host takes a connection; its own client would try for half a minute."""
    from urllib.parse import urlsplit
    from urllib.request import getproxies

    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    if getproxies():
        return True  # only the proxy can tell
    parts = urlsplit(constants.ENDPOINT)
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        socket.create_connection((parts.hostname or "", port), timeout=timeout_s).close()
    except OSError:
        return False
    return True


def hub_seen() -> HubSeen:
    """Whether there is a token, and whether the hub may be asked. The token itself is not kept."""
    from huggingface_hub import constants, get_token

    return HubSeen(get_token() is not None, bool(constants.HF_HUB_OFFLINE))


def engine_seen(deployment: Deployment | None, engine: str, python: str | None, ask: bool) -> EngineSeen:
    """The installed engine's version, and what a parser says of the flags.

    Args:
        deployment: whose flags to read; None for none.
        ask: start the engine's own parser (20 s and more of imports), not only the snapshot of its release.
    """
    from k3stack.engines.installed import find_python
    from k3stack.recipe.asking import check

    found = python or find_python(engine)
    if found is None:
        return EngineSeen(None, "no Python here has it")
    version = _version_in(engine, found)
    if version is None:
        return EngineSeen(None, found)
    if deployment is None:
        return EngineSeen(version, found, error="its flags are not from a recipe; the engine reads them first thing")
    try:
        if ask:
            verdict = check(deployment, python=found)
            read_by, refused = verdict.by, tuple(f"{role}: {said}" for role, said in verdict.errors.items())
        else:
            read_by, refused = _by_snapshot(deployment, version)
    except K3Error as error:
        return EngineSeen(version, found, error=error.what)
    return EngineSeen(version, found, read_by, refused)


def _by_snapshot(deployment: Deployment, version: str) -> tuple[str, tuple[str, ...]]:
    """What the installed release would say, from its snapshot."""
    from k3stack.engines.reading import read
    from k3stack.engines.releases import release
    from k3stack.recipe.asking import engine_words

    taken = release(deployment.engine, version.partition("+")[0])
    refused = []
    for role in deployment.roles:
        if role.name != "router":
            stops = [problem for problem in read(taken, engine_words(role)).problems if problem.stops]
            refused += [f"{role.name}: {problem.what}" for problem in stops]
    return f"the snapshot of {deployment.engine} {taken.version}", tuple(refused)


def _version_in(engine: str, python: str) -> str | None:
    """The version of a package in an environment, without importing it."""
    code = f"from importlib.metadata import version; print(version({engine!r}))"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def patches_seen(wanted: Wanted, version: str | None) -> PatchesSeen | None:
    """What the patches' tables say of this release."""
    if not wanted.patches:
        return None
    from k3stack.patches.listing import known

    if wanted.engine != "vllm" or version is None:
        return PatchesSeen(unknown="the release is not known")
    try:
        listing = known(version.partition("+")[0], os.environ)
    except K3Error as error:
        return PatchesSeen(unknown=error.what)
    titles = {row.number: row.title for row in listing.rows}
    # That this environment has no entry point does not matter: the launcher puts a written folder on the engine's path.
    warnings = tuple(one for one in listing.warnings if not one.startswith("this Python does not offer"))
    return PatchesSeen(tuple(titles[number] for number in listing.cannot), warnings)


_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


def image_seen(name: str | None) -> ImageSeen | None:
    """The image on this machine, without pulling it."""
    if name is None:
        return None
    here = _MACHINES.get(platform.machine(), platform.machine())
    if shutil.which("docker") is None:
        return ImageSeen(name, None, here, "docker is not installed here")
    command = ["docker", "image", "inspect", "--format", "{{.Architecture}}", name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return ImageSeen(name, None, here, f"docker does not answer: {error}")
    if done.returncode == 0:
        return ImageSeen(name, done.stdout.strip(), here)
    if "No such image" in done.stderr:
        return ImageSeen(name, None, here)
    return ImageSeen(name, None, here, (done.stderr.strip().splitlines() or ["docker fails"])[-1])


_TIME_ERROR = 5
_TIMEX_BYTES = 512  # struct timex has 208 bytes on 64-bit Linux


def clock_seen() -> ClockSeen:
    """Whether the kernel holds its clock to be synchronised (adjtimex(2), which changes nothing when asked so)."""
    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    except (OSError, AttributeError):
        return ClockSeen(None)
    return ClockSeen(None if state < 0 else state != _TIME_ERROR)


def rdma_ports() -> tuple[tuple[RdmaPort, ...], bool]:
    """Ports of all RDMA devices, and whether nvidia-peermem is loaded."""
    root, found = Path("/sys/class/infiniband"), []
    for folder in sorted(root.glob("*/ports/*")) if root.is_dir() else ():

        def text(name: str, folder: Path = folder) -> str:
            try:
                return (folder / name).read_text().strip()
            except OSError:
                return "unknown"

        state = text("state").partition(": ")[2] or text("state")
        found.append(RdmaPort(folder.parts[-3], int(folder.name), state, text("link_layer"), text("rate")))
    return tuple(found), Path("/sys/module/nvidia_peermem").is_dir()
