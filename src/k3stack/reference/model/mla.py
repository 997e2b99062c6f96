"""Gated multi-head latent attention, without rotation: one latent of 576 numbers per token and layer is cached.

Shapes: T tokens of the pass, n of one sequence, L tokens of it in memory, H heads (96), c latent (512), r the part of
the key that heads share (64), d_k = 128 and d_v = 128 per head, hidden (7168).

    q      = q_b RMSNorm(q_a x)                  [H, d_k + r]
    [c, r] = kv_a x;  c = RMSNorm(c)             cached: [c | r]
    [k, v] = kv_b c                              [H, d_k], [H, d_v]; the key of a head is [k | r]
    out    = o_proj( softmax(q k^T / sqrt(d_k + r)) v * sigmoid(g_proj x) )

The epsilon of the norms of q_a x and of c is config.json's rms_norm_eps (1e-5), as in vLLM, SGLang and the MLX port.
Moonshot's own modelling file leaves those two at its norm class's default of 1e-6. The served model is what engines
compute, so that is the choice here; `low_rank_epsilon` of `load_model` sets the other.

`plain` makes k and v of all cached tokens and attends as written. `absorbed` moves kv_b to the query's side, so that it
attends to the latents themselves: <q, W_k c> = <W_k^T q, c>, and sum_t p_t W_v c_t = W_v (sum_t p_t c_t).

Both read what was written to memory, this pass's own tokens too, so that with a rounded cache (BF16, FP8) a token sees
the same keys whether they came in this pass or in an earlier one.
"""

from __future__ import annotations

import sys

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from k3stack.reference.batch import Memory, Piece
from k3stack.reference.model.arithmetic import Arithmetic
from k3stack.reference.model.cut import Cut
from k3stack.reference.model.functions import rms_norm, sigmoid
from k3stack.reference.model.store import Section
from k3stack.spec.model import MlaSpec

__all__ = ["Mla", "absorbed", "plain", "read_latents", "write_latents"]

KEY_TILE = 256
"""Cached tokens that absorbed attention takes at a time; fixed, so that sums are made in the same order always."""

PLAIN_FROM = 32
"""Without `steady`, pieces of at least this many tokens take the plain form."""

E4M3_LARGEST = 448.0


def write_latents(latents: Tensor, cells: Tensor, layer: Tensor) -> None:
    """Store latents [T, c + r] in one layer's pages [P, S, c + r]; FP8 has scale 1.0 and saturates."""
    if layer.dtype is torch.float8_e4m3fn:
        latents, layer = (
            latents.clamp(-E4M3_LARGEST, E4M3_LARGEST).to(layer.dtype).view(torch.uint8),
            layer.view(torch.uint8),
        )
    layer.view(-1, layer.shape[-1])[cells] = latents.to(layer.dtype)


