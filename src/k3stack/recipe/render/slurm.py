"""A deployment as an sbatch script: it writes the shell script beside itself and starts one task on every node."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from k3stack.recipe.deployment import Deployment, Role
from k3stack.recipe.render.shell import render as shell

__all__ = ["render"]

_END = "K3_SCRIPT_END"


def render(deployment: Deployment) -> str:
    """A script for `sbatch`; containers need pyxis, K3_BARE=1 runs an engine that the nodes have installed."""
    engines = [role for role in deployment.roles if role.name != "router"]
    nodes = sum(role.nodes for role in engines)
    lines = [
        "#!/bin/bash",
        "#SBATCH --job-name=k3",
        f"#SBATCH --nodes={nodes}",
        "#SBATCH --ntasks-per-node=1",
        f"#SBATCH --gpus-per-node={max(role.gpus_per_node for role in engines)}",
        "#SBATCH --exclusive",
        "#SBATCH --time=24:00:00",
        *(f"# {note}" for note in deployment.notes),
        *([f"# The image's digest was {deployment.digest}; pyxis takes the tag."] if deployment.digest else []),
        "# Containers are started by pyxis; with K3_BARE=1 the nodes' own engine is used.",
        "set -euo pipefail",
        'folder="$SLURM_SUBMIT_DIR/k3-$SLURM_JOB_ID"',
        'mkdir -p "$folder"',
        f"cat > \"$folder/start.sh\" <<'{_END}'",
        shell(deployment).rstrip("\n"),
        _END,
        'mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")',
        'address() { srun --overlap --nodes=1 --ntasks=1 --nodelist="$1" hostname -I | cut -d" " -f1; }',
        'cache="${HF_HOME:-$HOME/.cache/huggingface}"',
        'mounts="$folder:$folder,$cache:/root/.cache/huggingface${K3_PATCH_DIR:+,$K3_PATCH_DIR:$K3_PATCH_DIR}"',
    ]
    first = 0
    for role in engines:
        lines += _role(deployment, role, first)
        first += role.nodes
    if deployment.endpoint.name == "router":
        lines += _router(deployment, engines)
    return "\n".join([*lines, "wait"]) + "\n"


def _container(role: Role, deployment: Deployment) -> str:
    image = role.image or deployment.image
    registry, _, rest = image.partition("/")
    named = f"{registry}#{rest}" if "." in registry else image  # pyxis' way of naming a registry
    return (
        f'container=(--container-image={shlex.quote(named)} --container-mounts="$mounts")\n'
        'if [ -n "${K3_BARE:-}" ]; then container=(); fi'
    )


def _role(deployment: Deployment, role: Role, first: int) -> Iterator[str]:
    yield _container(role, deployment)
    yield f'K3_HEAD=$(address "${{nodes[{first}]}}")'
    yield "export K3_HEAD"
    names = '"$(IFS=,; echo "${nodes[*]:' + f"{first}:{role.nodes}" + '}")"'
    yield f"srun --overlap --nodes={role.nodes} --ntasks={role.nodes} --nodelist={names} \\"
    yield f'  "${{container[@]}}" sh "$folder/start.sh" {role.name} &'


def _router(deployment: Deployment, engines: list[Role]) -> Iterator[str]:
    router = deployment.endpoint
    prefill, decode = engines
    yield 'K3_PREFILL=$(address "${nodes[0]}")'
    yield "export K3_PREFILL"
    for door in range(decode.doors):
        yield f'K3_DECODE_{door}=$(address "${{nodes[{prefill.nodes + door}]}}")'
        yield f"export K3_DECODE_{door}"
    yield _container(router, deployment)
    yield 'srun --overlap --nodes=1 --ntasks=1 --gpus=0 --nodelist="${nodes[0]}" \\'
    yield '  "${container[@]}" sh "$folder/start.sh" router &'
