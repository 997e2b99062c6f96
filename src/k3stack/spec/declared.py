"""What config.json's `quantization_config` says, read as a scheme, and the block we write for each scheme.

compressed-tensors puts it into text_config (Moonshot) or at the top (RedHat's tools); Model Optimizer at the top.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from k3stack.errors import ConfigError
from k3stack.spec.schemes import Scheme

if TYPE_CHECKING:
    from k3stack.spec.config import Config

__all__ = ["declared_scheme"]

_HINT = "Schemes that can be read: " + ", ".join(Scheme) + "."


def declared_scheme(config: Config, where: str) -> Scheme:
    """The scheme that a config declares; none declared means bf16.

    Raises:
        ConfigError: a quantisation that is none of ours; names the field.
    """
    inside = config.text_config.quantization_config
    block = config.quantization_config if inside is None else inside
    if block is None:
        return Scheme.BF16
    in_text = inside is not None and config.multimodal
    field = f"{where}: {'text_config.' if in_text else ''}quantization_config"
    method = block.get("quant_method")
    if method == "compressed-tensors":
        return _compressed_tensors(block, field)
    if method == "modelopt_mixed":
        return _modelopt_mixed(block, field)
    if method == "fp8":
        if block.get("weight_block_size") != [128, 128]:
            raise ConfigError("must be [128, 128]", where=f"{field}.weight_block_size", hint=_HINT)
        return Scheme.FP8_BLOCK
    raise ConfigError(f"is {method!r}", where=f"{field}.quant_method", hint=_HINT)


def _compressed_tensors(block: Mapping[str, Any], field: str) -> Scheme:
    groups = block.get("config_groups")
    if not isinstance(groups, Mapping) or len(groups) != 1:
        raise ConfigError("must hold exactly one group", where=f"{field}.config_groups", hint=_HINT)
    name, group = next(iter(groups.items()))
    weights = group.get("weights") if isinstance(group, Mapping) else None
    if not isinstance(weights, Mapping):
        raise ConfigError("must be an object", where=f"{field}.config_groups.{name}.weights", hint=_HINT)
    layout = group.get("format") or block.get("format")
    found = (layout, weights.get("num_bits"), weights.get("type"))
    match found:
        case ("mxfp4-pack-quantized", 4, "float"):
            _expect(weights, "group_size", 32, f"{field}.config_groups.{name}.weights")
            return Scheme.MXFP4
        case ("nvfp4-pack-quantized", 4, "float"):
            _expect(weights, "group_size", 16, f"{field}.config_groups.{name}.weights")
            return Scheme.NVFP4_EXPERTS
        case ("float-quantized", 8, "float") if weights.get("strategy") == "block":
            _expect(weights, "block_structure", [128, 128], f"{field}.config_groups.{name}.weights")
            return Scheme.FP8_BLOCK
    raise ConfigError(f"is {layout!r} with {found[1]!r} bits of {found[2]!r}", where=f"{field}.format", hint=_HINT)


def _modelopt_mixed(block: Mapping[str, Any], field: str) -> Scheme:
    _expect(block, "quant_algo", "MIXED_PRECISION", field)
    layers = block.get("quantized_layers")
    if not isinstance(layers, Mapping) or not layers:
        raise ConfigError("must name the quantised layers", where=f"{field}.quantized_layers", hint=_HINT)
    for name, entry in layers.items():
        algorithm = entry.get("quant_algo") if isinstance(entry, Mapping) else None
        expected = "FP8_PB_WO" if "self_attn" in name else "NVFP4"
        if algorithm != expected:
            raise ConfigError(
                f"is {algorithm!r}, expected {expected!r}", where=f"{field}.quantized_layers.{name}", hint=_HINT
            )
    return Scheme.NVFP4_MIXED


def _expect(block: Mapping[str, Any], key: str, value: object, field: str) -> None:
    if block.get(key) != value:
        raise ConfigError(f"is {block.get(key)!r}, expected {value!r}", where=f"{field}.{key}", hint=_HINT)
