"""Kimi Delta Attention: linear attention with a matrix of K x V per head as its memory.

Shapes: T tokens of the pass, n of one sequence, B sequences, H heads (96), K and V their widths (128), W width of the
short convolution (4), C tokens of a chunk, hidden (7168). Everything from the convolution to the output norm is wide
(float32), as are the states.

    q, k, v = SiLU(conv(W x))            causal, each channel alone, W inputs
    q, k    = each head divided by its length; q also by sqrt(K)
    beta    = sigmoid(b_proj x)          one number a head: how much of the new value is written
    g       = bound * sigmoid(exp(A_log) * (f_b f_a x + dt_bias))      log decay of each of the K rows, in (bound, 0)
    S       = the recurrence below
    out     = o_proj( RMSNorm(o; o_norm) * sigmoid(g_proj x) )
"""

from __future__ import annotations

import torch
from torch import Tensor

from k3stack.reference.batch import Memory, Piece, Trail
from k3stack.reference.model.arithmetic import Arithmetic
from k3stack.reference.model.cut import Cut
from k3stack.reference.model.functions import inverse_root, rms_norm, sigmoid, silu
from k3stack.reference.model.kernels import chunked_by_kernel
from k3stack.reference.model.store import Section
from k3stack.spec.model import KdaSpec

__all__ = ["Kda", "chunked", "recurrent", "short_convolution", "step"]

LENGTH_EPSILON = 1e-6
"""Added to the squared length of q and k (Moonshot's code, fla's l2norm)."""

CHUNKED_FROM = 16
"""Pieces shorter than this take the recurrent form, for which they are as fast."""


