"""Tiny DSpark drafts for tiny checkpoints: the published draft's tensor names and head sizes, random numbers.

A random draft is right as often as chance: it shows that speculative decoding loses nothing, not that it is fast.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from k3stack.checkpoint.header import Entry
from k3stack.checkpoint.tiny import TinyReport, TinyShape, random_values, store, tiny_config
from k3stack.checkpoint.write import new_folder, write_json, write_shard
from k3stack.spec.draft import DraftSpec, draft_families, shared_families
from k3stack.spec.model import ModelSpec
from k3stack.spec.schemes import Scheme

__all__ = ["tiny_draft_config", "write_tiny_draft"]

FILE = "model.safetensors"
LAYERS, HEADS, RANK, BLOCK = 2, 2, 16, 4
MASK_FROM_THE_END = 3
"""The mask token's place in the vocabulary, as in the published draft: 163,837 of 163,840."""


def tiny_draft_config(target: ModelSpec) -> dict[str, Any]:
    """config.json of a tiny draft: the published one's fields, with smaller sizes that fit `target`."""
    captures = sorted({0, len(target.layers) // 2, len(target.layers) - 2})
    return {
        "architectures": ["K3DSparkModel"],
        "model_type": "k3_dspark",
        "dtype": "bfloat16",
        "hidden_size": target.hidden,
        "vocab_size": target.vocab,
        "num_hidden_layers": LAYERS,
        "intermediate_size": 2 * target.hidden,
        "hidden_act": "silu",
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "q_lora_rank": target.mla.q_lora_rank,
        "kv_lora_rank": target.mla.kv_lora_rank,
        "qk_nope_head_dim": target.mla.qk_nope_head_dim,
        "qk_rope_head_dim": target.mla.qk_rope_head_dim,
        "v_head_dim": target.mla.v_head_dim,
        "rms_norm_eps": 1e-05,
        "max_position_embeddings": target.max_context,
        "rope_theta": 50000.0,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 50000.0,
            "factor": 32.0,
            "original_max_position_embeddings": 32768,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
        "mla_use_nope": False,
        "mla_use_output_gate": False,
        "target_layer_ids": captures,
        "num_target_layers": len(captures),
        "target_hidden_size": target.hidden,
        "markov_rank": RANK,
        "mask_token_id": target.vocab - MASK_FROM_THE_END,
        "block_size": BLOCK,
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
        "tie_word_embeddings": False,
    }


def write_tiny_draft(folder: Path, seed: int = 0, shape: TinyShape | None = None) -> TinyReport:
    """Write a tiny draft for the tiny checkpoint of the same seed and shape, in whatever scheme that is stored.

    Raises:
        UsageError: `folder` is there already, or its parent is not.
    """
    target = ModelSpec.from_config(tiny_config(Scheme.BF16, shape))
    config = tiny_draft_config(target)
    spec = DraftSpec.from_config(config)
    copy = next(family for family in shared_families(spec) if family.name == "embed_tokens.weight")
    entries = [Entry(family.name, family.dtype, family.shape) for family in (*draft_families(spec), copy)]

    def payload(entry: Entry) -> bytes:
        home = f"{target.prefix}model" if entry.name == copy.name else "draft"  # the copy has the target's numbers
        name = f"{home}.{entry.name}"
        return store(random_values(seed, name, entry.shape), entry.dtype)

    with new_folder(folder) as building:
        payload_bytes = write_shard(building / FILE, entries, payload)
        write_json(building / "config.json", config)
    return TinyReport(str(folder), Scheme.BF16, seed, len(entries), 1, payload_bytes)
