"""Folders that an engine takes for Kimi-K3 as long as it does not load weights: configuration, tokenizer, pictures.

Also one that it takes for the DSpark draft of the vLLM recipes. Sources: config.json and preprocessor_config.json of
moonshotai/Kimi-K3; config.json of RedHatAI/Kimi-K3-speculator.dspark as other projects read it (five Qwen3 layers,
hidden 7168, 96 heads and 16 of keys with 64 elements, 14336 wide, window 2048, hidden states of layers 24, 48, 72, 88
and 92, blocks of eight).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from k3stack.checkpoint.vocabulary import PICTURES
from k3stack.spec.declare import declare
from k3stack.spec.published import kimi_k3, kimi_k3_config
from k3stack.spec.schemes import Scheme

__all__ = ["draft_folder", "k3_folder"]

_SPECIALS = ["[BOS]", "[EOS]", "[PAD]", "<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>", "<|media_pad|>"]


def k3_folder(folder: Path, scheme: Scheme) -> Path:
    """Everything but the weights; the tokenizer knows bytes and the special tokens only."""
    folder.mkdir(parents=True, exist_ok=True)
    config = declare(kimi_k3_config(), kimi_k3().with_scheme(scheme))
    config.pop("auto_map", None)
    limits = {
        "in_patch_limit": 65_536,
        "patch_limit_on_one_side": 512,
        "in_patch_limit_each_frame": 16_384,
        "in_patch_limit_video": 655_360,
    }
    pictures = {**PICTURES, "media_proc_cfg": {**PICTURES["media_proc_cfg"], **limits}}
    _write(folder / "config.json", config)
    _write(folder / "preprocessor_config.json", pictures)
    _write(folder / "tokenizer.json", _tokenizer())
    names = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "[BOS]",
        "eos_token": "[EOS]",
        "pad_token": "[PAD]",
    }
    _write(folder / "tokenizer_config.json", names)
    return folder


def draft_folder(folder: Path, target: str) -> Path:
    """The draft's configuration in the speculators format."""
    folder.mkdir(parents=True, exist_ok=True)
    layers = 5
    transformer = {
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
        "hidden_size": 7_168,
        "num_hidden_layers": layers,
        "num_attention_heads": 96,
        "num_key_value_heads": 16,
        "head_dim": 64,
        "intermediate_size": 14_336,
        "vocab_size": 163_840,
        "sliding_window": 2_048,
        "use_sliding_window": True,
        "layer_types": ["sliding_attention"] * layers,
        "max_position_embeddings": 1_048_576,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_theta": 10_000.0, "rope_type": "default"},
        "hidden_act": "silu",
        "attention_bias": False,
    }
    config = {
        "architectures": ["DSparkDraftModel"],
        "speculators_model_type": "dspark",
        "transformer_layer_config": transformer,
        "draft_vocab_size": 163_840,
        "target_hidden_size": 7_168,
        "mask_token_id": 163_837,
        "aux_hidden_state_layer_ids": [24, 48, 72, 88, 92],
        "block_size": 8,
        "sample_from_anchor": True,
        "markov_rank": 256,
        "markov_head_type": "vanilla",
        "enable_confidence_head": True,
        "dtype": "bfloat16",
        "speculators_config": {
            "algorithm": "dspark",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 8}],
            "verifier": {"name_or_path": target, "architectures": ["KimiK3ForConditionalGeneration"]},
        },
    }
    _write(folder / "config.json", config)
    return folder


def _tokenizer() -> dict[str, Any]:
    letters = _byte_letters()
    vocabulary = {letter: number for number, letter in enumerate([*letters, *_SPECIALS])}
    added = [
        {"id": vocabulary[name], "content": name, "special": True, "single_word": False, "lstrip": False,
         "rstrip": False, "normalized": False}
        for name in _SPECIALS
    ]  # fmt: skip
    bytes_only = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": bytes_only,
        "decoder": bytes_only,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    }


def _byte_letters() -> list[str]:
    """The visible letter that byte-level tokenizers write for each byte, in the order of GPT-2."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return [chr(byte) for byte in visible] + [chr(256 + number) for number in range(len(hidden))]


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value))
