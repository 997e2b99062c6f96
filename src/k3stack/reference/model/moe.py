"""The feed-forward layers: a dense MLP in the first layer, LatentMoE in the others.

Shapes: T tokens, E experts (896), k of them chosen per token (16), hidden (7168), z latent (3584), f an expert's width
(3072).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from k3stack.reference.model.arithmetic import Arithmetic
from k3stack.reference.model.functions import rms_norm, sigmoid, situ
from k3stack.reference.model.store import Section
from k3stack.spec.model import MoeSpec

__all__ = ["Dense", "LatentMoe", "Routing", "Situ", "route"]


@dataclass(frozen=True, slots=True)
class Situ:
    """The bounds of the SiTU activation (4 and 25)."""

    beta: float
    linear_beta: float


@dataclass(frozen=True, slots=True)
class Routing:
    """How the router weighs the experts it chose: sums to one, then scaled."""

    renormalize: bool
    scale: float


class Dense:
    """down( SiTU(gate x, up x) ): the first layer's MLP, and the shared experts, which are stored as one MLP."""

    def __init__(self, section: Section, activation: Situ) -> None:
        self.arithmetic: Arithmetic = section.store.arithmetic
        self.gate, self.up, self.down = (section.matrix(f"{name}_proj") for name in ("gate", "up", "down"))
        self.activation = activation

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, hidden] to [T, hidden]."""
        multiply, bounds = self.arithmetic.linear, self.activation
        gate, up = multiply(x, self.gate.dense()), multiply(x, self.up.dense())
        return multiply(situ(gate, up, bounds.beta, bounds.linear_beta, self.arithmetic.wide), self.down.dense())


def route(logits: Tensor, bias: Tensor, chosen: int, routing: Routing) -> tuple[Tensor, Tensor]:
    """The experts of each token and their weights.

    Args:
        logits: of the router [T, E], wide.
        bias: e_score_correction_bias [E]; it decides which experts are chosen, not how they are weighted.
        chosen: k.
        routing: how weights are made of scores.

    Returns:
        Expert numbers int64 [T, k] and weights [T, k].
    """
    scores = sigmoid(logits)
    experts = (scores + bias).topk(chosen, dim=-1).indices
    weights = scores.gather(1, experts)
    if routing.renormalize:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return experts, weights * routing.scale


class LatentMoe:
    """Routed experts in a narrower space, and shared experts beside them.

    s = sigmoid(gate x); top k of s + bias; w = s[chosen] / sum
    z = routed_expert_down_proj x
    y = sum_e w_e w2_e( SiTU(w1_e z, w3_e z) )
    out = routed_expert_up_proj( RMSNorm(y) ) + shared_experts(x)
    """

    def __init__(self, spec: MoeSpec, section: Section, activation: Situ, routing: Routing, epsilon: float) -> None:
        self.spec, self.activation, self.routing, self.epsilon = spec, activation, routing, epsilon
        self.arithmetic: Arithmetic = section.store.arithmetic
        self.gate = section.tensor("gate.weight")
        self.bias = section.tensor("gate.e_score_correction_bias")
        self.down, self.up = (section.matrix(f"routed_expert_{name}_proj") for name in ("down", "up"))
        self.norm = section.weight("routed_expert_norm")
        self.w1, self.w2, self.w3 = (section.matrix(f"experts.{{expert}}.{name}") for name in ("w1", "w2", "w3"))
        self.shared = Dense(section.section("shared_experts"), activation)

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, hidden] to [T, hidden]."""
        multiply, wide = self.arithmetic.linear, self.arithmetic.wide
        logits = multiply(x.to(wide), self.gate)
        experts, weights = route(logits, self.bias, self.spec.experts_per_token, self.routing)
        z = multiply(x, self.down.dense())
        y = self.experts(z, experts, weights)
        routed = multiply(rms_norm(y, self.norm, self.epsilon, wide), self.up.dense())
        return routed + self.shared(x)

    def experts(self, z: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
        """The routed experts' weighted sum: z [T, z], experts and weights [T, k] to [T, z].

        Tokens are grouped by expert, so that each expert's matrices are used once; each result goes to its token's
        own place [T, k, z], and the sum over k is made there, in the same order whatever the grouping.
        """
        order = experts.flatten().argsort(stable=True)  # places [T k], those of the first expert first
        token = order // experts.shape[1]
        counts = torch.bincount(experts.flatten(), minlength=self.spec.experts).tolist()
        made = z.new_empty(order.shape[0], z.shape[1])
        first = 0
        for expert, count in enumerate(counts):
            if count:
                rows = slice(first, first + count)
                made[order[rows]] = self.expert(z[token[rows]], expert)
                first += count
        parts = made.view(*experts.shape, -1).to(self.arithmetic.wide)
        return (weights[..., None] * parts).sum(1).to(z.dtype)

    def expert(self, z: Tensor, expert: int) -> Tensor:
        """One expert: w2( SiTU(w1 z, w3 z) ), [n, z] to [n, z]."""
        multiply, bounds = self.arithmetic.linear, self.activation
        gate, up = multiply(z, self.w1.dense(expert)), multiply(z, self.w3.dense(expert))
        return multiply(situ(gate, up, bounds.beta, bounds.linear_beta, self.arithmetic.wide), self.w2.dense(expert))
