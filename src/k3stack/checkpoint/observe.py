"""What model the tensor names of a checkpoint describe, so that a wrong config.json is one fault and not thousands.

The spec from config.json says which names there must be. Where the names that are there agree among themselves on
something else (fewer layers, another attention, more experts, another scheme), config.json is what is wrong: that is
said once, and the rest is checked against the model that the names describe.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace

from k3stack.spec.model import Attention, LayerSpec, ModelSpec
from k3stack.spec.schemes import Scheme

__all__ = ["observe"]

_LAYER = re.compile(r"(?:language_model\.)?model\.layers\.(\d{1,6})\.(.+)")
_EXPERT = re.compile(r"block_sparse_moe\.experts\.(\d{1,6})\.(w[123])\.(\w+)")
_SUFFIXES = {
    frozenset({"weight_packed", "weight_scale"}): Scheme.MXFP4,
    frozenset({"weight", "weight_scale", "weight_scale_2", "input_scale"}): Scheme.NVFP4_MIXED,
    frozenset({"weight_packed", "weight_scale", "weight_global_scale", "input_global_scale"}): Scheme.NVFP4_EXPERTS,
    frozenset({"weight", "weight_scale"}): Scheme.FP8_BLOCK,
    frozenset({"weight"}): Scheme.BF16,
}


def observe(spec: ModelSpec, names: Iterable[str]) -> tuple[ModelSpec, list[str]]:
    """The model that `names` describe, as far as names can tell, and how it differs from `spec`.

    Returns:
        `spec` with what the names contradict replaced, and one sentence for each such thing.
    """
    inner: dict[int, set[str]] = defaultdict(set)
    experts: dict[int, set[int]] = defaultdict(set)
    suffixes: dict[tuple[int, int, str], set[str]] = defaultdict(set)
    vision = multimodal = False
    for name in names:
        found = _LAYER.fullmatch(name)
        if found is None:
            vision = vision or name.startswith("vision_tower.encoder.blocks.")
            continue
        multimodal = multimodal or name.startswith("language_model.")
        layer, rest = int(found[1]), found[2]
        expert = _EXPERT.fullmatch(rest)
        if expert is None:
            inner[layer].add(rest)
        else:
            experts[layer].add(int(expert[1]))
            suffixes[layer, int(expert[1]), expert[2]].add(expert[3])
    said: list[str] = []
    changed = _observe_layers(spec, inner, experts, said)
    changed = _observe_experts(changed, experts, said)
    changed = _observe_scheme(changed, suffixes, said)
    if inner and multimodal != spec.multimodal:
        said.append(f"config.json is {_kind(spec.multimodal)}, the tensors are named as in a {_kind(multimodal)} one")
        changed = replace(changed, multimodal=multimodal)
    if spec.vision is not None and not vision:
        said.append("config.json has a vision tower, the tensors have none")
        changed = replace(changed, vision=None)
    return changed, said


def _kind(multimodal: bool) -> str:
    return "multimodal" if multimodal else "text-only"


def _observe_layers(
    spec: ModelSpec, inner: dict[int, set[str]], experts: dict[int, set[int]], said: list[str]
) -> ModelSpec:
    present = sorted(layer for layer, rest in inner.items() if _is_layer(rest))
    count = len(present)
    if not present or present != list(range(count)):
        return spec  # a hole is missing tensors, not another model
    if count != len(spec.layers):
        said.append(f"config.json has {len(spec.layers)} layers, the tensors have {count}")
    layers = []
    for index in present:
        declared = spec.layers[index] if index < len(spec.layers) else None
        seen = _layer(index, inner[index], index in experts, declared)
        if declared is not None and seen.attention is not declared.attention:
            was, now = declared.attention.upper(), seen.attention.upper()
            said.append(f"layer {index} is {was} in config.json and {now} in the tensors")
        if declared is not None and seen.dense != declared.dense:
            said.append(f"layer {index} is {_ffn(declared)} in config.json and {_ffn(seen)} in the tensors")
        layers.append(seen)
    return replace(spec, layers=tuple(layers))


def _is_layer(rest: set[str]) -> bool:
    """Whether these are the tensors of a whole layer, not a stray name with a layer's number."""
    return {"input_layernorm.weight", "post_attention_layernorm.weight"} <= rest and any(
        name.startswith("self_attn.") for name in rest
    )


def _layer(index: int, rest: set[str], has_experts: bool, declared: LayerSpec | None) -> LayerSpec:
    kda = len({"self_attn.A_log", "self_attn.dt_bias", "self_attn.q_conv1d.weight"} & rest)
    mla = len({"self_attn.q_a_proj.weight", "self_attn.kv_b_proj.weight", "self_attn.q_a_layernorm.weight"} & rest)
    dense = len({"mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight"} & rest)
    attention = declared.attention if declared is not None else Attention.KDA
    is_dense = declared.dense if declared is not None else False
    if max(kda, mla) >= 2 and min(kda, mla) == 0:
        attention = Attention.KDA if kda else Attention.MLA
    if has_experts and not dense:
        is_dense = False
    elif dense >= 2 and not has_experts:
        is_dense = True
    return LayerSpec(index, attention, is_dense)


def _ffn(layer: LayerSpec) -> str:
    return "dense" if layer.dense else "MoE"


def _observe_experts(spec: ModelSpec, experts: dict[int, set[int]], said: list[str]) -> ModelSpec:
    counts = {max(found) + 1 for layer, found in experts.items() if layer < len(spec.layers)}
    if len(counts) != 1 or counts == {spec.moe.experts} or len(experts) < len(spec.moe_layers):
        return spec
    count = counts.pop()
    said.append(f"config.json has {spec.moe.experts} experts per layer, the tensors have {count}")
    return replace(spec, moe=replace(spec.moe, experts=count))


def _observe_scheme(spec: ModelSpec, suffixes: dict[tuple[int, int, str], set[str]], said: list[str]) -> ModelSpec:
    counted = Counter(frozenset(found) for found in suffixes.values())
    if not counted:
        return spec
    commonest, count = counted.most_common(1)[0]
    scheme = _SUFFIXES.get(commonest)
    if scheme is None or scheme is spec.scheme or 2 * count <= len(suffixes):
        return spec
    said.append(f"config.json declares {spec.scheme}, the experts are stored as {scheme}")
    return spec.with_scheme(scheme)
