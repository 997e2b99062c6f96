"""The options that `k3 up` and `k3 preflight` share."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from k3stack.cli.options import KvName
from k3stack.cli.tiny import SchemeName

if TYPE_CHECKING:
    from k3stack.launch.chosen import Asked

__all__ = [
    "BatchedTokensOpen",
    "ConcurrencyOpen",
    "ContextOpen",
    "Docker",
    "EngineAsked",
    "EngineChoice",
    "EngineVersion",
    "GpusOpen",
    "HardwareOpen",
    "Host",
    "Layouts",
    "Port",
    "Python",
    "SchemeOpen",
    "UtilizationOpen",
    "Where",
    "asked_of",
]


class EngineAsked(StrEnum):
    """What can serve."""

    VLLM = "vllm"
    SGLANG = "sglang"
    REFERENCE = "reference"


Where = Annotated[str, typer.Argument(help="A checkpoint's folder, a hub id, or kimi-k3 for the published values.")]
EngineChoice = Annotated[
    EngineAsked | None, typer.Option("--engine", help="What serves; default vllm with GPUs, else the reference engine.")
]
EngineVersion = Annotated[str | None, typer.Option(help="The engine's release; default the one published for this.")]
HardwareOpen = Annotated[str | None, typer.Option("--hardware", help="The GPU: b300, h200, ...; default what is here.")]
GpusOpen = Annotated[int | None, typer.Option("--gpus", min=1, help="How many of them; default what is here.")]
SchemeOpen = Annotated[SchemeName | None, typer.Option("--scheme", help="Another scheme than the checkpoint's own.")]
Layouts = Annotated[
    str | None, typer.Option("--layout", help="For example tp8, tp8-pp2, tp1-dp16-ep, tp8-dcp8; default as published.")
]
ContextOpen = Annotated[int | None, typer.Option("--context", min=1, help="Longest request in tokens.")]
ConcurrencyOpen = Annotated[int | None, typer.Option("--concurrency", min=1, help="Requests in flight at once.")]
BatchedTokensOpen = Annotated[int | None, typer.Option("--batched-tokens", min=1, help="Tokens per step.")]
KvOpen = Annotated[KvName | None, typer.Option("--kv-dtype", help="How the MLA cache is stored.")]
UtilizationOpen = Annotated[float | None, typer.Option("--utilization", help="Share of GPU memory to use.")]
Python = Annotated[str | None, typer.Option("--python", help="The Python of the environment that has the engine.")]
Docker = Annotated[bool, typer.Option("--docker", help="Start the recipe's container instead of a process.")]
Host = Annotated[str, typer.Option("--host", help="Where to listen.")]
Port = Annotated[int | None, typer.Option("--port", min=1, max=65_535, help="The port; default as in the recipe.")]


def asked_of(
    where: str,
    engine: EngineAsked | None,
    version: str | None,
    hardware: str | None,
    gpus: int | None,
    scheme: SchemeName | None,
    layout: str | None,
    context: int | None,
    concurrency: int | None,
    kv_dtype: KvName | None,
    batched_tokens: int | None,
    utilization: float | None,
    host: str,
    port: int | None,
    python: str | None,
    name: str | None = None,
    extra: tuple[str, ...] = (),
) -> Asked:
    """The options as one value."""
    from k3stack.launch.chosen import Asked

    sizes = _sizes(layout)
    return Asked(
        where=where,
        engine=None if engine is None else engine.value,
        version=version,
        hardware=hardware,
        gpus=gpus,
        scheme=None if scheme is None else scheme.value,
        tp=sizes.get("tp"),
        pp=sizes.get("pp"),
        dp=sizes.get("dp"),
        ep=None if layout is None else "ep" in sizes,
        dcp=sizes.get("dcp"),
        context=context,
        concurrency=concurrency,
        kv_dtype=None if kv_dtype is None else kv_dtype.value,
        batched_tokens=batched_tokens,
        utilization=utilization,
        host=host,
        port=port,
        name=name,
        python=python,
        extra=extra,
    )


def _sizes(layout: str | None) -> dict[str, int]:
    """tp8-pp2-ep as sizes."""
    import re

    from k3stack.errors import UsageError

    if layout is None:
        return {}
    found: dict[str, int] = {}
    for word in layout.lower().split("-"):
        match = re.fullmatch(r"(tp|pp|dp|dcp)([1-9]\d*)|(ep)", word)
        if match is None:
            raise UsageError(f"{word!r} is no part of a layout", where="--layout", hint="For example tp8-pp2.")
        found[match.group(1) or "ep"] = int(match.group(2) or 1)
    return found
