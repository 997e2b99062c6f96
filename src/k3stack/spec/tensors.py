"""Every tensor of a K3 checkpoint: name, shape, dtype, component, layer, shard.

A `Family` is one line of the model's table: a tensor, or the same tensor of every expert of a bank. Families are few
(about 3,400 for K3), so sizes are summed over them in milliseconds; `expand` lists the single tensors.

Names and shapes: Moonshot's index and shard headers. Shard L+1 holds layer L; then one shard for embeddings, head and
final norms, one for the projector, one for the vision tower.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from math import prod
from typing import NamedTuple

from k3stack.spec.dtypes import DType
from k3stack.spec.model import Attention, LayerSpec, ModelSpec
from k3stack.spec.schemes import Encoding

__all__ = ["Component", "Family", "TensorSpec", "expand", "families", "shard_name", "tensors"]

A_LOG_ALIGNMENT = 128
"""A_log has one number per head, stored padded to a multiple of this (K3: 96 heads, 128 numbers)."""


class Component(StrEnum):
    """The part of the model that a tensor belongs to."""

    ROUTED_EXPERTS = "routed experts"
    SHARED_EXPERTS = "shared experts"
    LATENT = "latent projections"
    ROUTER = "router"
    KDA = "KDA attention"
    MLA = "MLA attention"
    DENSE = "dense MLP"
    EMBEDDING = "embedding"
    HEAD = "output head"
    NORMS = "norms and residual mixing"
    VISION = "vision tower"
    PROJECTOR = "vision projector"


class TensorSpec(NamedTuple):
    """One tensor as it stands in a checkpoint. A tuple, because there are half a million of them."""

    name: str
    shape: tuple[int, ...]
    dtype: DType
    component: Component
    layer: int | None
    shard: str

    @property
    def size_bytes(self) -> int:
        """Bytes of the payload."""
        return prod(self.shape) * self.dtype.size_bytes


@dataclass(frozen=True, slots=True)
class Family:
    """One tensor, or with `experts` the same tensor for every expert; `{expert}` stands in the name.

    Attributes:
        parameters: model parameters that one tensor holds (0 for scales; a packed weight counts its elements).
        shard_index: which shard holds it, from zero.
        encoding: how the weight matrix that this is a part of is stored; None for a tensor that is no such matrix.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType
    component: Component
    layer: int | None
    shard_index: int
    parameters: int
    experts: int = 0
    encoding: Encoding | None = None

    @property
    def module(self) -> str:
        """The name without its last part; `{expert}` stands in it for a bank."""
        return self.name.rpartition(".")[0]

    @property
    def count(self) -> int:
        """How many tensors this stands for."""
        return self.experts or 1

    @property
    def size_bytes(self) -> int:
        """Payload bytes of one of the tensors."""
        return prod(self.shape) * self.dtype.size_bytes

    def names(self) -> Iterator[str]:
        """The names of the single tensors."""
        if not self.experts:
            yield self.name
        else:
            before, after = self.name.split("{expert}")
            for expert in range(self.experts):
                yield f"{before}{expert}{after}"


def families(spec: ModelSpec) -> Iterator[Family]:
    """All tensor families of a checkpoint in `spec.scheme`, layer by layer."""
    for layer in spec.layers:
        yield from _layer(spec, layer)
    yield from _outer(spec)
    if spec.vision is not None:
        yield from _vision(spec)


def expand(found: Iterator[Family], shards: int) -> Iterator[TensorSpec]:
    """The single tensors of `found`; `shards` is how many files the checkpoint has."""
    names = [shard_name(index, shards) for index in range(shards)]
    for family in found:
        shard = names[family.shard_index]
        for name in family.names():
            yield TensorSpec(name, family.shape, family.dtype, family.component, family.layer, shard)


def tensors(spec: ModelSpec) -> Iterator[TensorSpec]:
    """Every tensor of a checkpoint in `spec.scheme`."""
    return expand(families(spec), shard_count(spec))


def shard_count(spec: ModelSpec) -> int:
    """How many safetensors files the checkpoint has (K3: 96)."""
    return len(spec.layers) + (1 if spec.vision is None else 3)


def shard_name(index: int, shards: int) -> str:
    """The file name of a shard, `index` from zero; Moonshot counts the total in six digits."""
    return f"model-{index + 1:05d}-of-{shards:06d}.safetensors"


