"""A deployment as a docker command."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from k3stack.recipe.deployment import Deployment, Role

__all__ = ["docker_run"]

_PATCH_FOLDER = "/k3-patches"
_MODEL_FOLDER = "/model"


def docker_run(deployment: Deployment) -> str:
    """A shell script with one `docker run` per role; secrets are references to the environment."""
    lines = ["#!/bin/sh", *(f"# {note}" for note in deployment.notes), "set -eu"]
    for role in deployment.roles:
        words = " \\\n  ".join(_words(deployment, role))
        lines.append(words)
    return "\n".join(lines) + "\n"


def _words(deployment: Deployment, role: Role) -> Iterator[str]:
    local = Path(role.command.model).is_dir()
    yield "docker run --rm --gpus all --ipc host --shm-size 64g"
    yield f"--publish 127.0.0.1:{role.port}:{role.port}"
    yield "--env HF_TOKEN"
    for variable in role.command.environment:
        yield f"--env {shlex.quote(f'{variable.name}={variable.value}')}"
    if deployment.patches:
        yield f'--volume "${{K3_PATCH_DIR:?}}:{_PATCH_FOLDER}:ro" --env PYTHONPATH={_PATCH_FOLDER}'
    if local:
        yield f"--volume {shlex.quote(f'{Path(role.command.model).resolve()}:{_MODEL_FOLDER}:ro')}"
    else:
        yield '--volume "${HF_HOME:-$HOME/.cache/huggingface}:/root/.cache/huggingface"'
    yield shlex.quote(deployment.image)
    yield _MODEL_FOLDER if local else shlex.quote(role.command.model)
    for flag in role.command.flags:
        yield shlex.join(flag.words())
