"""A deployment: the commands of every role as data. Renderers turn it into text; nothing here is text."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

__all__ = ["Command", "Deployment", "Flag", "Reason", "Role", "Variable"]


@dataclass(frozen=True, slots=True)
class Reason:
    """Why something is there: the rule, its sentence, its source and date."""

    rule: str
    why: str
    source: str
    date: str


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag of the engine's command line: its canonical long name and a value; True is the bare flag.

    Objects are passed as JSON.
    """

    name: str
    value: Any
    reason: Reason

    def words(self) -> list[str]:
        """The words on the command line."""
        if self.value is True:
            return [f"--{self.name}"]
        if isinstance(self.value, dict):
            return [f"--{self.name}", json.dumps(self.value, separators=(",", ":"))]
        return [f"--{self.name}", str(self.value)]


@dataclass(frozen=True, slots=True)
class Variable:
    """An environment variable."""

    name: str
    value: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class Command:
    """What one process is started with: `vllm serve MODEL FLAGS` in an image."""

    model: str
    flags: tuple[Flag, ...]
    environment: tuple[Variable, ...]

    def flag(self, name: str) -> Any:
        """The value of a flag, or None."""
        return next((flag.value for flag in self.flags if flag.name == name), None)


@dataclass(frozen=True, slots=True)
class Role:
    """One kind of process: server, prefill, decode or router."""

    name: str
    command: Command
    gpus: int
    port: int


@dataclass(frozen=True, slots=True)
class Deployment:
    """All roles of an endpoint.

    Attributes:
        image: the container image.
        image_reason: why this one.
        patches: runtime patches that the image needs, by name.
        notes: what a reader must know before running it.
    """

    engine: str
    image: str
    image_reason: Reason
    roles: tuple[Role, ...]
    patches: tuple[str, ...]
    notes: tuple[str, ...]
