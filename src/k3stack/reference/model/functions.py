"""The small functions that several layers share.

Shapes: T tokens, d width, J sources of an AttnRes mix.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["mix", "rms_norm", "silu_gated", "situ"]


def rms_norm(x: Tensor, weight: Tensor, epsilon: float, wide: torch.dtype) -> Tensor:
    """x [.., d] over the root of its mean square, times weight [d]; computed in `wide`, returned in x's dtype."""
    large = x.to(wide)
    # x / sqrt(mean(x^2) + eps) * w, with the quotient rounded to x's dtype before the weight, as Moonshot's code does
    normed = large * torch.rsqrt(large.square().mean(-1, keepdim=True) + epsilon)
    return normed.to(x.dtype) * weight.to(x.dtype)


def situ(gate: Tensor, up: Tensor, beta: float, linear_beta: float, wide: torch.dtype) -> Tensor:
    """SiTU-GLU of gate and up [.., d], each bounded: at most beta * linear_beta in magnitude."""
    g, u = gate.to(wide), up.to(wide)
    # [beta tanh(g / beta) sigmoid(g)] * [linear_beta tanh(u / linear_beta)]
    made = beta * torch.tanh(g / beta) * torch.sigmoid(g) * (linear_beta * torch.tanh(u / linear_beta))
    return made.to(gate.dtype)


def silu_gated(gate: Tensor, up: Tensor) -> Tensor:
    """SiLU(gate) * up, the activation of the draft model."""
    return torch.nn.functional.silu(gate) * up


def mix(sources: list[Tensor], score_weight: Tensor, epsilon: float, wide: torch.dtype) -> Tensor:
    """AttnRes: J sources [T, d], weighted for every token by a softmax over their scores: [T, d].

    Args:
        sources: the finished blocks and the running sum, J of them.
        score_weight: norm weight times projection [d], in `wide`.
        epsilon: of the norm inside the score.
        wide: what it computes in.
    """
    values = torch.stack(sources, dim=1).to(wide)  # [T, J, d]
    # s_j = < V_j / sqrt(mean(V_j^2) + eps), w_norm * w_proj >
    scores = (values * torch.rsqrt(values.square().mean(-1, keepdim=True) + epsilon) * score_weight).sum(-1)
    # out = sum_j softmax(s)_j V_j, with the values as they are, not normed
    return (scores.softmax(-1)[..., None] * values).sum(1).to(sources[0].dtype)
