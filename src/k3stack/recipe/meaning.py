"""What the flags of a finished command stand for: model, layout, scheme, features, parsers, role, workload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from k3stack.engines.reading import Reading
from k3stack.plan.layout import KvDtype, Layout, Workload
from k3stack.recipe.choice import MODELS, Feature, Parsers
from k3stack.spec.schemes import Scheme

__all__ = [
    "features_of",
    "layout_of",
    "model_of",
    "number_of",
    "parsers_of",
    "role_of",
    "scheme_of",
    "sizes_known",
    "workload_of",
]


def model_of(understood: Reading, values: Mapping[str, Any]) -> str:
    """What the command loads; empty where it does not say."""
    given = values.get("model-path") or values.get("model") or next(iter(understood.positional), "")
    return str(given)


def number_of(values: Mapping[str, Any], name: str, standard: int = 1) -> int:
    """A whole number that a flag says, or the standard."""
    text = str(values.get(name, standard))
    return int(text) if text.isdecimal() else standard


def layout_of(engine: str, values: Mapping[str, Any]) -> Layout:
    """The layout that a command's flags stand for."""
    if engine == "vllm":
        tp, dp = number_of(values, "tensor-parallel-size"), number_of(values, "data-parallel-size")
        pp, dcp = number_of(values, "pipeline-parallel-size"), number_of(values, "decode-context-parallel-size")
        ep = bool(values.get("enable-expert-parallel"))
    else:
        total, dp = number_of(values, "tp-size"), number_of(values, "attn-dp-size")
        if values.get("enable-dp-attention"):
            dp = number_of(values, "dp-size")
        tp = max(1, total // dp)
        pp, dcp, ep = number_of(values, "pp-size"), number_of(values, "dcp-size"), number_of(values, "ep-size") > 1
    return Layout(tp=tp, pp=pp, dp=dp, ep=ep, dcp=dcp if tp % max(dcp, 1) == 0 else 1)


_SIZES = {
    "vllm": ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size", "decode-context-parallel-size"),
    "sglang": ("tp-size", "pp-size", "dp-size", "attn-dp-size", "dcp-size"),
}


def sizes_known(engine: str, values: Mapping[str, Any]) -> bool:
    """Whether every size that a command gives is a number, and not a variable or a place in a guide."""
    return all(str(values.get(name, 1)).isdecimal() for name in _SIZES[engine])


def scheme_of(model: str, values: Mapping[str, Any]) -> Scheme | None:
    """The scheme, if the model's name or the flags tell."""
    name = model.lower()
    if values.get("quantization") == "modelopt_mixed" or "nvidia/kimi-k3-nvfp4" in name:
        return Scheme.NVFP4_MIXED
    if "redhatai/kimi-k3-nvfp4" in name:
        return Scheme.NVFP4_EXPERTS
    return next((scheme for scheme, known in MODELS.items() if known.lower() == name), None)


def features_of(engine: str, values: Mapping[str, Any]) -> tuple[Feature, ...]:
    """The features that are on."""
    found = []
    draft = values.get("speculative-config")
    method = draft.get("method") if isinstance(draft, dict) else values.get("spec-method")
    if engine == "sglang":
        method = str(values.get("speculative-algorithm", "")).lower()
    found += [feature for feature in (Feature.DSPARK, Feature.DFLASH) if feature.value == method]
    if values.get("language-model-only"):
        found.append(Feature.TEXT_ONLY)
    if values.get("enable-hierarchical-cache"):
        found.append(Feature.HICACHE)
    return tuple(found)


def parsers_of(values: Mapping[str, Any], wanted: Parsers = Parsers.KIMI_K3) -> Parsers:
    """Which parsers a command names; without any, it is judged by what is wanted."""
    named = {str(values[name]) for name in ("tool-call-parser", "reasoning-parser") if values.get(name)}
    if Parsers.KIMI_K2 in named:
        return Parsers.KIMI_K2
    return Parsers.KIMI_K3 if named else wanted


_ROLES = {"kv_producer": "prefill", "prefill": "prefill", "kv_consumer": "decode", "decode": "decode"}


def role_of(values: Mapping[str, Any], words: Sequence[str] = (), place: str = "") -> str:
    """Which role of a deployment the command is.

    Args:
        words: of the command, for a launcher's own flag; `--disaggregation-mode` is Dynamo's too.
        place: where it stands; asked only where a connector does both and the flags say no more.
    """
    transfer = values.get("kv-transfer-config")
    kind = transfer.get("kv_role") if isinstance(transfer, dict) else values.get("disaggregation-mode")
    found = _ROLES.get(str(kind))
    if found is None and "--disaggregation-mode" in words[:-1]:
        found = _ROLES.get(words[words.index("--disaggregation-mode") + 1])
    if found is None and kind == "kv_both":
        said = {role for role in ("prefill", "decode") if role in place.lower()}
        found = said.pop() if len(said) == 1 else None
    return found or "server"


def workload_of(engine: str, values: Mapping[str, Any], standard_share: float = 0.90) -> Workload:
    """The workload that the flags stand for; what they do not say is as the published commands have it."""
    vllm = engine == "vllm"
    cache = str(values.get("kv-cache-dtype", "auto"))
    return Workload(
        context=number_of(values, "max-model-len" if vllm else "context-length", 196_608),
        concurrency=number_of(values, "max-num-seqs" if vllm else "max-running-requests", 32),
        kv_dtype=KvDtype.FP8 if cache.startswith("fp8") else KvDtype.BF16,
        prefix_caching=values.get("enable-prefix-caching") is not False and not values.get("disable-radix-cache"),
        batched_tokens=number_of(values, "max-num-batched-tokens", 8_192),
        utilization=_share(values.get("gpu-memory-utilization" if vllm else "mem-fraction-static"), standard_share),
    )


def _share(value: Any, standard: float) -> float:
    try:
        share = float(value)
    except (TypeError, ValueError):
        return standard
    return share if 0 < share <= 1 else standard
