"""The small functions that several layers share.

Shapes: T tokens, d width, J sources of an AttnRes mix.

`sigmoid`, `silu` and `inverse_root` are written with exp, division and square root, because PyTorch's own versions give
a number other last bits in the last few places of a tensor than elsewhere (its vector and its scalar code differ); a
token's result would then depend on how many tokens stand beside it.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["inverse_root", "mix", "rms_norm", "sigmoid", "silu", "situ"]


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x))."""
    return 1 / (1 + torch.exp(-x))


def silu(x: Tensor) -> Tensor:
    """x * sigmoid(x)."""
    return x * sigmoid(x)


def inverse_root(x: Tensor) -> Tensor:
    """1 / sqrt(x)."""
    return 1 / torch.sqrt(x)


def rms_norm(x: Tensor, weight: Tensor, epsilon: float, wide: torch.dtype) -> Tensor:
    """x [.., d] over the root of its mean square, times weight [d]; computed in `wide`, returned in x's dtype."""
    large = x.to(wide)
    # x / sqrt(mean(x^2) + eps) * w, with the quotient rounded to x's dtype before the weight, as Moonshot's code does
    normed = large * inverse_root(large.square().mean(-1, keepdim=True) + epsilon)
    return normed.to(x.dtype) * weight.to(x.dtype)


def situ(gate: Tensor, up: Tensor, beta: float, linear_beta: float, wide: torch.dtype) -> Tensor:
    """SiTU-GLU of gate and up [.., d], each bounded: at most beta * linear_beta in magnitude."""
    g, u = gate.to(wide), up.to(wide)
    # [beta tanh(g / beta) sigmoid(g)] * [linear_beta tanh(u / linear_beta)]
    made = beta * torch.tanh(g / beta) * sigmoid(g) * (linear_beta * torch.tanh(u / linear_beta))
    return made.to(gate.dtype)


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
    scores = (values * inverse_root(values.square().mean(-1, keepdim=True) + epsilon) * score_weight).sum(-1)
    # out = sum_j softmax(s)_j V_j, with the values as they are, not normed
    return (scores.softmax(-1)[..., None] * values).sum(1).to(sources[0].dtype)
