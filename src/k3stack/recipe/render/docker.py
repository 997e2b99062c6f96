"""A deployment as a shell script of docker commands."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from k3stack.recipe.deployment import Deployment, Role
from k3stack.recipe.render.script import script
from k3stack.recipe.render.words import PATCH_FOLDER, join, listening, places, word

__all__ = ["MODEL_FOLDER", "render"]

MODEL_FOLDER = "/model"


def render(deployment: Deployment) -> str:
    """A POSIX shell script with one `docker run` for each role; secrets are references to the environment."""
    return script(deployment, _role, '"$@"')


def _role(deployment: Deployment, role: Role) -> Iterator[str]:
    yield "set -- docker run --rm \\"
    options = list(_options(deployment, role))
    yield from (f"    {option} \\" for option in options)
    image = role.image or deployment.pinned_image
    local = _is_local(role)
    words = role.command.words(model=MODEL_FOLDER if local else None, in_image=True)
    if deployment.several_nodes:
        words = listening(deployment, role, words)
    yield "    " + join([image, *words], places(role), indent="      ")


def _is_local(role: Role) -> bool:
    return bool(role.command.model) and Path(role.command.model).is_dir()


def _options(deployment: Deployment, role: Role) -> Iterator[str]:
    engine = role.name != "router"
    if engine:
        yield from _hardware(deployment)
        yield "--ipc host --shm-size 64g"
    if deployment.several_nodes:
        yield "--network host"
        if engine:
            yield "--ulimit memlock=-1 --cap-add IPC_LOCK --device /dev/infiniband"
            yield "--env NCCL_SOCKET_IFNAME --env GLOO_SOCKET_IFNAME"
    else:
        yield f"--publish 127.0.0.1:{role.port}:{role.port}"
    if not engine:
        return
    yield "--env HF_TOKEN"
    filled = places(role)
    for variable in role.command.environment:
        yield f"--env {word(f'{variable.name}={variable.value}', filled)}"
    if deployment.patches:
        yield f'--volume "${{K3_PATCH_DIR:?}}:{PATCH_FOLDER}:ro" --env PYTHONPATH={PATCH_FOLDER}'
    if _is_local(role):
        yield f"--volume {shlex.quote(f'{Path(role.command.model).resolve()}:{MODEL_FOLDER}:ro')}"
    else:
        yield '--volume "${HF_HOME:-$HOME/.cache/huggingface}:/root/.cache/huggingface"'


def _hardware(deployment: Deployment) -> Iterator[str]:
    if deployment.vendor == "amd":
        yield "--device /dev/kfd --device /dev/dri --group-add video"
        yield "--cap-add SYS_PTRACE --security-opt seccomp=unconfined"
        return
    yield "--gpus all"
    if deployment.rack:
        yield "--device /dev/nvidia-caps-imex-channels"