class _Shelf:
    """Makes families that share a shard, a layer and a name prefix."""

    def __init__(self, prefix: str, layer: int | None, shard_index: int) -> None:
        self.prefix, self.layer, self.shard_index = prefix, layer, shard_index

    def plain(self, component: Component, name: str, *shape: int, dtype: DType = DType.BF16) -> Iterator[Family]:
        """A tensor that every scheme stores the same way."""
        yield Family(self.prefix + name, shape, dtype, component, self.layer, self.shard_index, parameters=prod(shape))

    def matrix(
        self, component: Component, module: str, out: int, into: int, encoding: Encoding, experts: int = 0
    ) -> Iterator[Family]:
        """A weight matrix [out, into], stored as `encoding` says."""
        for part in encoding.parts(out, into):
            holds_weight = part.suffix in ("weight", "weight_packed")
            yield Family(
                f"{self.prefix}{module}.{part.suffix}",
                part.shape,
                part.dtype,
                component,
                self.layer,
                self.shard_index,
                parameters=out * into if holds_weight else 0,
                experts=experts,
                encoding=encoding,
            )


def _layer(spec: ModelSpec, layer: LayerSpec) -> Iterator[Family]:
    shelf = _Shelf(f"{spec.prefix}model.layers.{layer.index}.", layer.index, layer.index)
    for norm in ("input_layernorm", "post_attention_layernorm", "self_attention_res_norm", "mlp_res_norm"):
        yield from shelf.plain(Component.NORMS, f"{norm}.weight", spec.hidden)
    for mix in ("self_attention_res_proj", "mlp_res_proj"):
        yield from shelf.plain(Component.NORMS, f"{mix}.weight", 1, spec.hidden)
    yield from (_kda if layer.attention is Attention.KDA else _mla)(spec, shelf)
    yield from (_dense if layer.dense else _moe)(spec, shelf)


def _kda(spec: ModelSpec, shelf: _Shelf) -> Iterator[Family]:
    kda, hidden, part = spec.kda, spec.hidden, Component.KDA

    def matrix(name: str, out: int, into: int) -> Iterator[Family]:
        return shelf.matrix(part, f"self_attn.{name}", out, into, spec.scheme.attention)

    for name in ("q_proj", "k_proj", "v_proj", "g_proj"):
        yield from matrix(name, kda.width, hidden)
    yield from matrix("o_proj", hidden, kda.width)
    yield from matrix("b_proj", kda.heads, hidden)
    yield from matrix("f_a_proj", kda.head_dim, hidden)
    yield from matrix("f_b_proj", kda.width, kda.head_dim)
    for name in ("q_conv1d", "k_conv1d", "v_conv1d"):
        yield from shelf.plain(part, f"self_attn.{name}.weight", kda.width, 1, kda.conv_kernel, dtype=DType.F32)
    a_log = -(-kda.heads // A_LOG_ALIGNMENT) * A_LOG_ALIGNMENT
    yield from shelf.plain(part, "self_attn.A_log", a_log, dtype=DType.F32)
    yield from shelf.plain(part, "self_attn.dt_bias", kda.width, dtype=DType.F32)
    yield from shelf.plain(part, "self_attn.o_norm.weight", kda.head_dim, dtype=DType.F32)


def _mla(spec: ModelSpec, shelf: _Shelf) -> Iterator[Family]:
    mla, hidden, part = spec.mla, spec.hidden, Component.MLA

    def matrix(name: str, out: int, into: int) -> Iterator[Family]:
        return shelf.matrix(part, f"self_attn.{name}", out, into, spec.scheme.attention)

    yield from matrix("q_a_proj", mla.q_lora_rank, hidden)
    yield from matrix("q_b_proj", mla.heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim), mla.q_lora_rank)
    yield from matrix("kv_a_proj_with_mqa", mla.cache_width, hidden)
    yield from matrix("kv_b_proj", mla.heads * (mla.qk_nope_head_dim + mla.v_head_dim), mla.kv_lora_rank)
    yield from matrix("g_proj", mla.width, hidden)
    yield from matrix("o_proj", hidden, mla.width)
    yield from shelf.plain(part, "self_attn.q_a_layernorm.weight", mla.q_lora_rank)
    yield from shelf.plain(part, "self_attn.kv_a_layernorm.weight", mla.kv_lora_rank)


