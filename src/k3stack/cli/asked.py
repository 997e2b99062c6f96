"""The options that `k3 up` and `k3 preflight` have beside those of `k3 recipe`, and all of them as one value."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from k3stack.cli.options import Sought, scheme_of

if TYPE_CHECKING:
    from k3stack.launch.chosen import Asked

__all__ = ["EngineChoice", "Place", "asked_of"]


class EngineAsked(StrEnum):
    """What can serve."""

    VLLM = "vllm"
    SGLANG = "sglang"
    REFERENCE = "reference"


EngineChoice = Annotated[
    EngineAsked | None, typer.Option("--engine", help="What serves; default vllm with GPUs, else the reference engine.")
]


@dataclass(frozen=True, slots=True)
class Place:
    """How and where it runs on this machine."""

    docker: Annotated[bool, typer.Option("--docker", help="Start the recipe's container instead of a process.")] = False
    host: Annotated[str, typer.Option("--host", help="Where to listen.")] = "127.0.0.1"
    port: Annotated[
        int | None, typer.Option("--port", min=1, max=65_535, help="The port; default as in the recipe.")
    ] = None
    python: Annotated[
        str | None, typer.Option("--python", help="The Python of the environment that has the engine.")
    ] = None


def asked_of(
    where: str,
    engine: EngineAsked | None,
    version: str | None,
    hardware: str | None,
    sought: Sought,
    place: Place,
    name: str | None = None,
    extra: tuple[str, ...] = (),
) -> Asked:
    """The options as one value.

    Args:
        name: the model's name in the API.
        extra: further words for the engine's command line.
    """
    from k3stack.launch.chosen import Asked

    return Asked(
        where,
        engine=None if engine is None else engine.value,
        hardware=hardware,
        scheme=scheme_of(sought.scheme),
        host=place.host,
        port=place.port,
        name=name,
        python=place.python,
        extra=extra,
        **sought.wishes(version),
    )
