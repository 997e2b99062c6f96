"""Which weights a GPU holds: what tensor parallelism cuts and what every rank keeps whole.

    cut over tp          attention heads, shared experts, dense MLP, embedding, head
    cut over tp x dp     routed experts: rows without expert parallelism, whole experts with it
    whole on each rank   latent projections, router, norms, low-rank inputs of MLA and KDA, vision

Expert rows are padded twice: vLLM's model file widens each tensor-parallel rank's slice to 256 rows unless expert
parallelism is on, and the MXFP4 kernels of both engines round a slice up to 128. Hence TP16 holds 256 of 192 rows. The
image of July 2026 widened even under expert parallelism: 56 whole experts of 4,096 rows are as many bytes as 896
slices of 256, which is why TP16 with and without EP were logged with the same 129.75 GiB.

Sources: vLLM 0.33.0 vllm/models/kimi_k3/nvidia/{model,mla,kda,latent_moe_runner}.py and fused_moe/oracle/mxfp4.py
(mxfp4_round_up_hidden_size_and_intermediate_size); SGLang 0.5.23 sglang/srt/models/kimi_k3.py, quantization/mxfp4.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate

from k3stack.plan.layout import Layout
from k3stack.plan.releases import Release
from k3stack.plan.same import Same
from k3stack.plan.stages import Stage, stages
from k3stack.spec.model import ModelSpec
from k3stack.spec.schemes import Encoding
from k3stack.spec.tensors import Component, Family, families

__all__ = [
    "MIN_EXPERT_ROWS",
    "Weights",
    "expert_rows",
    "replicates_shared_experts",
    "weights_by_stage",
    "weights_of_stage",
]

MIN_EXPERT_ROWS = 256
"""vLLM: without expert parallelism each tensor-parallel rank's slice of an expert has at least this many rows."""

KERNEL_ROWS = 128
"""Both engines' FP4 kernels round the rows of a slice up to a multiple of this."""

_WHOLE_COMPONENTS = (Component.LATENT, Component.ROUTER, Component.NORMS, Component.VISION, Component.PROJECTOR)
_WHOLE_MODULES = ("q_a_proj", "kv_a_proj_with_mqa", "f_a_proj", "q_a_layernorm", "kv_a_layernorm", "o_norm")
_VISION = (Component.VISION, Component.PROJECTOR)

