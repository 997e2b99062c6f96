"""The `quantization_config` of each scheme, as the engines expect it in config.json.

compressed-tensors schemes follow Moonshot's release (inside text_config). nvfp4-mixed follows NVIDIA's converter: at
the top of config.json, every quantised module under every name by which vLLM and SGLang look it up (3,342 entries for
K3).
Sources: Moonshot's config.json; Model-Optimizer PR 2206 (examples/kimi/kimi_k3/quantize_to_nvfp4.py) as read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from k3stack.spec.model import Attention, LayerSpec, ModelSpec
from k3stack.spec.schemes import Scheme

__all__ = ["ATTENTION_MODULES", "declare", "exclude_modules", "hf_quant_config", "quantized_layers"]

ATTENTION_MODULES = {
    Attention.KDA: ("q_proj", "k_proj", "v_proj", "g_proj", "o_proj", "f_a_proj", "f_b_proj", "b_proj"),
    Attention.MLA: ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "g_proj", "o_proj"),
}
"""The projections that nvfp4-mixed stores in block FP8 (K3: 69 x 8 + 24 x 6 = 696)."""

_FUSED = {
    Attention.KDA: ("fused_qkvg_proj", "in_proj_qkvgfab"),
    Attention.MLA: ("fused_qkv_a_proj_with_mqa", "fused_qkv_a_proj", "fused_qkvg_proj", "in_proj_qkvgfab"),
}
"""What the engines call projections they fuse: SGLang the first of each pair, vLLM the second."""

_PREFIXES = ("language_model.model.", "model.", "")
_NOT_EXPERTS = [
    "re:.*self_attn.*",
    "re:.*shared_experts.*",
    r"re:.*mlp\.(gate|up|gate_up|down)_proj.*",
    "re:.*lm_head.*",
    "re:.*vision_tower.*",
    "re:.*mm_projector.*",
]


def declare(config: dict[str, Any], spec: ModelSpec) -> dict[str, Any]:
    """A copy of `config` (wrapper or bare text config) that declares `spec.scheme` and nothing else."""
    made = {key: value for key, value in config.items() if key != "quantization_config"}
    if "text_config" in made:
        made["text_config"] = {k: v for k, v in made["text_config"].items() if k != "quantization_config"}
    block = _block(spec)
    if block is None:
        return made
    holder = made["text_config"] if "text_config" in made and spec.scheme is not Scheme.NVFP4_MIXED else made
    holder["quantization_config"] = block
    return made


def _block(spec: ModelSpec) -> dict[str, Any] | None:
    match spec.scheme:
        case Scheme.MXFP4:
            weights = {
                **_FP4,
                "strategy": "group",
                "group_size": 32,
                "scale_dtype": "torch.uint8",
            }
            return _compressed_tensors("mxfp4-pack-quantized", weights, None, _NOT_EXPERTS)
        case Scheme.NVFP4_EXPERTS:
            weights = {**_FP4, "strategy": "tensor_group", "group_size": 16}
            inputs = {**_NEUTRAL, **weights, "dynamic": "local"}
            weights["scale_dtype"] = "torch.float8_e4m3fn"
            return _compressed_tensors("nvfp4-pack-quantized", weights, inputs, [*_NOT_EXPERTS, *_NOT_BLOCK_LINEAR])
        case Scheme.FP8_BLOCK:
            weights = {**_FP8, "strategy": "block", "block_structure": [128, 128]}
            inputs = {
                **_NEUTRAL,
                **_FP8,
                "strategy": "group",
                "group_size": 128,
                "dynamic": True,
            }
            return _compressed_tensors("float-quantized", weights, inputs, _NOT_FP8_BLOCK)
        case Scheme.NVFP4_MIXED:
            return _modelopt_mixed(spec)
        case Scheme.BF16:
            return None


_FP4: dict[str, Any] = {"num_bits": 4, "type": "float"}
_FP8: dict[str, Any] = {"num_bits": 8, "type": "float"}
_NEUTRAL: dict[str, Any] = {"actorder": None, "symmetric": True, "dynamic": False, "observer": "minmax"}
_NOT_BLOCK_LINEAR = [r"re:.*block_sparse_moe\.gate.*", "re:.*_res_proj.*", "re:.*routed_expert_.*"]
_NOT_FP8_BLOCK = [
    "re:.*self_attn.*",
    r"re:.*block_sparse_moe\.gate.*",
    "re:.*_res_proj.*",
    "re:.*lm_head.*",
    "re:.*vision_tower.*",
    "re:.*mm_projector.*",
]


def _compressed_tensors(
    layout: str, weights: dict[str, Any], inputs: dict[str, Any] | None, ignore: list[str]
) -> dict[str, Any]:
    group = {
        "format": layout,
        "targets": ["Linear"],
        "weights": {**_NEUTRAL, "block_structure": None, "observer_kwargs": {}, "zp_dtype": None, **weights},
        "input_activations": inputs,
        "output_activations": None,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": layout,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ignore,
        "kv_cache_scheme": None,
        "global_compression_ratio": None,
    }


def _modelopt_mixed(spec: ModelSpec) -> dict[str, Any]:
    layers = quantized_layers(spec)
    four_bit = {"dynamic": False, "num_bits": 4, "type": "float", "group_size": 16}
    return {
        "quant_method": "modelopt_mixed",
        "quant_algo": "MIXED_PRECISION",
        "producer": {"name": "modelopt", "version": "0.45.0"},
        "config_groups": {
            "group_0": {
                "input_activations": four_bit,
                "weights": four_bit,
                "targets": [name for name, entry in layers.items() if entry["quant_algo"] == "NVFP4"],
            },
            "group_1": {
                "quant_algo": "FP8_PB_WO",
                "targets": [name for name, entry in layers.items() if entry["quant_algo"] == "FP8_PB_WO"],
            },
        },
        "quantized_layers": layers,
        "ignore": exclude_modules(spec),
    }


def quantized_layers(spec: ModelSpec) -> dict[str, dict[str, Any]]:
    """Every quantised module of nvfp4-mixed, under every name an engine looks it up by."""
    found: dict[str, dict[str, Any]] = {}
    for layer in spec.layers:
        if not layer.dense:
            for name in _bank_names(layer):
                found[name] = {"quant_algo": "NVFP4", "group_size": 16}
        for name in _attention_names(layer):
            found[name] = {"quant_algo": "FP8_PB_WO"}
    return found


def _bank_names(layer: LayerSpec) -> Iterator[str]:
    for block in ("block_sparse_moe", "mlp"):
        for prefix in _PREFIXES:
            yield f"{prefix}layers.{layer.index}.{block}.experts"


def _attention_names(layer: LayerSpec) -> Iterator[str]:
    for module in (*ATTENTION_MODULES[layer.attention], *_FUSED[layer.attention]):
        for prefix in _PREFIXES:
            yield f"{prefix}layers.{layer.index}.self_attn.{module}"


def exclude_modules(spec: ModelSpec) -> list[str]:
    """The patterns of what nvfp4-mixed leaves unquantised, as both engines read them."""
    moe = [f"*block_sparse_moe.{part}*" for part in ("routed_expert_up_proj", "routed_expert_down_proj")]
    attention = ("q_conv1d", "k_conv1d", "v_conv1d", "o_norm", "q_a_layernorm", "kv_a_layernorm")
    dense = [f"{prefix}layers.{layer.index}.mlp.*" for layer in spec.layers if layer.dense for prefix in _PREFIXES]
    return [
        "*block_sparse_moe.gate*",
        "*mlp.gate*",
        *moe,
        "*block_sparse_moe.routed_expert_norm*",
        "*block_sparse_moe.shared_experts*",
        *(f"*self_attn.{part}*" for part in attention),
        "*_res_proj*",
        "*_res_norm*",
        "*layernorm*",
        *dense,
        "language_model.lm_head",
        "vision_tower*",
        "mm_projector*",
    ]


def hf_quant_config(spec: ModelSpec) -> dict[str, Any]:
    """hf_quant_config.json of the nvfp4-mixed scheme, as Model Optimizer writes it."""
    return {
        "producer": {"name": "modelopt", "version": "0.45.0"},
        "quantization": {
            "quant_algo": "MIXED_PRECISION",
            "kv_cache_quant_algo": None,
            "group_size": 16,
            "quantized_layers": quantized_layers(spec),
            "exclude_modules": exclude_modules(spec),
        },
    }
