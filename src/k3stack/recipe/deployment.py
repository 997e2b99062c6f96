"""A deployment: the commands of every role as data. Renderers turn it into text; nothing here is text.

Values may hold places that only a running node can fill: `{rank}`, `{head}` (address of rank 0), `{self}` (address of
this node), `{worker}` (in front of a value, or alone for a bare flag: on every rank but 0), `{dp_start}` (first
data-parallel rank of this node) and, in a router's command, `{prefill}` and `{decode}` (addresses of the roles' doors).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from k3stack.engines.rules import Rule

__all__ = ["WORKER", "Command", "Deployment", "Flag", "Reason", "Role", "Variable", "reason_of"]


WORKER = "{worker}"
"""What stands in front of a value that rank 0 does not get; alone it is the bare flag."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why something is there: the rule, its sentence, its source and date."""

    rule: str
    why: str
    source: str
    date: str


def reason_of(rule: Rule) -> Reason:
    """The reason that a rule gives."""
    return Reason(rule.id, rule.why, rule.source, rule.date.isoformat())


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag of the engine's command line: its canonical long name and a value.

    True is the bare flag, False its negation, a list several words, an object JSON.

    Attributes:
        reason: of the rule that had the last word.
        also: reasons of rules whose part of a JSON value is still in it.
    """

    name: str
    value: Any
    reason: Reason
    also: tuple[Reason, ...] = ()

    def words(self) -> list[str]:
        """The words on the command line; whether a rank gets them is for the renderer to say."""
        if self.value is True or self.value == WORKER:
            return [f"--{self.name}"]
        if self.value is False:
            return [f"--no-{self.name}"]
        if isinstance(self.value, dict):
            return [f"--{self.name}", json.dumps(self.value, separators=(",", ":"))]
        if isinstance(self.value, list):
            return [f"--{self.name}", *map(str, self.value)]
        return [f"--{self.name}", str(self.value).removeprefix(WORKER)]

    @property
    def workers_only(self) -> bool:
        """Whether rank 0 leaves it out."""
        return isinstance(self.value, str) and self.value.startswith(WORKER)


@dataclass(frozen=True, slots=True)
class Variable:
    """An environment variable."""

    name: str
    value: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class Command:
    """What one process is started with: a program, what it is to load, flags.

    Attributes:
        program: first words, `vllm serve` for example.
        model: what to load; empty for a router. vLLM takes it as a word, SGLang as --model-path.
        image_program: the program's words inside its image, where they differ: the entry point may say some already.
    """

    model: str
    flags: tuple[Flag, ...]
    environment: tuple[Variable, ...]
    program: tuple[str, ...] = ("vllm", "serve")
    image_program: tuple[str, ...] | None = None

    def flag(self, name: str) -> Any:
        """The value of a flag, or None."""
        return next((flag.value for flag in self.flags if flag.name == name), None)

    def values(self) -> dict[str, Any]:
        """Flags to values."""
        return {flag.name: flag.value for flag in self.flags}

    def variables(self) -> dict[str, str]:
        """Environment variables to values."""
        return {variable.name: variable.value for variable in self.environment}

    def words(self, model: str | None = None, worker: bool = False, in_image: bool = False) -> list[str]:
        """The whole command line, with places unfilled.

        Args:
            model: another name for the model, such as the folder it is mounted on.
            worker: for a rank other than 0.
            in_image: what to give a container, behind its image.
        """
        named = self.model if model is None else model
        where = ["--model-path", named] if self.program[0] == "sglang" else [named]
        program = self.image_program if in_image and self.image_program is not None else self.program
        words = [*program, *(where if named else [])]
        for flag in self.flags:
            if worker or not flag.workers_only:
                words += flag.words()
        return words


@dataclass(frozen=True, slots=True)
class Role:
    """One kind of process: server, prefill, decode or router.

    Attributes:
        gpus: of all its nodes.
        port: where it answers.
        doors: on how many of its nodes it answers: one, or all.
        local_replicas: data-parallel ranks on each node, for `{dp_start}`.
    """

    name: str
    command: Command
    gpus: int
    port: int
    nodes: int = 1
    doors: int = 1
    local_replicas: int = 1
    image: str = ""

    @property
    def gpus_per_node(self) -> int:
        """GPUs that it uses on each node."""
        return self.gpus // self.nodes


@dataclass(frozen=True, slots=True)
class Deployment:
    """All roles of an endpoint.

    Attributes:
        image: the container image.
        image_reason: why this one.
        digest: the image's digest; None where none is known.
        patches: runtime patches that the image needs, by name.
        notes: what a reader must know before running it.
        checked_by: the snapshot whose parser takes every command.
        rack: whether nodes share an NVLink domain, which needs IMEX channels.
    """

    engine: str
    image: str
    image_reason: Reason
    roles: tuple[Role, ...]
    patches: tuple[str, ...]
    notes: tuple[str, ...]
    version: str = ""
    digest: str | None = None
    vendor: str = "nvidia"
    checked_by: str = ""
    gpu: str = ""
    rack: bool = False

    @property
    def endpoint(self) -> Role:
        """The role that clients talk to."""
        return self.roles[-1]

    @property
    def several_nodes(self) -> bool:
        """Whether nodes must reach each other, so that containers need the host's network."""
        return len(self.roles) > 1 or any(role.nodes > 1 for role in self.roles)

    @property
    def pinned_image(self) -> str:
        """The image, by digest where one is known; without its tag then, which not every tool takes beside a digest."""
        if self.digest is None:
            return self.image
        folder, slash, last = self.image.rpartition("/")
        return f"{folder}{slash}{last.partition(':')[0]}@{self.digest}"
