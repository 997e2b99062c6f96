"""Options that several verbs take, each described once.

`k3 plan` has its own standard values; `k3 recipe` leaves open what nobody says, so its types may be None.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from k3stack.cli.tiny import SchemeName

__all__ = [
    "BatchedTokens",
    "BatchedTokensOpen",
    "Concurrency",
    "ConcurrencyOpen",
    "Context",
    "ContextOpen",
    "ContextParallel",
    "ContextParallelOpen",
    "DataParallel",
    "DataParallelOpen",
    "EngineName",
    "EngineOption",
    "EngineVersion",
    "ExpertParallel",
    "ExpertParallelOpen",
    "FeatureName",
    "FeatureOption",
    "GoalName",
    "GoalOption",
    "GpusOpen",
    "HardwareOpen",
    "KvName",
    "KvOpen",
    "PipelineParallel",
    "PipelineParallelOpen",
    "PrefixCaching",
    "SchemeName",
    "SchemeOption",
    "ServingName",
    "ServingOption",
    "TensorParallelOpen",
    "Utilization",
    "UtilizationOpen",
    "Where",
]


class EngineName(StrEnum):
    """The engines whose memory we can count, and whose commands we can write."""

    VLLM = "vllm"
    SGLANG = "sglang"


class KvName(StrEnum):
    """How the cache is stored."""

    FP8 = "fp8"
    BF16 = "bf16"
    FP8_DS_MLA = "fp8_ds_mla"


class GoalName(StrEnum):
    """What the endpoint should be good at."""

    LOW_LATENCY = "low-latency"
    BALANCED = "balanced"
    HIGH_THROUGHPUT = "high-throughput"


class ServingName(StrEnum):
    """How it is served."""

    UNIFIED = "unified"
    DISAGGREGATED = "prefill-decode"


class FeatureName(StrEnum):
    """What can be added."""

    DSPARK = "dspark"
    DFLASH = "dflash"
    TEXT_ONLY = "text-only"
    HICACHE = "hicache"


_PIPELINE = typer.Option("--pp", min=1, help="Pipeline stages.")
_DATA = typer.Option("--dp", min=1, help="Data-parallel replicas; they share the experts.")
_EXPERT = typer.Option("--ep/--no-ep", help="Spread experts whole over the ranks instead of cutting them.")
_DCP = typer.Option("--dcp", min=1, help="Decode-context-parallel size; divides tp.")
_CONTEXT = typer.Option(min=1, help="Longest request in tokens, prompt and answer together.")
_CONCURRENCY = typer.Option(min=1, help="Requests in flight at once.")
_BATCHED = typer.Option(min=1, help="Tokens per step; long prompts are cut into such chunks.")
_UTILIZATION = typer.Option(help="Share of GPU memory the engine may use, above 0 and up to 1.")
_KV = typer.Option("--kv-dtype", help="How the MLA cache is stored.")

Where = Annotated[str, typer.Argument(help="A folder, a hub id, or kimi-k3 for the published values.")]
SchemeOption = Annotated[SchemeName | None, typer.Option(help="This scheme instead of the checkpoint's own.")]
EngineOption = Annotated[EngineName, typer.Option("--engine", help="Which engine serves.")]
HardwareOpen = Annotated[str | None, typer.Option(help="The GPU: b300, h200, gb200, mi355x, ...")]
GpusOpen = Annotated[int | None, typer.Option(min=1, help="How many of them.")]
TensorParallelOpen = Annotated[
    int | None, typer.Option("--tp", min=1, help="Tensor-parallel size; default what is left.")
]
PipelineParallel = Annotated[int, _PIPELINE]
PipelineParallelOpen = Annotated[int | None, _PIPELINE]
DataParallel = Annotated[int, _DATA]
DataParallelOpen = Annotated[int | None, _DATA]
ExpertParallel = Annotated[bool, _EXPERT]
ExpertParallelOpen = Annotated[bool | None, _EXPERT]
ContextParallel = Annotated[int, _DCP]
ContextParallelOpen = Annotated[int | None, _DCP]
Context = Annotated[int, _CONTEXT]
ContextOpen = Annotated[int | None, _CONTEXT]
Concurrency = Annotated[int, _CONCURRENCY]
ConcurrencyOpen = Annotated[int | None, _CONCURRENCY]
BatchedTokens = Annotated[int, _BATCHED]
BatchedTokensOpen = Annotated[int | None, _BATCHED]
Utilization = Annotated[float, _UTILIZATION]
UtilizationOpen = Annotated[float | None, _UTILIZATION]
KvOpen = Annotated[KvName | None, _KV]
PrefixCaching = Annotated[bool, typer.Option("--prefix-caching/--no-prefix-caching", help="Reuse repeated prefixes.")]
EngineVersion = Annotated[str | None, typer.Option(help="A release, or kimi-k3 for vLLM's first image for K3.")]
GoalOption = Annotated[GoalName, typer.Option(help="What the endpoint should be good at.")]
ServingOption = Annotated[ServingName, typer.Option(help="One kind of server, or prefill and decode apart.")]
FeatureOption = Annotated[list[FeatureName] | None, typer.Option(help="Add this; may be given several times.")]
