"""A deployment as a shell script for nodes where the engine is installed."""

from __future__ import annotations

from collections.abc import Iterator

from k3stack.recipe.deployment import Deployment, Role
from k3stack.recipe.render.script import script
from k3stack.recipe.render.words import join, listening, places, word

__all__ = ["render"]


def render(deployment: Deployment) -> str:
    """A POSIX shell script that becomes the engine's process."""
    return script(deployment, _role, 'exec "$@"')


def _role(deployment: Deployment, role: Role) -> Iterator[str]:
    filled = places(role)
    for variable in role.command.environment:
        yield f"export {variable.name}={word(variable.value, filled)}"
    if deployment.patches and role.name != "router":
        yield ': "${K3_PATCH_DIR:?set it to the folder of the runtime patches}"'
        yield 'export PYTHONPATH="${K3_PATCH_DIR}${PYTHONPATH:+:$PYTHONPATH}"'
    words = listening(deployment, role, role.command.words())
    yield "set -- " + join(words, filled, indent="    ")
    if role.name == "router" and role.command.image_program:
        program, other = role.command.program[0], " ".join(role.command.image_program)
        yield f'if ! command -v {program} > /dev/null; then shift; set -- {other} "$@"; fi'
