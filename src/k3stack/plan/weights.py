"""Which weights a GPU holds under vLLM: what tensor parallelism cuts and what every rank keeps whole.

Source: vLLM 0.33.0, vllm/models/kimi_k3/nvidia/{model,mla,kda}.py (ReplicatedLinear, replicated shards of fused
projections) and latent_moe_runner.py. Check: TP16 in MXFP4 gives 129.74 GiB, vLLM logs 129.75
(github.com/mnmehta/kimi-k3 @0c170c5, 16 x H200).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from k3stack.plan.layout import Layout
from k3stack.spec.model import ModelSpec
from k3stack.spec.tensors import Component, Family, families

__all__ = ["MIN_EXPERT_ROWS", "Weights", "weights_per_gpu"]

MIN_EXPERT_ROWS = 256
"""Without expert parallelism vLLM pads each rank's slice of an expert to at least this width (TP16: 192 to 256)."""

_WHOLE_COMPONENTS = (Component.LATENT, Component.ROUTER, Component.NORMS, Component.VISION, Component.PROJECTOR)
_WHOLE_MODULES = ("q_a_proj", "kv_a_proj_with_mqa", "f_a_proj", "q_a_layernorm", "kv_a_layernorm", "o_norm")


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of one component: in the checkpoint, and on the fullest rank."""

    component: Component
    total_bytes: int
    rank_bytes: int


@lru_cache(maxsize=1024)
def weights_per_gpu(spec: ModelSpec, layout: Layout) -> tuple[Weights, ...]:
    """The weights on the fullest rank, by component.

    Pipeline parallelism divides layers evenly; the embedding and the vision tower sit on the first stage and the head
    on the last, so the fullest stage is taken to hold the larger share of layers and all but the head.
    """
    totals: dict[Component, int] = {}
    on_rank: dict[Component, Fraction] = {}
    stage = Fraction(-(-len(spec.layers) // layout.pp), len(spec.layers))
    for family in families(spec):
        size, part = family.count * family.size_bytes, family.component
        share = _fraction(spec, family, layout)
        if family.layer is not None:
            share *= stage
        elif layout.pp > 1 and part is Component.HEAD:
            share = Fraction(0)
        totals[part] = totals.get(part, 0) + size
        on_rank[part] = on_rank.get(part, Fraction(0)) + size * share
    return tuple(Weights(part, totals[part], round(on_rank[part])) for part in Component if part in totals)


def _fraction(spec: ModelSpec, family: Family, layout: Layout) -> Fraction:
    """The part of a tensor family that one rank of a stage holds."""
    if family.component is Component.ROUTED_EXPERTS:
        ranks = layout.tp * layout.dp  # vLLM spreads experts over the data-parallel ranks too
        if layout.ep:
            return Fraction(-(-spec.moe.experts // ranks), spec.moe.experts)
        rows = max(Fraction(spec.moe.expert_width, ranks), Fraction(MIN_EXPERT_ROWS))
        return min(rows / spec.moe.expert_width, Fraction(1))
    if family.component in _WHOLE_COMPONENTS or any(f".{name}." in family.name for name in _WHOLE_MODULES):
        return Fraction(1)
    return Fraction(1, layout.tp)
