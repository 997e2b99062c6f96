"""What a copied command comes apart into."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Copied", "Docker"]


@dataclass(frozen=True, slots=True)
class Docker:
    """What `docker run`, or a service of a compose file, was told.

    Attributes:
        publishes: values of --publish.
    """

    image: str
    host_network: bool
    host_ipc: bool
    shared_memory: bool
    publishes: tuple[str, ...]
    mounts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Copied:
    """The parts of a copied command.

    Attributes:
        engine: vllm or sglang; vllm-router or sglang-router for a router; `other-router` for one of somebody else.
        words: what the engine is given, behind `vllm serve` or `sglang serve`.
        environment: variables with the values that the command gives them; passed-through ones are absent.
        image: of its container; empty where none is named.
        line: where it begins, from 1; 0 where the text has no lines of its own (YAML).
        place: the service, pod, function or branch that it stands in; empty where it stands alone.
        host: commands with the same one, not empty, run on one machine; `ports` are then shared as well.
        shares_ports: its ports are those of the machine.
        launcher: whose program starts the engine, where it takes flags of its own: dynamo.
        unexported: variables of the engine that are set and not handed on to it.
        cut: a flag before which the command ends, because the line before it does not go on; empty where none.
    """

    engine: str
    words: tuple[str, ...]
    environment: dict[str, str]
    docker: Docker | None = None
    image: str = ""
    line: int = 0
    place: str = ""
    host: str = ""
    shares_ports: bool = True
    launcher: str = ""
    unexported: tuple[str, ...] = ()
    cut: str = ""

    @property
    def is_router(self) -> bool:
        """Whether it only hands requests on."""
        return self.engine.endswith("-router")
