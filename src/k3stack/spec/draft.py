"""What a DSpark draft of K3 is: a few dense MLA layers that guess a block of tokens from the target's hidden states.

Published: Inferact/Kimi-K3-DSpark, 5 layers, 2,387,907,841 parameters of its own, all BF16. It shares the target's
embedding and head; its file holds a copy of the embedding.
Sources: its config; vLLM 0.33.0, models/kimi_k3/nvidia/dspark_mla.py and transformers_utils/configs/k3_dspark.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from k3stack.errors import ConfigError
from k3stack.spec.config import Count, TokenId, checked, read_object
from k3stack.spec.dtypes import DType
from k3stack.spec.model import MlaSpec
from k3stack.spec.schemes import Encoding
from k3stack.spec.tensors import Component, Family

__all__ = ["DraftSpec", "Yarn", "draft_families", "shared_families"]


@dataclass(frozen=True, slots=True)
class Yarn:
    """Rotary positions: base `theta`, stretched by `factor` from `original` positions on (factor 1: not at all)."""

    theta: float
    factor: float = 1.0
    original: int = 32_768
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 1.0
    mscale_all_dim: float = 0.0


@dataclass(frozen=True, slots=True)
class DraftSpec:
    """A draft as its config.json describes it.

    Attributes:
        block: tokens it guesses at a time.
        captures: the target's layers, from zero, after which it reads the running sum.
        mask_token: stands in the block for tokens not yet guessed.
        confidence: whether a head says how likely each guess is to be accepted.
    """

    hidden: int
    vocab: int
    layers: int
    width: int
    attention: MlaSpec
    yarn: Yarn
    captures: tuple[int, ...]
    target_hidden: int
    markov_rank: int
    mask_token: int
    block: int
    epsilon: float
    confidence: bool

    @classmethod
    def from_config(cls, source: Path | Mapping[str, Any]) -> DraftSpec:
        """The spec of a draft's config.json: the folder that holds it, or its parsed content.

        Raises:
            ConfigError: not there, or a field is missing, contradictory or asks for what no K3 draft has.
        """
        if isinstance(source, Mapping):
            return _from_config(source, "config.json")
        path = source / "config.json"
        return _from_config(read_object(path), str(path))


class _Rope(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    rope_type: Literal["default", "yarn", "deepseek_yarn"] = "default"
    rope_theta: float = 50_000.0
    factor: float = 1.0
    original_max_position_embeddings: Count = 32_768
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 1.0
    mscale_all_dim: float = 0.0


class _DraftConfig(BaseModel):
    """The fields that shape a draft. Others (generation defaults, training settings) are skipped."""

    model_config = ConfigDict(extra="ignore", frozen=True, protected_namespaces=())

    model_type: Literal["k3_dspark"]
    hidden_size: Count
    vocab_size: Count
    num_hidden_layers: Count
    intermediate_size: Count
    hidden_act: Literal["silu"] = "silu"
    num_attention_heads: Count
    q_lora_rank: Count
    kv_lora_rank: Count
    qk_nope_head_dim: Count
    qk_rope_head_dim: Count
    v_head_dim: Count
    rms_norm_eps: float
    rope_theta: float = 50_000.0
    rope_parameters: _Rope | None = None
    mla_use_nope: Literal[False] = False
    mla_use_output_gate: Literal[False] = False
    mla_use_qk_norm: Literal[False] = False
    dspark_bonus_anchor: Literal[False] = False
    target_layer_ids: list[TokenId]
    num_target_layers: Count
    target_hidden_size: Count
    markov_rank: Count
    mask_token_id: TokenId
    block_size: Count = 7
    enable_confidence_head: bool = False
    confidence_head_with_markov: bool = False


def _from_config(data: Mapping[str, Any], where: str) -> DraftSpec:
    found = checked(_DraftConfig, data, f"{where}: ")
    captures = tuple(found.target_layer_ids)
    if list(captures) != sorted(set(captures)) or len(captures) != found.num_target_layers:
        raise ConfigError("must name num_target_layers layers, rising", where=f"{where}: target_layer_ids")
    if found.enable_confidence_head and not found.confidence_head_with_markov:
        raise ConfigError("must be true, as in the published draft", where=f"{where}: confidence_head_with_markov")
    rope = found.rope_parameters or _Rope(rope_theta=found.rope_theta)
    return DraftSpec(
        hidden=found.hidden_size,
        vocab=found.vocab_size,
        layers=found.num_hidden_layers,
        width=found.intermediate_size,
        attention=MlaSpec(
            heads=found.num_attention_heads,
            q_lora_rank=found.q_lora_rank,
            kv_lora_rank=found.kv_lora_rank,
            qk_nope_head_dim=found.qk_nope_head_dim,
            qk_rope_head_dim=found.qk_rope_head_dim,
            v_head_dim=found.v_head_dim,
        ),
        yarn=Yarn(
            theta=rope.rope_theta,
            factor=1.0 if rope.rope_type == "default" else rope.factor,
            original=rope.original_max_position_embeddings,
            beta_fast=rope.beta_fast,
            beta_slow=rope.beta_slow,
            mscale=rope.mscale,
            mscale_all_dim=rope.mscale_all_dim,
        ),
        captures=captures,
        target_hidden=found.target_hidden_size,
        markov_rank=found.markov_rank,
        mask_token=found.mask_token_id,
        block=found.block_size,
        epsilon=found.rms_norm_eps,
        confidence=found.enable_confidence_head,
    )


def draft_families(spec: DraftSpec) -> Iterator[Family]:
    """The draft's own tensors, all BF16."""
    hidden, mla = spec.hidden, spec.attention
    yield _tensor(Component.HEAD, "context_proj.weight", hidden, len(spec.captures) * spec.target_hidden)
    yield _tensor(Component.NORMS, "context_norm.weight", hidden)
    key_value = mla.heads * (mla.qk_nope_head_dim + mla.v_head_dim)
    matrices = {
        "self_attn.q_a_proj": (mla.q_lora_rank, hidden),
        "self_attn.q_b_proj": (mla.heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim), mla.q_lora_rank),
        "self_attn.kv_a_proj_with_mqa": (mla.cache_width, hidden),
        "self_attn.kv_b_proj": (key_value, mla.kv_lora_rank),
        "self_attn.o_proj": (hidden, mla.width),
        "mlp.gate_proj": (spec.width, hidden),
        "mlp.up_proj": (spec.width, hidden),
        "mlp.down_proj": (hidden, spec.width),
    }
    norms = {
        "input_layernorm": hidden,
        "post_attention_layernorm": hidden,
        "self_attn.q_a_layernorm": mla.q_lora_rank,
        "self_attn.kv_a_layernorm": mla.kv_lora_rank,
    }
    for layer in range(spec.layers):
        for name, shape in matrices.items():
            component = Component.DENSE if name.startswith("mlp") else Component.MLA
            yield _tensor(component, f"layers.{layer}.{name}.weight", *shape, layer=layer)
        for name, width in norms.items():
            yield _tensor(Component.NORMS, f"layers.{layer}.{name}.weight", width, layer=layer)
    yield _tensor(Component.NORMS, "final_norm.weight", hidden)
    yield _tensor(Component.HEAD, "markov_head.markov_w1.weight", spec.vocab, spec.markov_rank)
    yield _tensor(Component.HEAD, "markov_head.markov_w2.weight", spec.vocab, spec.markov_rank)
    if spec.confidence:
        yield _tensor(Component.HEAD, "confidence_head.proj.weight", 1, hidden + spec.markov_rank)
        yield _tensor(Component.HEAD, "confidence_head.proj.bias", 1)


def shared_families(spec: DraftSpec) -> Iterator[Family]:
    """Copies of the target's tensors that a draft's file may hold (the published one holds the embedding)."""
    yield _tensor(Component.EMBEDDING, "embed_tokens.weight", spec.vocab, spec.target_hidden)
    yield _tensor(Component.HEAD, "lm_head.weight", spec.vocab, spec.target_hidden)


def _tensor(component: Component, name: str, *shape: int, layer: int | None = None) -> Family:
    encoding = Encoding.BF16 if len(shape) == 2 else None
    return Family(name, shape, DType.BF16, component, layer, 0, parameters=prod(shape), encoding=encoding)