def read_latents(piece: Piece, layer: Tensor, dtype: torch.dtype) -> Tensor:
    """The latents [L, c + r] of a sequence, this pass's included, from one layer's pages."""
    end = piece.start + piece.length
    pages = piece.pages[: -(-end // layer.shape[1])].to(layer.device)
    raw = layer.view(torch.uint8)[pages].view(layer.dtype) if layer.dtype is torch.float8_e4m3fn else layer[pages]
    return raw.flatten(0, 1)[:end].to(dtype)


def plain(q: Tensor, latents: Tensor, W_k: Tensor, W_v: Tensor, start: int, scale: float) -> Tensor:
    """Attention of n tokens to all tokens up to each: [n, H, d_v].

    Args:
        q: queries [n, H, d_k + r].
        latents: [L, c + r], of which the last n are the queries' own.
        W_k: [H, d_k, c], the half of kv_b that makes keys.
        W_v: [H, d_v, c], the half that makes values.
        start: position of the first query, L - n.
        scale: of the scores.
    """
    c, r = latents[:, : W_k.shape[2]], latents[:, W_k.shape[2] :]
    k = torch.einsum("lc,hdc->hld", c, W_k)
    k = torch.cat([k, r.expand(len(k), -1, -1)], dim=-1)
    v = torch.einsum("lc,hdc->hld", c, W_v)
    seen = torch.arange(len(latents), device=q.device) <= torch.arange(start, start + len(q), device=q.device)[:, None]
    made = F.scaled_dot_product_attention(q.transpose(0, 1)[None], k[None], v[None], attn_mask=seen, scale=scale)
    return made[0].transpose(0, 1)


def absorbed(q: Tensor, latents: Tensor, last: Tensor, c: int, scale: float, wide: torch.dtype) -> Tensor:
    """Attention of n queries in latent space to cached latents, tile by tile with a running softmax: [n, H, c].

    Args:
        q: [W_k^T q | q_r], so [n, H, c + r].
        latents: [L, c + r].
        last: int64 [n], the last position that each query sees.
        c: width of the latent without the shared part of the key.
        scale: of the scores.
        wide: dtype of scores and sums.
    """
    L = len(latents)
    latents = F.pad(latents, (0, 0, 0, -L % KEY_TILE))
    top = q.new_full(q.shape[:2], float("-inf"), dtype=wide)  # [n, H], the largest score so far
    total = q.new_zeros(q.shape[:2], dtype=wide)
    made = q.new_zeros(*q.shape[:2], c, dtype=wide)
    for first in range(0, L, KEY_TILE):
        tile = latents[first : first + KEY_TILE].to(q.dtype).expand(len(q), -1, -1)
        scores = torch.bmm(q, tile.transpose(1, 2)).to(wide) * scale  # [n, H, tile]
        hidden = torch.arange(first, first + KEY_TILE, device=q.device) > last[:, None]
        scores = scores.masked_fill(hidden[:, None], float("-inf"))
        higher = torch.maximum(top, scores.amax(-1))
        p = (scores - higher[..., None]).exp()
        shrink = (top - higher).exp()
        total = total * shrink + p.sum(-1)
        made = made * shrink[..., None] + torch.bmm(p.to(q.dtype), tile[..., :c]).to(wide)
        top = higher
    return made / total[..., None]


class Mla:
    """One MLA layer; `place` is its number among the MLA layers, which is where its latents are in memory."""

    def __init__(self, spec: MlaSpec, section: Section, place: int, epsilon: float) -> None:
        self.spec, self.place = spec, place
        self.arithmetic: Arithmetic = section.store.arithmetic
        self.low_rank_epsilon = self.arithmetic.low_rank_epsilon or epsilon
        names = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "g_proj", "o_proj")
        self.matrices = {name: section.matrix(name) for name in names}
        self.q_a_norm, self.kv_a_norm = section.weight("q_a_layernorm"), section.weight("kv_a_layernorm")
        self.kv_b = section.matrix("kv_b_proj")
        self.scale = (spec.qk_nope_head_dim + spec.qk_rope_head_dim) ** -0.5

    def __call__(self, x: Tensor, cut: Cut, memory: Memory) -> Tensor:
        """x [T, hidden] to [T, hidden]; the latents of these tokens are written to memory first."""
        spec, wide, layer = self.spec, self.arithmetic.wide, memory.latent[self.place]
        low = rms_norm(self._project(x, "q_a_proj"), self.q_a_norm, self.low_rank_epsilon, wide)
        q = self._project(low, "q_b_proj").view(len(x), spec.heads, -1)
        c_r = self._project(x, "kv_a_proj_with_mqa")
        c, r = c_r[:, : spec.kv_lora_rank], c_r[:, spec.kv_lora_rank :]
        latents = torch.cat([rms_norm(c, self.kv_a_norm, self.low_rank_epsilon, wide), r], dim=1)
        write_latents(latents, cut.cells, layer)
        made = self._attend(q, cut, layer)
        gate = sigmoid(self._project(x, "g_proj").to(wide)).to(x.dtype)
        return self._project(made.flatten(1) * gate, "o_proj")

    def _project(self, x: Tensor, name: str) -> Tensor:
        return self.arithmetic.linear(x, self.matrices[name].dense())

    def _attend(self, q: Tensor, cut: Cut, layer: Tensor) -> Tensor:
        """Attention of each sequence alone: q [T, H, d_k + r] to [T, H, d_v]."""
        W = self.kv_b.dense().view(self.spec.heads, -1, self.spec.kv_lora_rank)
        W_k, W_v = W[:, : self.spec.qk_nope_head_dim], W[:, self.spec.qk_nope_head_dim :]
        plain_from = sys.maxsize if self.arithmetic.steady else PLAIN_FROM
        short = [piece for piece in cut.pieces if piece.length < plain_from]
        made = q.new_empty(*q.shape[:2], self.spec.v_head_dim)
        if short:
            made = self._absorbed(q, short, layer, W_k, W_v)
        for piece in (piece for piece in cut.pieces if piece.length >= plain_from):
            rows = slice(piece.first, piece.first + piece.length)
            latents = read_latents(piece, layer, q.dtype)
            made[rows] = plain(q[rows], latents, W_k, W_v, piece.start, self.scale)
        return made

    def _absorbed(self, q: Tensor, pieces: list[Piece], layer: Tensor, W_k: Tensor, W_v: Tensor) -> Tensor:
        """Absorbed attention of some pieces; the rows of others are undefined."""
        c, q_k, q_r = W_k.shape[2], q[..., : W_k.shape[1]], q[..., W_k.shape[1] :]
        moved = torch.cat([self.arithmetic.per_head(q_k, W_k), q_r], dim=2)  # W_k^T q: [T, H, c + r]
        seen = q.new_zeros(*q.shape[:2], c)
        for piece in pieces:
            rows = slice(piece.first, piece.first + piece.length)
            latents = read_latents(piece, layer, q.dtype)
            last = torch.arange(piece.start, piece.start + piece.length, device=q.device)
            seen[rows] = absorbed(moved[rows], latents, last, c, self.scale, self.arithmetic.wide)
        return self.arithmetic.per_head(seen, W_v.transpose(1, 2))  # W_v (sum p c): [T, H, d_v]