def step(S: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """One token of the recurrence for any number of sequences and heads.

    Args:
        S: the state [.., K, V].
        q: the query [.., K].
        k: the key [.., K].
        v: the value [.., V].
        g: log decay [.., K].
        beta: write strength [..].

    Returns:
        The output [.., V] and the new state.
    """
    S = g.exp()[..., None] * S  # S <- diag(exp g) S
    u = v - (k[..., None, :] @ S)[..., 0, :]  # u = v - S^T k: what the memory does not yet say about k
    S = S + k[..., None] * (beta[..., None] * u)[..., None, :]  # S <- S + k (beta u)^T
    return (q[..., None, :] @ S)[..., 0, :], S  # o = S^T q


def recurrent(
    S: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, *, states: list[Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """n tokens of one sequence, one after another.

    Args:
        S: the state before them [H, K, V].
        q: queries [n, H, K].
        k: keys [n, H, K].
        v: values [n, H, V].
        g: log decays [n, H, K].
        beta: write strengths [n, H].
        states: gets the state after each token.

    Returns:
        Outputs [n, H, V] and the state after them.
    """
    made = torch.empty_like(v)
    S = S[None]  # a batch of one, so that the products are those of a decode step, bit for bit
    for t in range(len(q)):
        token = slice(t, t + 1)
        made[token], S = step(S, q[token], k[token], v[token], g[token], beta[token])
        if states is not None:
            states.append(S[0])
    return made, S[0]


def chunked(
    S: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, *, chunk: int = 16
) -> tuple[Tensor, Tensor]:
    """The same as `recurrent`, C tokens at a time; equal but for rounding.

    With G_t the sum of g over a chunk's tokens up to t, and w_i = beta_i u_i, the recurrence unrolls to
        S_t = diag(exp G_t) S_0 + sum_{i<=t} diag(exp(G_t - G_i)) k_i w_i^T
        w_i = beta_i (v_i - S_0^T (exp(G_i) k_i) - sum_{j<i} A_ij w_j)       A_ij = <k_i, exp(G_i - G_j) k_j>
        o_t = S_0^T (exp(G_t) q_t) + sum_{i<=t} B_ti w_i                     B_ti = <q_t, exp(G_t - G_i) k_i>
    so w is the solution of a triangular system. G falls, so no exponent is ever positive.
    """
    n = len(q)
    made = torch.empty_like(v)
    for first in range(0, n, chunk):
        part = slice(first, min(first + chunk, n))
        made[part], S = _one_chunk(S, *(x[part].transpose(0, 1) for x in (q, k, v, g, beta)))
    return made, S


def _one_chunk(S: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """One chunk, heads first: q, k, g [H, C, K], v [H, C, V], beta [H, C]."""
    G = g.cumsum(1)
    decay = (G[:, :, None] - G[:, None]).clamp(max=0).exp()  # exp(G_t - G_i), [H, C, C, K]; only t >= i is used
    A = torch.einsum("hik,hijk,hjk->hij", k, decay, k).tril(-1)
    B = torch.einsum("htk,htik,hik->hti", q, decay, k).tril()
    known = beta[..., None] * (v - (G.exp() * k) @ S)  # beta_i (v_i - S_0^T (exp(G_i) k_i))
    system = torch.eye(len(A[0]), dtype=A.dtype, device=A.device) + beta[..., None] * A
    w = torch.linalg.solve_triangular(system, known, upper=False, unitriangular=True)  # [H, C, V]
    o = (G.exp() * q) @ S + B @ w
    last = G[:, -1:]
    S = last.exp().transpose(1, 2) * S + ((last - G).exp() * k).transpose(1, 2) @ w
    return o.transpose(0, 1), S


def short_convolution(window: Tensor, weight: Tensor) -> Tensor:
    """SiLU of a causal convolution of each channel alone.

    Args:
        window: the last W-1 inputs before, then n inputs [.., W-1+n, channels].
        weight: [channels, W]; the last column meets the newest input.

    Returns:
        [.., n, channels].
    """
    width = weight.shape[1]
    n = window.shape[-2] - (width - 1)
    total = window.narrow(-2, 0, n) * weight[:, 0]  # y_t = sum_j w_j x_(t - W + 1 + j)
    for j in range(1, width):
        total = total + window.narrow(-2, j, n) * weight[:, j]
    return silu(total)


class Kda:
    """One KDA layer; `place` is its number among the KDA layers, which is where its states are in memory."""

    def __init__(self, spec: KdaSpec, section: Section, place: int, epsilon: float) -> None:
        self.spec, self.place, self.epsilon = spec, place, epsilon
        self.arithmetic: Arithmetic = section.store.arithmetic
        names = ("q_proj", "k_proj", "v_proj", "g_proj", "o_proj", "b_proj", "f_a_proj", "f_b_proj")
        self.matrices = {name: section.matrix(name) for name in names}
        convolutions = [section.tensor(f"{name}_conv1d.weight")[:, 0] for name in "qkv"]
        self.convolution = torch.cat(convolutions)  # [3 H K, W]
        self.rate = section.tensor("A_log")[: spec.heads].exp()  # one a head; the rest of A_log is padding
        self.dt_bias = section.tensor("dt_bias").view(spec.heads, spec.head_dim)
        self.o_norm = section.tensor("o_norm.weight")

    def __call__(self, x: Tensor, cut: Cut, memory: Memory) -> Tensor:
        """x [T, hidden] to [T, hidden]; the states of every sequence in memory move on."""
        H, K, wide = self.spec.heads, self.spec.head_dim, self.arithmetic.wide
        inputs = torch.cat([self._project(x, name) for name in ("q_proj", "k_proj", "v_proj")], dim=1)
        mixed = self._convolve(inputs, cut, memory).view(-1, 3, H, K)
        q, k, v = mixed.unbind(1)
        q = q * inverse_root(q.square().sum(-1, keepdim=True) + LENGTH_EPSILON) * K**-0.5
        k = k * inverse_root(k.square().sum(-1, keepdim=True) + LENGTH_EPSILON)
        beta = sigmoid(self._project(x, "b_proj").to(wide))  # [T, H]
        z = self._project(self._project(x, "f_a_proj"), "f_b_proj").to(wide).view(-1, H, K) + self.dt_bias
        g = self.spec.gate_lower_bound * sigmoid(self.rate[:, None] * z)  # in (-5, 0)
        o = self._attend(q, k, v, g, beta, cut, memory)
        gate = sigmoid(self._project(x, "g_proj").to(wide)).view(-1, H, K)
        gated = rms_norm(o, self.o_norm, self.epsilon, wide) * gate
        return self._project(gated.flatten(1).to(x.dtype), "o_proj")

    def _project(self, x: Tensor, name: str) -> Tensor:
        return self.arithmetic.linear(x, self.matrices[name].dense())

    def _convolve(self, inputs: Tensor, cut: Cut, memory: Memory) -> Tensor:
        """The convolutions of q, k and v at once: [T, 3 H K], wide; the last W-1 inputs are kept in memory."""
        made = inputs.new_empty(inputs.shape, dtype=self.arithmetic.wide)
        kept = memory.conv[self.place]
        if cut.steps is not None:
            past = torch.where(cut.steps.fresh[:, None, None], 0, kept[cut.steps.slots])
            window = torch.cat([past.to(inputs.dtype), inputs[cut.steps.rows, None]], dim=1)  # [B, W, 3 H K]
            made[cut.steps.rows] = short_convolution(window.to(made.dtype), self.convolution)[:, 0]
            kept[cut.steps.slots] = window[:, 1:].to(kept.dtype)
        for piece in cut.longer:
            past = kept[piece.slot] if piece.start else torch.zeros_like(kept[piece.slot])
            rows = slice(piece.first, piece.first + piece.length)
            window = torch.cat([past.to(inputs.dtype), inputs[rows]])
            made[rows] = short_convolution(window.to(made.dtype), self.convolution)
            kept[piece.slot] = window[piece.length :].to(kept.dtype)
            if piece.trail:
                width = self.spec.conv_kernel - 1
                windows = window[1:].unfold(0, width, 1).transpose(1, 2)  # [n, W-1, 3 H K]
                memory.trails[piece.slot].conv[self.place] = windows.to(kept.dtype)
        return made

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, cut: Cut, memory: Memory) -> Tensor:
        """The recurrence, for sequences with one token side by side, for longer pieces one after another."""
        made = torch.empty_like(v)
        kept = memory.recurrent[self.place]
        if cut.steps is not None:
            one, slots = cut.steps.rows, cut.steps.slots
            S = torch.where(cut.steps.fresh[:, None, None, None], 0, kept[slots])
            made[one], kept[slots] = step(S, q[one], k[one], v[one], g[one], beta[one])
        for piece in cut.longer:
            rows = slice(piece.first, piece.first + piece.length)
            S = kept[piece.slot] if piece.start else torch.zeros_like(kept[piece.slot])
            made[rows], kept[piece.slot] = self._piece(piece, memory, S, q[rows], k[rows], v[rows], g[rows], beta[rows])
        return made

    def _piece(
        self, piece: Piece, memory: Memory, S: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor
    ) -> tuple[Tensor, Tensor]:
        if piece.trail:
            states: list[Tensor] = []
            made = recurrent(S, q, k, v, g, beta, states=states)
            trail: Trail = memory.trails[piece.slot]
            trail.recurrent[self.place] = torch.stack(states)
            return made
        if self.arithmetic.steady or piece.length < CHUNKED_FROM:
            return recurrent(S, q, k, v, g, beta)
        if self.arithmetic.kernels:
            return chunked_by_kernel(S, q, k, v, g, beta)
        return chunked(S, q, k, v, g, beta)
