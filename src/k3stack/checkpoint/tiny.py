"""Tiny checkpoints: K3's architecture at a millionth of its size, with official tensor names and valid numbers.

Head sizes are the real ones (128, 192, 512 + 64), because kernels are built for them; everything else is small and
keeps the proportions: half-width latent, dense layer first, KDA before MLA, the last two layers both MLA. The same seed
gives the same model in every scheme: the weights are drawn once in float32 and then stored as the scheme says.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from k3stack.checkpoint.convert.experts import sharing
from k3stack.checkpoint.header import Entry
from k3stack.checkpoint.mark import mark_random
from k3stack.checkpoint.vocabulary import write_byte_vocabulary, write_chat_files
from k3stack.checkpoint.write import new_folder, require_new, write_index, write_json, write_shard
from k3stack.errors import UsageError
from k3stack.formats import bf16, e4m3, fp8_block, mxfp4, nvfp4
from k3stack.formats.arrays import Floats
from k3stack.spec.declare import declare, hf_quant_config
from k3stack.spec.dtypes import DType
from k3stack.spec.model import ModelSpec
from k3stack.spec.published import kimi_k3_config
from k3stack.spec.schemes import Encoding, Scheme
from k3stack.spec.tensors import Component, TensorSpec, tensors

__all__ = ["TinyReport", "TinyShape", "random_values", "store", "tiny_config", "write_tiny"]


@dataclass(frozen=True, slots=True)
class TinyShape:
    """The sizes that differ from Kimi-K3's.

    Attributes:
        layers: at least 4: a dense KDA layer, KDA layers, then two MLA layers; every fourth is MLA as in Kimi-K3.
        heads: of KDA and of MLA, so also the largest tensor-parallel size.
    """

    layers: int = 5
    heads: int = 8
    hidden: int = 512
    experts: int = 16
    experts_per_token: int = 4
    expert_width: int = 256
    dense_width: int = 1024
    q_lora_rank: int = 256
    attn_res_block: int = 2
    context: int = 4096

    def __post_init__(self) -> None:
        if self.layers < 4:
            raise UsageError(f"a tiny K3 has at least 4 layers, not {self.layers}", where="layers")
        if self.hidden % 256 or self.expert_width % 128:
            raise UsageError("hidden must be a multiple of 256 and expert_width of 128 (FP8 tiles)", where="hidden")


SPECIAL_TOKENS = 256
BYTE_TOKENS = 256


@dataclass(frozen=True, slots=True)
class TinyReport:
    """What was written."""

    folder: str
    scheme: Scheme
    seed: int
    tensors: int
    shards: int
    payload_bytes: int


def tiny_config(scheme: Scheme, shape: TinyShape | None = None) -> dict[str, Any]:
    """config.json of a tiny K3 in a scheme: Kimi-K3's own, with smaller sizes.

    The vocabulary is 256 byte tokens and Kimi-K3's 256 special ones, in the same order.
    """
    shape = shape or TinyShape()
    config = deepcopy(kimi_k3_config())
    text, vision = config["text_config"], config["vision_config"]
    first_special = text["vocab_size"] - SPECIAL_TOKENS
    for holder in (config, text):
        for key in ("bos_token_id", "eos_token_id", "pad_token_id", "media_placeholder_token_id"):
            if key in holder:
                holder[key] = holder[key] - first_special + BYTE_TOKENS
    mla = set(range(4, shape.layers + 1, 4)) | {shape.layers - 1, shape.layers}
    text.update(
        vocab_size=BYTE_TOKENS + SPECIAL_TOKENS,
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        intermediate_size=shape.dense_width,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        q_lora_rank=shape.q_lora_rank,
        num_experts=shape.experts,
        num_experts_per_token=shape.experts_per_token,
        moe_intermediate_size=shape.expert_width,
        routed_expert_hidden_size=shape.hidden // 2,
        attn_res_block_size=shape.attn_res_block,
        max_position_embeddings=shape.context,
    )
    text["linear_attn_config"].update(
        num_heads=shape.heads,
        full_attn_layers=sorted(mla),
        kda_layers=[number for number in range(1, shape.layers + 1) if number not in mla],
    )
    vision.update(
        vt_hidden_size=128,
        mm_hidden_size=128,
        vt_intermediate_size=256,
        vt_num_attention_heads=2,
        qkv_hidden_size=256,
        vt_num_hidden_layers=2,
        init_pos_emb_height=16,
        init_pos_emb_width=16,
        text_hidden_size=shape.hidden,
    )
    return declare(config, ModelSpec.from_config(config).with_scheme(scheme))


def write_tiny(
    folder: Path,
    scheme: Scheme,
    seed: int = 0,
    shape: TinyShape | None = None,
    report: Callable[[int, int | None, str], None] = lambda *_: None,
) -> TinyReport:
    """Write a tiny checkpoint: shards, index, config.json, tokenizer, a mark, and what the scheme needs besides.

    The folder appears complete or not at all.

    Raises:
        UsageError: `folder` is there already, or its parent is not.
    """
    require_new(folder)
    config = tiny_config(scheme, shape)
    spec = ModelSpec.from_config(config)
    with new_folder(folder) as building:
        by_shard: dict[str, list[TensorSpec]] = defaultdict(list)
        for tensor in tensors(spec):
            by_shard[tensor.shard].append(tensor)
        payload_bytes = 0
        for done, (shard, found) in enumerate(by_shard.items()):
            report(done, len(by_shard), shard)
            maker = _Maker(spec, seed)
            entries = [Entry(tensor.name, tensor.dtype, tensor.shape) for tensor in found]
            maker.learn(found)
            payload_bytes += write_shard(building / shard, entries, maker.payload)
        weight_map = {tensor.name: shard for shard, found in by_shard.items() for tensor in found}
        write_index(building, weight_map, payload_bytes)
        write_json(building / "config.json", config)
        if scheme is Scheme.NVFP4_MIXED:
            write_json(building / "hf_quant_config.json", hf_quant_config(spec))
        write_byte_vocabulary(building, (shape or TinyShape()).context)
        write_chat_files(building)
        mark_random(building, seed)
    return TinyReport(str(folder), scheme, seed, len(weight_map), len(by_shard), payload_bytes)


class _Maker:
    """Makes the bytes of each tensor. Numbers depend on the seed and the module's name alone."""

    def __init__(self, spec: ModelSpec, seed: int) -> None:
        self.spec, self.seed = spec, seed
        self.specs: dict[str, TensorSpec] = {}
        self.made: dict[str, dict[str, bytes]] = {}

    def learn(self, found: list[TensorSpec]) -> None:
        """Remember what will be asked for."""
        self.specs = {tensor.name: tensor for tensor in found}

    def payload(self, entry: Entry) -> bytes:
        """The bytes of one tensor; the parts of a quantised matrix are made together and kept until asked for."""
        module, _, suffix = entry.name.rpartition(".")
        encoding = self._encoding(self.specs[entry.name])
        if encoding is Encoding.BF16:
            return store(random_values(self.seed, entry.name, entry.shape), entry.dtype)
        if module not in self.made:
            self.made[module] = self._encoded(module, encoding)
        return self.made[module].pop(suffix)

    def _encoding(self, tensor: TensorSpec) -> Encoding:
        module = tensor.name.rpartition(".")[0]
        if f"{module}.weight_scale" not in self.specs:
            return Encoding.BF16
        if tensor.component is Component.ROUTED_EXPERTS:
            return self.spec.scheme.expert
        if tensor.component in (Component.KDA, Component.MLA):
            return self.spec.scheme.attention
        return self.spec.scheme.other_linear

    def _matrix(self, module: str, out: int, into: int) -> Floats:
        return random_matrix(self.seed, module, out, into)

    def _encoded(self, module: str, encoding: Encoding) -> dict[str, bytes]:
        out, into = self._logical_shape(module, encoding)
        weight = self._matrix(module, out, into)
        match encoding:
            case Encoding.MXFP4:
                packed, scale = mxfp4.quantize(weight)
                return {"weight_packed": packed.tobytes(), "weight_scale": scale.tobytes()}
            case Encoding.NVFP4_MODELOPT | Encoding.NVFP4_CT:
                packed, scale, second = nvfp4.quantize(weight, self._shared_second_scale(module, out, into))
                if encoding is Encoding.NVFP4_MODELOPT:
                    seconds = {"weight_scale_2": second, "input_scale": np.float32(1)}
                    name = "weight"
                else:  # compressed-tensors divides by its global scales
                    seconds = {"weight_global_scale": 1 / second, "input_global_scale": np.float32(1)}
                    name = "weight_packed"
                stored = {key: np.float32(value).tobytes() for key, value in seconds.items()}
                return {name: packed.tobytes(), "weight_scale": scale.tobytes(), **stored}
            case Encoding.FP8_BLOCK_MODELOPT | Encoding.FP8_BLOCK_CT:
                fp8, scales = fp8_block.quantize(weight)
                dtype = DType.F32 if encoding is Encoding.FP8_BLOCK_MODELOPT else DType.BF16
                return {"weight": fp8.tobytes(), "weight_scale": store(scales, dtype)}
        raise AssertionError(encoding)

    def _logical_shape(self, module: str, encoding: Encoding) -> tuple[int, int]:
        packed = f"{module}.weight_packed" in self.specs
        out, into = self.specs[f"{module}.{'weight_packed' if packed else 'weight'}"].shape
        four_bit = encoding in (Encoding.MXFP4, Encoding.NVFP4_MODELOPT, Encoding.NVFP4_CT)
        return out, into * 2 if four_bit else into

    def _shared_second_scale(self, module: str, out: int, into: int) -> float:
        """SiTU kernels take one second scale for gate (w1) and up (w3), so the pair shares it; a power of two."""
        top = max(float(np.abs(self._matrix(name, out, into)).max()) for name in sharing(module))
        return float(2.0 ** np.ceil(np.log2(top / (6 * e4m3.MAX))))


