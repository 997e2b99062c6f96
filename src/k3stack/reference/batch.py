"""What goes into one forward pass and what it reads and writes: the border between the model and the engine.

Shapes: T tokens of this pass (all sequences one after another), n tokens of one sequence in this pass, P pages of S
tokens, M MLA layers, D KDA layers, H heads, K and V their widths (128), W width of the short convolution (4).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

__all__ = ["Batch", "Images", "Memory", "Output", "Piece", "Trail", "zeroed"]


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """The tokens of one sequence in this pass.

    Attributes:
        first: the row of its first token in `Batch.tokens`.
        length: n, how many rows it has.
        start: how many tokens of this sequence are already in memory; 0 means that its state slot is read as zeros.
        pages: int64 [pages], where its latent cache is; token t lies in page t // S at row t % S.
        slot: the row of its recurrent and convolution state.
        trail: also keep the state after each of the n tokens, so that rejected draft tokens can be taken back.
    """

    first: int
    length: int
    start: int
    pages: Tensor
    slot: int
    trail: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Images:
    """Projector output that takes the place of token embeddings: rows [n] of this pass, vectors [n, hidden]."""

    rows: Tensor
    vectors: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """One forward pass: tokens int64 [T], cut into pieces without gaps."""

    tokens: Tensor
    pieces: tuple[Piece, ...]
    images: Images | None = None


@dataclass(slots=True)
class Trail:
    """The states after each of n tokens of one sequence: recurrent [D, n, H, K, V] float32, conv [D, n, W-1, 3*H*K]."""

    recurrent: Tensor
    conv: Tensor


@dataclass(slots=True)
class Memory:
    """Everything that outlives a pass.

    Attributes:
        latent: [M, P, S, kv_lora_rank + qk_rope_head_dim], BF16, float32 or float8_e4m3fn (scale 1.0).
        recurrent: float32 [D, slots, H, K, V].
        conv: [D, slots, W-1, 3*H*K], the last inputs of the short convolutions of q, k and v.
        trails: by slot, filled by a pass whose piece asked for it; `rewind` uses and drops it.
        draft: [draft layers, P, S, ...], the draft model's latent cache in the same pages, where there is a draft.
    """

    latent: Tensor
    recurrent: Tensor
    conv: Tensor
    trails: dict[int, Trail] = field(default_factory=dict)
    draft: Tensor | None = None

    def rewind(self, slot: int, kept: int) -> None:
        """Make the state of `slot` what it was after the first `kept` (1 to n) tokens of its last, trailed pass."""
        trail = self.trails.pop(slot)
        self.recurrent[:, slot] = trail.recurrent[:, kept - 1]
        self.conv[:, slot] = trail.conv[:, kept - 1]


@dataclass(frozen=True, slots=True)
class Output:
    """What a pass returns: hidden [T, hidden] before the final norm; captured [T, layers * hidden] for a draft."""

    hidden: Tensor
    captured: Tensor | None = None


def zeroed(memory: Memory, slot: int) -> None:
    """Zero a state slot, so that nothing of an earlier request is left in it."""
    with torch.no_grad():
        memory.recurrent[:, slot].zero_()
        memory.conv[:, slot].zero_()
