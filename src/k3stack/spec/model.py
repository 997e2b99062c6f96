"""ModelSpec: what a K3 is. Layers, tensors, parameters and bytes, all derived from config.json.

    hidden    7168   the residual stream             latent  3584   the width routed experts work in
    heads       96   of KDA (128 wide) and MLA       experts  896   per MoE layer, 16 chosen per token
    layers      93   69 KDA and 24 MLA (the last two both MLA); layer 0 has a dense MLP, the others LatentMoE

Sources: config.json of moonshotai/Kimi-K3, its tensor index and two shard headers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from k3stack.spec.schemes import Scheme

if TYPE_CHECKING:
    from k3stack.spec.config import Config

__all__ = ["Attention", "KdaSpec", "LayerSpec", "MlaSpec", "ModelSpec", "MoeSpec", "VisionSpec"]


class Attention(StrEnum):
    """The two kinds of attention."""

    KDA = "kda"
    MLA = "mla"


@dataclass(frozen=True, slots=True)
class KdaSpec:
    """Kimi Delta Attention: linear attention with a recurrent state of [heads, head_dim, head_dim] per layer."""

    heads: int
    head_dim: int
    conv_kernel: int
    gate_lower_bound: float

    @property
    def width(self) -> int:
        """Rows of the q, k, v and gate projections."""
        return self.heads * self.head_dim


@dataclass(frozen=True, slots=True)
class MlaSpec:
    """Gated multi-head latent attention without rotation: one latent of `cache_width` per token and layer."""

    heads: int
    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int

    @property
    def cache_width(self) -> int:
        """Elements cached per token and layer: the normed latent and the shared key part (512 + 64)."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def width(self) -> int:
        """Columns of o_proj and rows of the output gate."""
        return self.heads * self.v_head_dim


@dataclass(frozen=True, slots=True)
class MoeSpec:
    """LatentMoE: routed experts work in a narrower space; shared experts at full width, fused into one MLP."""

    experts: int
    experts_per_token: int
    expert_width: int
    latent_width: int
    shared_width: int


@dataclass(frozen=True, slots=True)
class VisionSpec:
    """The vision tower and its projector."""

    layers: int
    width: int
    mlp_width: int
    qkv_width: int
    heads: int
    patch: int
    position_grid: tuple[int, int]
    merge: tuple[int, int]

    @property
    def merged_width(self) -> int:
        """Input of the projector: the patches of one merged cell side by side."""
        return self.width * self.merge[0] * self.merge[1]


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One decoder layer; `index` counts from zero, as tensor names do."""

    index: int
    attention: Attention
    dense: bool


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A K3 as config.json describes it.

    `scheme` is how the checkpoint beside that config.json is stored; `with_scheme` asks about another one.
    """

    hidden: int
    vocab: int
    dense_width: int
    max_context: int
    attn_res_block: int
    tied_head: bool
    layers: tuple[LayerSpec, ...]
    kda: KdaSpec
    mla: MlaSpec
    moe: MoeSpec
    vision: VisionSpec | None
    scheme: Scheme
    multimodal: bool

    @classmethod
    def from_config(cls, source: Path | str | Mapping[str, Any]) -> ModelSpec:
        """The spec of a config.json: its path, the folder that holds it, or its parsed content.

        Raises:
            ConfigError: a field is unknown, missing or contradictory; the error names it.
        """
        from k3stack.spec.config import parse_config, read_config

        if isinstance(source, Mapping):
            return _from_config(parse_config(source), "config.json")
        path = Path(source)
        path = path / "config.json" if path.is_dir() else path
        return _from_config(read_config(path), str(path))

    def with_scheme(self, scheme: Scheme | str) -> ModelSpec:
        """The same model, stored another way."""
        return replace(self, scheme=Scheme(scheme))

    @property
    def prefix(self) -> str:
        """What stands before the text model's tensor names."""
        return "language_model." if self.multimodal else ""

    def layers_of(self, attention: Attention) -> tuple[LayerSpec, ...]:
        """The layers with this kind of attention."""
        return tuple(layer for layer in self.layers if layer.attention is attention)

    @property
    def moe_layers(self) -> tuple[LayerSpec, ...]:
        """The layers with routed experts."""
        return tuple(layer for layer in self.layers if not layer.dense)


def _from_config(config: Config, where: str) -> ModelSpec:
    from k3stack.spec.declared import declared_scheme

    text, linear, vision = config.text_config, config.text_config.linear_attn_config, config.vision_config
    kda_layers = {number - 1 for number in linear.kda_layers}
    return ModelSpec(
        hidden=text.hidden_size,
        vocab=text.vocab_size,
        dense_width=text.intermediate_size,
        max_context=text.max_position_embeddings,
        attn_res_block=text.attn_res_block_size,
        tied_head=text.tie_word_embeddings,
        layers=tuple(
            LayerSpec(
                index=index,
                attention=Attention.KDA if index in kda_layers else Attention.MLA,
                dense=index < text.first_k_dense_replace,
            )
            for index in range(text.num_hidden_layers)
        ),
        kda=KdaSpec(
            heads=linear.num_heads,
            head_dim=linear.head_dim,
            conv_kernel=linear.short_conv_kernel_size,
            gate_lower_bound=linear.gate_lower_bound,
        ),
        mla=MlaSpec(
            heads=text.num_attention_heads,
            q_lora_rank=text.q_lora_rank,
            kv_lora_rank=text.kv_lora_rank,
            qk_nope_head_dim=text.qk_nope_head_dim,
            qk_rope_head_dim=text.qk_rope_head_dim,
            v_head_dim=text.v_head_dim,
        ),
        moe=MoeSpec(
            experts=text.num_experts,
            experts_per_token=text.num_experts_per_token,
            expert_width=text.moe_intermediate_size,
            latent_width=text.routed_expert_hidden_size,
            shared_width=text.num_shared_experts * text.moe_intermediate_size,
        ),
        vision=None
        if vision is None
        else VisionSpec(
            layers=vision.vt_num_hidden_layers,
            width=vision.vt_hidden_size,
            mlp_width=vision.vt_intermediate_size,
            qkv_width=vision.qkv_hidden_size,
            heads=vision.vt_num_attention_heads,
            patch=vision.patch_size,
            position_grid=(vision.init_pos_emb_height, vision.init_pos_emb_width),
            merge=(vision.merge_kernel_size[0], vision.merge_kernel_size[1]),
        ),
        scheme=declared_scheme(config, where),
        multimodal=config.multimodal,
    )
