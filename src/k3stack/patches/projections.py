"""Kimi-K3's fused attention projections, built from vLLM's classes and loaded from a block-FP8 checkpoint.

Shapes, with H heads of 128 and `hidden` columns (K3: H = 96, hidden = 7168):
    KDA     q, k, v, g [128 H]   f_a [128]   b [H]                 -> in_proj_qkvgfab
    MLA     q_a [1536]   kv_a [512 + 64]                           -> fused_qkv_a_proj            (up to 0.28)
            q_a [1536]   kv_a [512 + 64]   gate [128 H]            -> fused_qkv_a_g_proj          (from 0.29)
            kv_b [256 H, 512]                                      -> kv_b_proj
Each has one float32 scale per 128 x 128 block, in a tensor [ceil(rows / 128), 1, columns / 128, 1].
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .bench import BLOCK, LINEAR, block_fp8_config, load, product_with_identity
from .edits import find
from .patch import CannotApplyError

__all__ = ["K3", "SMALL", "Geometry", "Mismatch", "fused_names", "gate", "kda", "kv_b", "latents", "tensor"]

KDA = "vllm.models.kimi_k3.nvidia.kda"
MODEL = "vllm.models.kimi_k3.nvidia.model"
LAYER = "layer"


@dataclass(frozen=True, slots=True)
class Geometry:
    """The sizes that the projections depend on."""

    hidden: int
    heads: int
    q_lora: int
    kv_lora: int
    rope: int
    head: int = 128


K3 = Geometry(hidden=7168, heads=96, q_lora=1536, kv_lora=512, rope=64)
SMALL = Geometry(hidden=256, heads=8, q_lora=128, kv_lora=128, rope=64)
"""Small enough for a probe, with the property that matters: the gate starts in the middle of a block."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One shard whose effective weight differs from the checkpoint's."""

    shard: str
    rows: int
    wrong_rows: tuple[int, ...]

    def __str__(self) -> str:
        return f"{len(self.wrong_rows)} of {self.rows} rows of {self.shard} differ from the checkpoint"


