"""What of a tiny checkpoint is no weights: its tokenizer, its chat template, the settings of its pictures.

The tokenizer has a token for each byte and Kimi-K3's special tokens, in Moonshot's two files. Kimi-K3 renders chats by
Python code of its own; a tiny one has a template instead, so that an engine serves it without running code of it.
"""

from __future__ import annotations

import base64
from importlib.resources import files
from pathlib import Path
from typing import Any

from k3stack.checkpoint.write import write_json
from k3stack.files import write_text

__all__ = ["PICTURES", "SPECIAL_NAMES", "chat_template", "write_byte_vocabulary", "write_chat_files"]

SPECIAL_NAMES: dict[int, str] = {
    0: "[BOS]",
    1: "[EOS]",
    2: "<|end_of_msg|>",
    3: "<|open|>",
    4: "<|close|>",
    5: "<|sep|>",
    9: "[EOT]",
    18: "<|media_begin|>",
    19: "<|media_content|>",
    20: "<|media_end|>",
    21: "<|media_pad|>",
    254: "[UNK]",
    255: "[PAD]",
}
"""Names of Kimi-K3's special tokens by their place behind the ranks (its tokenizer_config.json; ids from 163,584)."""


def write_byte_vocabulary(folder: Path, context: int) -> None:
    """Write `tiktoken.model` with the 256 bytes in order and `tokenizer_config.json` with names and context."""
    lines = [f"{base64.b64encode(bytes([byte])).decode()} {byte}\n" for byte in range(256)]
    write_text(folder / "tiktoken.model", "".join(lines))
    tokens = {str(256 + place): {"content": name, "special": True} for place, name in SPECIAL_NAMES.items()}
    write_json(folder / "tokenizer_config.json", {"added_tokens_decoder": tokens, "model_max_length": context})


PICTURES: dict[str, Any] = {
    "image_processor_type": "KimiK25FusedVisionProcessor",
    "media_proc_cfg": {
        "patch_size": 14,
        "merge_kernel_size": 2,
        "in_patch_limit": 1_024,
        "patch_limit_on_one_side": 64,
        "fixed_output_tokens": None,
        "in_patch_limit_each_frame": 1_024,
        "in_patch_limit_video": 1_024,
        "max_num_frames_each_video": None,
        "sample_fps": 8.0,
        "temporal_merge_kernel_size": 4,
        "timestamp_mode": "hh:mm:ss.fff",
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    },
}
"""As in Kimi-K3's preprocessor_config.json, with limits for a short context: an image has at most 256 tokens."""


def chat_template() -> str:
    """The Jinja template of tiny checkpoints: `k3stack.xtml.encode`'s prompts as one text."""
    return files("k3stack.checkpoint").joinpath("data/chat_template.jinja").read_text()


def write_chat_files(folder: Path) -> None:
    """Write `chat_template.jinja` and `preprocessor_config.json`: engines want them, the reference does not."""
    write_text(folder / "chat_template.jinja", chat_template())
    write_json(folder / "preprocessor_config.json", PICTURES)
