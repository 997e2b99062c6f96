"""The tokenizer of a tiny checkpoint: a token for each byte, and Kimi-K3's special tokens, in Moonshot's two files."""

from __future__ import annotations

import base64
from pathlib import Path

from k3stack.checkpoint.write import write_json
from k3stack.files import write_text

__all__ = ["SPECIAL_NAMES", "write_byte_vocabulary"]

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
