"""A deployment as a SkyPilot task: one task over all nodes, which share roles out by their rank."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from k3stack.errors import NotKnownError
from k3stack.recipe.deployment import Deployment, Role
from k3stack.recipe.render.shell import render as shell
from k3stack.recipe.render.yaml_text import yaml_documents

__all__ = ["NAMES", "render"]

NAMES = {"h100": "H100", "h200": "H200", "b200": "B200", "b300": "B300", "gb200": "GB200", "gb300": "GB300"}
"""SkyPilot's names of the accelerators."""

_END = "K3_SCRIPT_END"


def render(deployment: Deployment) -> str:
    """A task for `sky launch`.

    Raises:
        NotKnownError: SkyPilot has no name for this GPU.
    """
    if deployment.gpu not in NAMES:
        raise NotKnownError(f"SkyPilot has no name for {deployment.gpu}", where="--format", hint="Use another format.")
    engines = [role for role in deployment.roles if role.name != "router"]
    per_node = max(role.gpus_per_node for role in engines)
    task: dict[str, Any] = {
        "name": "k3",
        "num_nodes": sum(role.nodes for role in engines),
        "resources": {
            "accelerators": f"{NAMES[deployment.gpu]}:{per_node}",
            "image_id": f"docker:{deployment.pinned_image}",
            "disk_size": 2500,
        },
        "secrets": {"HF_TOKEN": None},
        "run": _run(deployment, engines),
    }
    if deployment.patches:
        task["file_mounts"] = {"/k3-patches": "./k3-patches"}
    return yaml_documents((*deployment.notes, *_how(deployment)), task)


def _how(deployment: Deployment) -> Iterator[str]:
    yield "Start: sky launch --secret HF_TOKEN THIS-FILE. No port is opened: reach it with"
    yield f"ssh -L {deployment.endpoint.port}:127.0.0.1:{deployment.endpoint.port} CLUSTER."
    if deployment.patches:
        yield "Put the runtime patches into ./k3-patches beside this file."


def _run(deployment: Deployment, engines: list[Role]) -> str:
    lines = [f"cat > start.sh <<'{_END}'", shell(deployment).rstrip("\n"), _END]
    if deployment.patches:
        lines.append("export K3_PATCH_DIR=/k3-patches")
    lines += [
        'node() { echo "$SKYPILOT_NODE_IPS" | sed -n "$(($1 + 1))p"; }',
        'K3_ADDRESS=$(node "$SKYPILOT_NODE_RANK")',
    ]
    lines.append("export K3_ADDRESS")
    first = 0
    for role in engines:
        end = first + role.nodes
        lines.append(f'if [ "$SKYPILOT_NODE_RANK" -ge {first} ] && [ "$SKYPILOT_NODE_RANK" -lt {end} ]; then')
        lines += [f"  K3_HEAD=$(node {first})", "  export K3_HEAD"]
        rank = "$SKYPILOT_NODE_RANK" if first == 0 else f"$((SKYPILOT_NODE_RANK - {first}))"
        lines += [f'  sh start.sh {role.name} "{rank}" &', "fi"]
        first = end
    if deployment.endpoint.name == "router":
        lines += _router(deployment, *engines)
    return "\n".join([*lines, "wait"]) + "\n"


def _router(deployment: Deployment, prefill: Role, decode: Role) -> Iterator[str]:
    yield 'if [ "$SKYPILOT_NODE_RANK" -eq 0 ]; then'
    yield "  K3_PREFILL=$(node 0)"
    yield "  export K3_PREFILL"
    for door in range(decode.doors):
        yield f"  K3_DECODE_{door}=$(node {prefill.nodes + door})"
        yield f"  export K3_DECODE_{door}"
    if deployment.endpoint.image:
        package = (deployment.endpoint.command.image_program or ("", ""))[1]
        yield f"  python3 -m venv .router && .router/bin/pip install --quiet {package}"
        yield '  export PATH="$PWD/.router/bin:$PATH"'
    yield "  sh start.sh router &"
    yield "fi"