def random_values(seed: int, name: str, shape: tuple[int, ...]) -> Floats:
    """The values of an unquantised tensor, of a size that keeps activations near one. They depend on seed and name."""
    module, _, _ = name.rpartition(".")
    random = _random(seed, name)
    if name.endswith("A_log"):
        return np.log(random.uniform(1, 16, shape)).astype(np.float32)
    if name.endswith("dt_bias"):
        return random.normal(-2, 1, shape).astype(np.float32)
    if name.endswith("e_score_correction_bias"):
        return random.normal(0, 0.01, shape).astype(np.float32)
    if "conv1d" in name:
        return random.normal(0, 0.5, shape).astype(np.float32)
    if "norm" in module.rpartition(".")[2]:
        return (1 + 0.1 * random.standard_normal(shape)).astype(np.float32)
    if len(shape) == 2:
        if name.endswith("embed_tokens.weight"):
            return random.standard_normal(shape).astype(np.float32)
        return random_matrix(seed, module, shape[0], shape[1])
    values: Floats = (random.standard_normal(shape) / np.sqrt(prod(shape[1:]))).astype(np.float32)
    return values


def random_matrix(seed: int, module: str, out: int, into: int) -> Floats:
    """A weight matrix whose outputs keep the size of its inputs."""
    values: Floats = (_random(seed, module).standard_normal((out, into)) / np.sqrt(into)).astype(np.float32)
    return values


def _random(seed: int, name: str) -> np.random.Generator:
    return np.random.default_rng([seed, zlib.crc32(name.encode())])


def store(values: NDArray[Any], dtype: DType) -> bytes:
    """Values as the bytes of a BF16 or F32 tensor."""
    if dtype is DType.F32:
        return values.astype("<f4").tobytes()
    assert dtype is DType.BF16, dtype
    return bf16.encode(values.astype(np.float32)).tobytes()
