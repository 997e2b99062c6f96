"""A deployment as a compose file. Compose runs on one host: for several nodes, every host runs its own profile."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from k3stack.recipe.deployment import Deployment, Role
from k3stack.recipe.render.docker import MODEL_FOLDER
from k3stack.recipe.render.words import PATCH_FOLDER, listening
from k3stack.recipe.render.yaml_text import yaml_documents

__all__ = ["render"]

_PLACE = re.compile(r"\{(rank|head|self|dp_start|listen|prefill|decode\d+)\}")


def render(deployment: Deployment) -> str:
    """compose.yaml; `${...}` is filled by docker compose from the environment or from .env beside it."""
    services: dict[str, Any] = {}
    for role in deployment.roles:
        services[role.name] = _service(deployment, role, worker=False)
        if role.nodes > 1:
            services[f"{role.name}-worker"] = _service(deployment, role, worker=True)
    return yaml_documents((*deployment.notes, *_how(deployment)), {"name": "k3", "services": services})


def _how(deployment: Deployment) -> Iterator[str]:
    if not deployment.several_nodes:
        yield "Start: docker compose up."
        return
    yield "On each node: docker compose --profile ROLE up, with ROLE-worker on ranks above 0."
    yield "Set K3_HEAD (address of rank 0 of the role), K3_ADDRESS (this node), K3_RANK (from 1) there or in .env."


def _service(deployment: Deployment, role: Role, worker: bool) -> dict[str, Any]:
    engine = role.name != "router"
    local = bool(role.command.model) and Path(role.command.model).is_dir()
    words = role.command.words(model=MODEL_FOLDER if local else None, worker=worker, in_image=True)
    several = deployment.several_nodes
    if several:
        words = listening(deployment, role, words)
    filled = _places(role, worker)
    service: dict[str, Any] = {
        "image": role.image or deployment.pinned_image,
        "command": [_fill(text, filled) for text in words],
        "restart": "unless-stopped",
    }
    if several:
        service["profiles"] = [f"{role.name}-worker" if worker else role.name]
        service["network_mode"] = "host"
    else:
        service["ports"] = [f"127.0.0.1:{role.port}:{role.port}"]
    if not engine:
        return service
    service |= {"ipc": "host", "shm_size": "64g", "environment": _environment(deployment, role, filled)}
    service["volumes"] = list(_volumes(deployment, role, local))
    if several:
        service |= {"ulimits": {"memlock": -1}, "cap_add": ["IPC_LOCK"]}
        service["devices"] = _devices("/dev/infiniband", *_imex(deployment))
    _hardware(deployment, service)
    if not worker:
        service["healthcheck"] = {
            "test": ["CMD", "curl", "-fsS", f"http://{_address(role)}:{role.port}/health"],
            "interval": "30s",
            "timeout": "10s",
            "retries": 3,
            "start_period": "120m",
        }
    return service


def _address(role: Role) -> str:
    return "${K3_ADDRESS:?this node}" if role.command.flag("host") == "{self}" else "127.0.0.1"


def _environment(deployment: Deployment, role: Role, filled: dict[str, str]) -> dict[str, str | None]:
    found: dict[str, str | None] = {"HF_TOKEN": None}
    if deployment.several_nodes:
        found |= {"NCCL_SOCKET_IFNAME": None, "GLOO_SOCKET_IFNAME": None}
    found |= {variable.name: _fill(variable.value, filled) for variable in role.command.environment}
    if deployment.patches:
        found["PYTHONPATH"] = PATCH_FOLDER
    return found


def _volumes(deployment: Deployment, role: Role, local: bool) -> Iterator[str]:
    if local:
        yield f"{Path(role.command.model).resolve()}:{MODEL_FOLDER}:ro"
    else:
        yield "${HF_HOME:-$HOME/.cache/huggingface}:/root/.cache/huggingface"
    if deployment.patches:
        yield f"${{K3_PATCH_DIR:?the folder of the runtime patches}}:{PATCH_FOLDER}:ro"


def _imex(deployment: Deployment) -> list[str]:
    return ["/dev/nvidia-caps-imex-channels"] if deployment.rack else []


def _devices(*paths: str) -> list[str]:
    """Devices under the same name inside."""
    return [f"{path}:{path}" for path in paths]


def _hardware(deployment: Deployment, service: dict[str, Any]) -> None:
    if deployment.vendor == "amd":
        service["devices"] = [*service.get("devices", []), *_devices("/dev/kfd", "/dev/dri")]
        service |= {"group_add": ["video"], "cap_add": [*service.get("cap_add", []), "SYS_PTRACE"]}
        service["security_opt"] = ["seccomp:unconfined"]
        return
    reserved = {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
    service["deploy"] = {"resources": {"reservations": {"devices": [reserved]}}}


def _places(role: Role, worker: bool) -> dict[str, str]:
    start = f"${{K3_DP_START:?K3_RANK times {role.local_replicas}}}"
    return {
        "rank": "${K3_RANK:?from 1}" if worker else "0",
        "dp_start": start if worker else "0",
        "head": "${K3_HEAD:?address of rank 0}",
        "self": "${K3_ADDRESS:?address of this node}",
        "listen": "${K3_LISTEN:-127.0.0.1}",
        "prefill": "${K3_PREFILL:?address of prefill rank 0}",
        **{f"decode{door}": f"${{K3_DECODE_{door}:?address of decode node {door}}}" for door in range(64)},
    }


def _fill(text: str, filled: dict[str, str]) -> str:
    parts = _PLACE.split(text)
    return "".join(filled[part] if index % 2 else part.replace("$", "$$") for index, part in enumerate(parts))