_Shares = tuple[tuple[Component, int, tuple[int, ...], int, int], ...]


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of one component: in the checkpoint, and on one rank of one stage."""

    component: Component
    total_bytes: int
    rank_bytes: int


def replicates_shared_experts(layout: Layout, release: Release) -> bool:
    """Whether every rank keeps shared experts and dense MLP whole.

    vLLM does so when tokens are spread over the tensor-parallel ranks (EP with data parallelism, one stage):
    KimiLinearModel.use_sequence_parallel.
    """
    return release.engine == "vllm" and layout.ep and layout.tp > 1 and layout.dp > 1 and layout.pp == 1


def expert_rows(spec: ModelSpec, layout: Layout, release: Release) -> int:
    """Rows of gate, up and down that one rank holds of an expert (K3 has 3,072), with padding."""
    width = spec.moe.expert_width
    if release.engine == "vllm" and layout.tp > 1 and not (layout.ep and release.experts_whole_under_ep):
        # The model widens the expert by the tensor-parallel size alone, then the layer cuts it over tp x dp.
        width = max(width, MIN_EXPERT_ROWS * layout.tp) if width // layout.tp < MIN_EXPERT_ROWS else width
    if layout.ep:
        return width
    rows = -(-width // layout.expert_ranks)
    if spec.scheme.expert is Encoding.BF16 or layout.expert_ranks == 1:
        return rows
    return -(-rows // KERNEL_ROWS) * KERNEL_ROWS


def weights_of_stage(
    spec: ModelSpec, layout: Layout, release: Release, stage: Stage | None = None, vision: bool = True
) -> tuple[Weights, ...]:
    """The weights on one rank of a stage (the only one, if none is named), by component."""
    stage = stage or stages(len(spec.layers), 1, release.engine)[0]
    return weights_by_stage(spec, layout, release, (stage,), vision)[0]


def weights_by_stage(
    spec: ModelSpec, layout: Layout, release: Release, found: tuple[Stage, ...], vision: bool = True
) -> list[tuple[Weights, ...]]:
    """The weights on one rank of each stage, by component."""
    return list(_by_stage(Same(spec), layout, release, found, vision))


@lru_cache(maxsize=1_024)  # nothing of a workload but vision changes them, and it is workloads that are tried out
def _by_stage(
    model: Same, layout: Layout, release: Release, found: tuple[Stage, ...], vision: bool
) -> tuple[tuple[Weights, ...], ...]:
    shares = _shares(model.spec, layout, release)
    return tuple(_on_stage(shares, stage, vision) for stage in found)


def _on_stage(shares: _Shares, stage: Stage, vision: bool) -> tuple[Weights, ...]:
    totals: dict[Component, int] = {}
    on_rank: dict[Component, int] = {}
    for part, outer, upto, above, below in shares:
        if part in _VISION and not vision:
            continue
        held = upto[stage.end] - upto[stage.start] + (outer if _held(part, stage) else 0)
        totals[part] = totals.get(part, 0) + outer + upto[-1]
        on_rank[part] = on_rank.get(part, 0) - (-held * above // below)
    return tuple(Weights(part, totals[part], on_rank[part]) for part in Component if part in totals)


def _shares(spec: ModelSpec, layout: Layout, release: Release) -> _Shares:
    """(component, bytes outside the layers, bytes in the layers before each index, the share that a rank holds)."""
    rows = []
    for part, name, outer, upto in _stacked(spec):
        share = _fraction(spec, part, name, layout, release)
        rows.append((part, outer, upto, share.numerator, share.denominator))
    return tuple(rows)


@lru_cache(maxsize=32)
def _stacked(spec: ModelSpec) -> tuple[tuple[Component, str, int, tuple[int, ...]], ...]:
    """(component, module kept whole or "", bytes outside the layers, bytes in the layers before each index).

    Tensors that are cut alike are added up, and layers summed from the front: a search asks this hundreds of times.
    """
    outer: dict[tuple[Component, str], int] = {}
    inner: dict[tuple[Component, str], list[int]] = {}
    for family in families(spec):
        key = (family.component, _kept_whole(family))
        size = family.count * family.size_bytes
        layers = inner.setdefault(key, [0] * len(spec.layers))
        if family.layer is None:
            outer[key] = outer.get(key, 0) + size
        else:
            layers[family.layer] += size
    return tuple((*key, outer.get(key, 0), (0, *accumulate(layers))) for key, layers in inner.items())


def _kept_whole(family: Family) -> str:
    """The module's name if every rank keeps it whole, else nothing."""
    return next((name for name in _WHOLE_MODULES if f".{name}." in family.name), "")


def _held(part: Component, stage: Stage) -> bool:
    """Whether a stage holds a component's tensors outside the layers. Both engines load vision on every stage."""
    if part is Component.EMBEDDING:
        return stage.first
    return stage.last if part in (Component.HEAD, Component.NORMS) else True


def _fraction(spec: ModelSpec, part: Component, name: str, layout: Layout, release: Release) -> Fraction:
    """The part of a tensor that one rank of a stage holds; above 1 when padding outgrows the cut."""
    if part is Component.ROUTED_EXPERTS:
        rows = Fraction(expert_rows(spec, layout, release), spec.moe.expert_width)
        return rows * Fraction(-(-spec.moe.experts // layout.expert_ranks), spec.moe.experts) if layout.ep else rows
    if part in _WHOLE_COMPONENTS or name in _WHOLE_MODULES:
        return Fraction(1)
    if part in (Component.SHARED_EXPERTS, Component.DENSE) and replicates_shared_experts(layout, release):
        return Fraction(1)
    return Fraction(1, layout.tp)
