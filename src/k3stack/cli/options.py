"""Options that several verbs take, each described once.

`k3 plan` has its own standard values; verbs that take `Sought` leave open what nobody says, so its fields may be None.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from k3stack.errors import UsageError

if TYPE_CHECKING:
    from k3stack.spec.schemes import Scheme

__all__ = [
    "BatchedTokens",
    "Concurrency",
    "Context",
    "ContextParallel",
    "DataParallel",
    "EngineName",
    "EngineOption",
    "EngineVersion",
    "ExpertParallel",
    "HardwareOpen",
    "KvName",
    "KvOpen",
    "ParsersName",
    "PipelineParallel",
    "PrefixCaching",
    "SchemeName",
    "SchemeOption",
    "Sought",
    "TensorParallelOpen",
    "Utilization",
    "Where",
    "choice_of",
    "scheme_of",
]


E = TypeVar("E", bound=StrEnum)


class SchemeName(StrEnum):
    """The schemes, without importing what they mean."""

    MXFP4 = "mxfp4"
    NVFP4_MIXED = "nvfp4-mixed"
    NVFP4_EXPERTS = "nvfp4-experts"
    FP8_BLOCK = "fp8-block"
    BF16 = "bf16"


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


class ParsersName(StrEnum):
    """Who takes apart what K3 writes."""

    KIMI_K3 = "kimi_k3"
    RAW = "raw"
    KIMI_K2 = "kimi_k2"


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
EngineVersion = Annotated[str | None, typer.Option(help="A release, or kimi-k3 for vLLM's first image for K3.")]
HardwareOpen = Annotated[str | None, typer.Option(help="The GPU: b300, h200, gb200, mi355x, ...")]
TensorParallelOpen = Annotated[
    int | None, typer.Option("--tp", min=1, help="Tensor-parallel size; default what is left.")
]
PipelineParallel = Annotated[int, _PIPELINE]
DataParallel = Annotated[int, _DATA]
ExpertParallel = Annotated[bool, _EXPERT]
ContextParallel = Annotated[int, _DCP]
Context = Annotated[int, _CONTEXT]
Concurrency = Annotated[int, _CONCURRENCY]
BatchedTokens = Annotated[int, _BATCHED]
Utilization = Annotated[float, _UTILIZATION]
KvOpen = Annotated[KvName | None, _KV]
PrefixCaching = Annotated[bool, typer.Option("--prefix-caching/--no-prefix-caching", help="Reuse repeated prefixes.")]


@dataclass(frozen=True, slots=True)
class Sought:
    """What `k3 recipe`, `k3 preflight` and `k3 up` ask about a deployment, wherever it will run; None is left open."""

    scheme: SchemeOption = None
    goal: Annotated[GoalName, typer.Option(help="What the endpoint should be good at.")] = GoalName.BALANCED
    serving: Annotated[ServingName, typer.Option(help="One kind of server, or prefill and decode apart.")] = (
        ServingName.UNIFIED
    )
    feature: Annotated[list[FeatureName] | None, typer.Option(help="Add this; may be given several times.")] = None
    parsers: Annotated[
        ParsersName, typer.Option(help="Of tool calls and reasoning; raw leaves all that K3 writes in the answer.")
    ] = ParsersName.KIMI_K3
    gpus: Annotated[int | None, typer.Option(min=1, help="How many of them.")] = None
    tp: TensorParallelOpen = None
    pp: Annotated[int | None, _PIPELINE] = None
    dp: Annotated[int | None, _DATA] = None
    ep: Annotated[bool | None, _EXPERT] = None
    dcp: Annotated[int | None, _DCP] = None
    context: Annotated[int | None, _CONTEXT] = None
    concurrency: Annotated[int | None, _CONCURRENCY] = None
    kv_dtype: KvOpen = None
    prefix_caching: PrefixCaching = True
    batched_tokens: Annotated[int | None, _BATCHED] = None
    utilization: Annotated[float | None, _UTILIZATION] = None
    prefill_utilization: Annotated[
        float | None, typer.Option(help="For the prefill role, where it is another than --utilization.")
    ] = None

    def wishes(self, version: str | None) -> dict[str, Any]:
        """All of them but the scheme, by `Wishes`'s names and types."""
        from k3stack.plan.layout import KvDtype
        from k3stack.recipe.choice import Feature, Goal, Parsers, Serving

        said = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in ("scheme", "feature")}
        return said | {
            "version": version,
            "goal": Goal(self.goal),
            "serving": Serving(self.serving),
            "parsers": Parsers(self.parsers),
            "features": tuple(Feature(one) for one in self.feature or ()),
            "kv_dtype": None if self.kv_dtype is None else KvDtype(self.kv_dtype),
        }


def scheme_of(name: SchemeName | None) -> Scheme | None:
    """The scheme of that name."""
    from k3stack.spec.schemes import Scheme

    return None if name is None else Scheme(name)


def choice_of(kind: type[E], word: str, option: str) -> E:
    """The member that a word names.

    Raises:
        UsageError: it names none.
    """
    try:
        return kind(word)
    except ValueError:
        raise UsageError(f"{word!r} is none of {', '.join(kind)}", where=option) from None
