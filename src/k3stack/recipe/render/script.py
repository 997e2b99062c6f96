"""The script that starts one rank of one role: the same skeleton for plain processes and for containers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from k3stack.recipe.deployment import Deployment, Role
from k3stack.recipe.render.words import places, used, word

__all__ = ["script"]

RoleLines = Callable[[Deployment, Role], Iterator[str]]


def script(deployment: Deployment, body: RoleLines, run: str) -> str:
    """A POSIX shell script `SCRIPT [ROLE [RANK]]`.

    Args:
        body: the lines of a role; they leave the command in the positional parameters.
        run: the last line, which starts it.
    """
    return "\n".join([*_head(deployment), *_cases(deployment, body), run]) + "\n"


def _head(deployment: Deployment) -> Iterator[str]:
    yield "#!/bin/sh"
    yield from (f"# {note}" for note in deployment.notes)
    names = ", ".join(f"{role.name} (ranks 0 to {role.nodes - 1})" for role in deployment.roles)
    if deployment.several_nodes:
        yield f"# Run on each node: sh THIS-FILE ROLE RANK. Roles: {names}."
        yield "# K3_HEAD is the address of rank 0 of the role, K3_ADDRESS that of this node."
        yield "# The clients' door listens on 127.0.0.1; K3_LISTEN changes that."
        yield "# The engines trust the network between the nodes: keep it private."
    yield "set -eu"
    yield f"role=${{1:-{deployment.endpoint.name}}}"
    if any(role.nodes > 1 for role in deployment.roles):
        yield "rank=${2:-${SLURM_PROCID:-0}}"


def _cases(deployment: Deployment, body: RoleLines) -> Iterator[str]:
    yield 'case "$role" in'
    for role in deployment.roles:
        yield f"{role.name})"
        yield from (f"  {line}" for line in _asked(role))
        yield from (f"  {line}" for line in body(deployment, role))
        only = [text for flag in role.command.flags if flag.workers_only for text in flag.words()]
        if only:
            words = " ".join(word(text, places(role)) for text in only)
            yield f'  if [ "$rank" -gt 0 ]; then set -- "$@" {words}; fi'
        yield "  ;;"
    yield "*)"
    yield f'  echo "no role $role; there are: {" ".join(role.name for role in deployment.roles)}" >&2'
    yield "  exit 2"
    yield "  ;;"
    yield "esac"


def _asked(role: Role) -> Iterator[str]:
    """What must be given before the role can start."""
    if role.nodes > 1:
        yield f'if [ "$rank" -ge {role.nodes} ]; then echo "ranks are 0 to {role.nodes - 1}" >&2; exit 2; fi'
    open_places = used(role.command)
    if "self" in open_places:
        yield "K3_ADDRESS=${K3_ADDRESS:-$(hostname -I | cut -d' ' -f1)}"
    if "head" in open_places:
        yield ': "${K3_HEAD:?set it to the address of the node with rank 0}"'
    if "prefill" in open_places:
        yield ': "${K3_PREFILL:?set it to the address of the prefill node with rank 0}"'
    doors = sorted(int(place.removeprefix("decode")) for place in open_places if place.startswith("decode"))
    for door in doors:
        yield f': "${{K3_DECODE_{door}:?set it to the address of decode node {door}}}"'