def _dense(spec: ModelSpec, shelf: _Shelf) -> Iterator[Family]:
    for name in ("gate_proj", "up_proj", "down_proj"):
        out, into = spec.dense_width, spec.hidden
        out, into = (into, out) if name == "down_proj" else (out, into)
        yield from shelf.matrix(Component.DENSE, f"mlp.{name}", out, into, spec.scheme.other_linear)


def _moe(spec: ModelSpec, shelf: _Shelf) -> Iterator[Family]:
    moe, hidden, other = spec.moe, spec.hidden, spec.scheme.other_linear
    here = "block_sparse_moe"
    yield from shelf.plain(Component.ROUTER, f"{here}.gate.weight", moe.experts, hidden)
    yield from shelf.plain(Component.ROUTER, f"{here}.gate.e_score_correction_bias", moe.experts, dtype=DType.F32)
    latent = Component.LATENT
    yield from shelf.matrix(latent, f"{here}.routed_expert_down_proj", moe.latent_width, hidden, other)
    yield from shelf.matrix(latent, f"{here}.routed_expert_up_proj", hidden, moe.latent_width, other)
    yield from shelf.plain(latent, f"{here}.routed_expert_norm.weight", moe.latent_width)
    shared = Component.SHARED_EXPERTS
    yield from shelf.matrix(shared, f"{here}.shared_experts.gate_proj", moe.shared_width, hidden, other)
    yield from shelf.matrix(shared, f"{here}.shared_experts.up_proj", moe.shared_width, hidden, other)
    yield from shelf.matrix(shared, f"{here}.shared_experts.down_proj", hidden, moe.shared_width, other)
    for name in ("w1", "w2", "w3"):  # gate, down, up
        out, into = moe.expert_width, moe.latent_width
        out, into = (into, out) if name == "w2" else (out, into)
        yield from shelf.matrix(
            Component.ROUTED_EXPERTS,
            f"{here}.experts.{{expert}}.{name}",
            out,
            into,
            spec.scheme.expert,
            experts=moe.experts,
        )


def _outer(spec: ModelSpec) -> Iterator[Family]:
    shelf = _Shelf(spec.prefix, None, len(spec.layers))
    yield from shelf.plain(Component.EMBEDDING, "model.embed_tokens.weight", spec.vocab, spec.hidden)
    if not spec.tied_head:
        yield from shelf.plain(Component.HEAD, "lm_head.weight", spec.vocab, spec.hidden)
    yield from shelf.plain(Component.NORMS, "model.norm.weight", spec.hidden)
    yield from shelf.plain(Component.NORMS, "model.output_attn_res_norm.weight", spec.hidden)
    yield from shelf.plain(Component.NORMS, "model.output_attn_res_proj.weight", 1, spec.hidden)


def _vision(spec: ModelSpec) -> Iterator[Family]:
    vision = spec.vision
    assert vision is not None
    projector = _Shelf("mm_projector.", None, len(spec.layers) + 1)
    merged, part = vision.merged_width, Component.PROJECTOR
    yield from projector.plain(part, "proj.0.weight", merged, merged)
    yield from projector.plain(part, "proj.2.weight", spec.hidden, merged)
    yield from projector.plain(part, "post_norm.weight", spec.hidden)
    tower = _Shelf("vision_tower.", None, len(spec.layers) + 2)
    part = Component.VISION
    yield from tower.plain(part, "patch_embed.proj.weight", vision.width, 3, vision.patch, vision.patch)
    yield from tower.plain(part, "patch_embed.pos_emb.weight", *vision.position_grid, vision.width)
    yield from tower.plain(part, "encoder.final_layernorm.weight", vision.width)
    for block in range(vision.layers):
        here = f"encoder.blocks.{block}"
        yield from tower.plain(part, f"{here}.norm0.weight", vision.width)
        yield from tower.plain(part, f"{here}.norm1.weight", vision.width)
        yield from tower.plain(part, f"{here}.wqkv.weight", 3 * vision.qkv_width, vision.width)
        yield from tower.plain(part, f"{here}.wo.weight", vision.width, vision.qkv_width)
        yield from tower.plain(part, f"{here}.mlp.fc0.weight", vision.mlp_width, vision.width)
        yield from tower.plain(part, f"{here}.mlp.fc1.weight", vision.width, vision.mlp_width)
