"""The options that `k3 up` and `k3 preflight` have beside those of `k3 recipe`, and all of them as one value."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from k3stack.launch.chosen import Asked

__all__ = ["Docker", "EngineChoice", "Host", "Port", "Python", "asked_of"]


class EngineAsked(StrEnum):
    """What can serve."""

    VLLM = "vllm"
    SGLANG = "sglang"
    REFERENCE = "reference"


EngineChoice = Annotated[
    EngineAsked | None, typer.Option("--engine", help="What serves; default vllm with GPUs, else the reference engine.")
]
Python = Annotated[str | None, typer.Option("--python", help="The Python of the environment that has the engine.")]
Docker = Annotated[bool, typer.Option("--docker", help="Start the recipe's container instead of a process.")]
Host = Annotated[str, typer.Option("--host", help="Where to listen.")]
Port = Annotated[int | None, typer.Option("--port", min=1, max=65_535, help="The port; default as in the recipe.")]


def asked_of(where: str, **options: Any) -> Asked:
    """The options as one value: `Asked`'s fields by name, and `feature`, which may be given several times."""
    from k3stack.launch.chosen import Asked

    features = tuple(str(one) for one in options.pop("feature") or ())
    plain: dict[str, Any] = {
        name: str(value) if isinstance(value, StrEnum) else value for name, value in options.items()
    }
    return Asked(where, features=features, **plain)