def tensor(rows: int, columns: int, seed: int) -> tuple[Any, Any]:
    """A checkpoint tensor: E4M3 weights, never zero, and power-of-two scales that no two neighbours share."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    # Bytes 0x08..0x77 are the positive normal numbers 2^-6..240, so any wrong scale shows in every element.
    weight = torch.randint(0x08, 0x78, (rows, columns), generator=generator, dtype=torch.uint8)
    row_blocks, column_blocks = -(-rows // BLOCK), columns // BLOCK
    exponent = torch.arange(row_blocks)[:, None] * 3 + torch.arange(column_blocks)[None, :] * 5 + seed
    scale = torch.exp2((exponent % 13 - 6).float())
    return weight.view(torch.float8_e4m3fn), scale.reshape(row_blocks, 1, column_blocks, 1)


def effective(weight: Any, scale: Any) -> Any:
    """[rows, columns] BF16, exact: what the checkpoint means."""
    import torch

    wide = scale.reshape(scale.shape[0], -1).to(torch.bfloat16)
    wide = wide.repeat_interleave(BLOCK, 0)[: weight.shape[0]].repeat_interleave(BLOCK, 1)
    return weight.to(torch.bfloat16).mul_(wide)


def gate(size: Geometry, tp: int, rank: int) -> list[Mismatch]:
    """Build and load the merged latent and gate projection, and compare it with the checkpoint."""
    cls = find(LINEAR, "KimiK3MergedQKVGateLinear")
    shards = {
        "q_a_proj": size.q_lora,
        "kv_a_proj_with_mqa": size.kv_lora + size.rope,
        "g_proj": size.heads * size.head,
    }
    layer = cls(
        hidden_size=size.hidden,
        q_lora_rank=size.q_lora,
        kv_lora_rank=size.kv_lora,
        qk_rope_head_dim=size.rope,
        total_num_heads=size.heads,
        v_head_dim=size.head,
        bias=False,
        quant_config=_config(shards),
        prefix=f"{LAYER}.fused_qkv_a_g_proj",
    )
    return _compare(layer, size.hidden, shards, {"g_proj": lambda rows: rows.chunk(tp)[rank]})


def latents(size: Geometry) -> list[Mismatch]:
    """The same for the merged latent projection that releases up to 0.28 use."""
    shards = {"q_a_proj": size.q_lora, "kv_a_proj_with_mqa": size.kv_lora + size.rope}
    layer = find(LINEAR, "MergedColumnParallelLinear")(
        size.hidden,
        list(shards.values()),
        bias=False,
        quant_config=_config(shards),
        prefix=f"{LAYER}.fused_qkv_a_proj",
        disable_tp=True,
    )
    return _compare(layer, size.hidden, shards, {})


def kda(size: Geometry, tp: int, rank: int) -> list[Mismatch]:
    """The same for the merged input projection of a KDA layer; f_a is whole on every rank, b is split by head."""
    width = size.heads * size.head
    shards = {"q_proj": width, "k_proj": width, "v_proj": width, "g_proj": width}
    shards |= {"f_a_proj": size.head, "b_proj": size.heads}
    sizes = list(shards.values())
    padding = -(4 * width // tp + size.head + size.heads // tp) % 16
    layer = find(KDA, "_KimiGDNMergedColumnParallelLinear")(
        size.hidden,
        [*sizes, padding * tp] if padding else sizes,
        replicated_shard_id=4,
        tp_size=tp,
        bias=False,
        quant_config=_config(shards),
        prefix=f"{LAYER}.in_proj_qkvgfab",
    )
    mine = {name: (lambda rows: rows.chunk(tp)[rank]) for name in shards if name != "f_a_proj"}
    return _compare(layer, size.hidden, shards, mine)


def kv_b(size: Geometry, tp: int, rank: int) -> tuple[Any, Any]:
    """A loaded kv_b_proj layer and its rank's effective weight from the checkpoint."""
    rows = size.heads * 2 * size.head
    layer = find(LINEAR, "ColumnParallelLinear")(
        size.kv_lora,
        rows,
        bias=False,
        quant_config=_config({"kv_b_proj": rows}),
        prefix=f"{LAYER}.kv_b_proj",
    )
    weight, scale = tensor(rows, size.kv_lora, 7)
    load(layer, None, weight, scale)
    layer.quant_method.process_weights_after_loading(layer)
    return layer, effective(weight, scale).chunk(tp)[rank]


def fused_names() -> dict[str, list[str]]:
    """The model's own table of fused projections: fused name -> checkpoint names.

    Raises:
        CannotApplyError: no class of the model has one, so nothing can be said about its projections.
    """
    model = find(MODEL)
    for _, cls in inspect.getmembers(model, inspect.isclass):
        table: dict[str, list[str]] = getattr(cls, "packed_modules_mapping", None) or {}
        if "in_proj_qkvgfab" in table:
            return table
    raise CannotApplyError(f"{MODEL} has no packed_modules_mapping with in_proj_qkvgfab")


def _config(shards: Mapping[str, int]) -> Any:
    return block_fp8_config({f"{LAYER}.{name}": "FP8_PB_WO" for name in shards}, fused_names())


def _compare(
    layer: Any, columns: int, shards: Mapping[str, int], mine: Mapping[str, Callable[[Any], Any]]
) -> list[Mismatch]:
    """Load every shard, run the post-load step, and compare the layer's output with the checkpoint, row by row."""
    checkpoint = {name: tensor(rows, columns, seed) for seed, (name, rows) in enumerate(shards.items())}
    for shard, name in enumerate(shards):
        load(layer, shard, *checkpoint[name])
    layer.quant_method.process_weights_after_loading(layer)
    output = product_with_identity(layer)
    rows = sum(layer.output_sizes) // layer.tp_size
    if output.shape[0] != rows:
        raise ValueError(f"{layer.prefix} returns {output.shape[0]} columns instead of {rows}")
    found, start = [], 0
    for name in shards:
        expected = effective(*checkpoint[name])
        expected = mine[name](expected) if name in mine else expected
        actual = output[start : start + expected.shape[0]]
        wrong = (actual != expected).any(dim=1).nonzero().flatten().tolist()
        if wrong or actual.shape != expected.shape:
            found.append(Mismatch(name, expected.shape[0], tuple(wrong)))
        start += expected.shape[0]
    return found
