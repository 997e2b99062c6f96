"""Preflight: everything that can be known to go wrong, in seconds, before anything is loaded."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from k3stack.hardware.disk import Disk
from k3stack.hardware.machine import Machine, look
from k3stack.launch import probes, probes_gpu
from k3stack.launch.checks import run_checks
from k3stack.launch.chosen import Asked, Chosen
from k3stack.launch.facts import Facts, GpuLinks, GpuProcess, Wanted
from k3stack.launch.findings import Findings
from k3stack.launch.rendezvous import reach
from k3stack.recipe.choice import UTILIZATION_STANDARD
from k3stack.recipe.deployment import Deployment, Role

DEFAULT_PORT = 8000

_Seen = TypeVar("_Seen", GpuLinks, GpuProcess)

__all__ = ["observe", "preflight", "wanted_for", "wanted_of"]


def wanted_for(asked: Asked, chosen: Chosen, image: bool = False, head: str | None = None) -> Wanted:
    """What is about to be started on this node, whichever engine it is."""
    if chosen.deployment is not None:
        share = asked.utilization or UTILIZATION_STANDARD[chosen.engine]
        found = wanted_of(chosen.deployment, share, image, head)
        return replace(found, port=asked.port or found.port, host=asked.host)
    model = asked.where if Path(asked.where).is_dir() else chosen.model
    port = asked.port or DEFAULT_PORT
    return Wanted(engine=chosen.engine, model=model, host=asked.host, port=port, head=head)


def wanted_of(deployment: Deployment, utilization: float, image: bool = False, head: str | None = None) -> Wanted:
    """What a deployment asks of one of its nodes."""
    role = next(role for role in deployment.roles if role.name != "router")
    host = str(role.command.flag("host") or "127.0.0.1")
    return Wanted(
        engine=deployment.engine,
        version=None if deployment.version == "kimi-k3" else deployment.version,
        gpu=deployment.gpu,
        gpus=role.gpus_per_node,
        vendor=deployment.vendor,
        nodes=sum(one.nodes for one in deployment.roles if one.name != "router"),
        utilization=_share(role, utilization),
        model=role.command.model,
        host="0.0.0.0" if host.startswith("{") else host,
        port=deployment.endpoint.port,
        image=deployment.pinned_image if image else None,
        patches=deployment.patches,
        rack=deployment.rack,
        head=head,
    )


def _share(role: Role, usual: float) -> float:
    """The share of memory that a role's command says."""
    said = role.command.flag("gpu-memory-utilization") or role.command.flag("mem-fraction-static")
    return float(said) if said else usual


def preflight(
    wanted: Wanted, deployment: Deployment | None = None, python: str | None = None, ask: bool = False
) -> Findings:
    """Look at this machine and judge it for what is wanted.

    Args:
        deployment: whose flags are read.
        python: of the engine's environment.
        ask: let the engine's own parser read the flags; takes as long as its imports.
    """
    began = time.perf_counter()
    facts = observe(wanted, deployment, python, ask)
    return Findings("preflight", run_checks(facts), time.perf_counter() - began)


def observe(
    wanted: Wanted, deployment: Deployment | None = None, python: str | None = None, ask: bool = False
) -> Facts:
    """Everything preflight knows; the slow looks run side by side."""
    with ThreadPoolExecutor(max_workers=4) as pool:
        machine = pool.submit(look, (), False)
        checkpoint = pool.submit(probes.checkpoint_seen, wanted.model)
        weights = pool.submit(_weights_disk, wanted.model)
        engine = pool.submit(probes.engine_seen, deployment, wanted.engine, python, ask) if _asks(wanted) else None
        image = pool.submit(probes.image_seen, wanted.image)
        head = pool.submit(reach, wanted.head) if wanted.head else None
        processes, links = pool.submit(probes_gpu.gpu_processes), pool.submit(probes_gpu.gpu_links)
        seen = machine.result()
        found = checkpoint.result()
        installed = engine.result() if engine else None
        ports, peermem = probes.rdma_ports()
        return Facts(
            wanted=wanted if found is None else replace(wanted, model_bytes=wanted.model_bytes or found.size_bytes),
            gpus=seen.gpus,
            driver=seen.driver,
            processes=_of(seen, processes.result()),
            links=_of(seen, links.result()),
            imex=probes_gpu.imex_channels(),
            ram_bytes=seen.ram_bytes,
            ram_free_bytes=seen.ram_free_bytes,
            weights_disk=weights.result(),
            cache_disk=probes.disk_of(probes.cache_folder()),
            limits=probes.limits_seen(),
            port=probes.port_seen(wanted.host, wanted.port),
            checkpoint=found,
            engine=installed,
            patches=probes.patches_seen(wanted, installed.version if installed else wanted.version),
            image=image.result(),
            hub=probes.hub_seen() if found is not None and found.kind == "hub" else None,
            clock=probes.clock_seen(),
            head=head.result() if head else None,
            rdma=ports,
            peermem=peermem,
        )


def _of(machine: Machine, seen: tuple[_Seen, ...] | None) -> tuple[_Seen, ...] | None:
    """What is of the GPUs that may be used; a GPU that could not be told is kept."""
    usable = {gpu.index for gpu in machine.gpus}
    return None if seen is None else tuple(one for one in seen if one.gpu in usable or one.gpu < 0)


def _asks(wanted: Wanted) -> bool:
    """Whether an engine must be installed here."""
    return wanted.image is None and wanted.engine != "reference"


def _weights_disk(model: str) -> Disk | None:
    """The disk that the weights lie on, its read rate measured on the largest shard."""
    folder = Path(model)
    if not model or not folder.is_dir():
        return None
    shards = sorted(folder.glob("*.safetensors"), key=lambda path: path.stat().st_size)
    return probes.disk_of(folder, shards[-1] if shards else None)
