"""Letting a parser read a deployment's commands: a real one where there is one, the snapshot otherwise."""

from __future__ import annotations

from dataclasses import dataclass

from k3stack.engines.installed import ask, find_python
from k3stack.engines.reading import read
from k3stack.engines.releases import latest, release
from k3stack.recipe.choice import CARD
from k3stack.recipe.deployment import Deployment, Role

__all__ = ["Verdict", "check", "engine_variables", "engine_words"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a parser says about every role.

    Attributes:
        by: who answered.
        errors: role names to errors; empty when everything was taken.
    """

    by: str
    errors: dict[str, str]

    @property
    def yes(self) -> bool:
        """Whether every command was taken."""
        return not self.errors


def check(deployment: Deployment, python: str | None = None, image: str | None = None) -> Verdict:
    """Ask the engine in an environment or an image, or the one installed here, or else the release's snapshot.

    Raises:
        UnavailableError: the named environment or image cannot be asked.
    """
    engines = [role for role in deployment.roles if role.name != "router"]
    commands = [engine_words(role) for role in engines]
    python = python or (None if image else find_python(deployment.engine))
    if python or image:
        answer = ask(deployment.engine, commands, python, image)
        errors = {role.name: error for role, error in zip(engines, answer.errors, strict=True) if error}
        return Verdict(answer.by, errors)
    name, _, version = deployment.checked_by.partition(" ")
    errors = {}
    for role in deployment.roles:
        router = role.name == "router"
        taken = release(f"{name}-router", latest(f"{name}-router")) if router else release(name, version)
        stops = [problem for problem in read(taken, engine_words(role)).problems if problem.stops]
        if stops:
            errors[role.name] = stops[0].what
    said = f"the snapshot of {name} {version}"
    if deployment.version == CARD:
        said += ", the release nearest to the image"
    return Verdict(said, errors)


def engine_words(role: Role, rank: int = 1) -> list[str]:
    """The words behind the program, as a rank would fill them."""
    words = role.command.words(worker=rank > 0)[len(role.command.program) :]
    return [_filled(text, role, rank) for text in words]


def engine_variables(role: Role, rank: int = 1) -> dict[str, str]:
    """The environment variables, as a rank would fill them."""
    return {name: _filled(value, role, rank) for name, value in role.command.variables().items()}


def _filled(text: str, role: Role, rank: int) -> str:
    start = str(role.local_replicas * rank)
    places = {"{rank}": str(rank), "{head}": "10.0.0.1", "{self}": f"10.0.0.{rank + 1}", "{dp_start}": start}
    for place, value in places.items():
        text = text.replace(place, value)
    return text
