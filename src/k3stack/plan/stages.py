"""Pipeline stages: which layers each stage holds, as each engine deals them out.

    vLLM     what does not divide goes to the stages before the last (93 over 2: 47, 46)
    SGLang   what does not divide goes to the last stages (93 over 2: 46, 47)

Sources: vLLM 0.33.0 vllm/distributed/utils.py and SGLang 0.5.23 sglang/srt/distributed/utils.py, get_pp_indices.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from k3stack.plan.same import Same
from k3stack.spec.model import Attention, ModelSpec

__all__ = ["Stage", "stages"]


@dataclass(frozen=True, slots=True)
class Stage:
    """One pipeline stage: layers `start` up to, not including, `end`, of `count` stages."""

    index: int
    count: int
    start: int
    end: int

    @property
    def first(self) -> bool:
        """Whether it holds the embedding."""
        return self.index == 0

    @property
    def last(self) -> bool:
        """Whether it holds the head and the final norms."""
        return self.index == self.count - 1

    def holds(self, layer: int) -> bool:
        """Whether a layer is on this stage."""
        return self.start <= layer < self.end

    def layers_of(self, spec: ModelSpec, attention: Attention) -> int:
        """How many of its layers have this kind of attention."""
        return _layers_of(Same(spec), self, attention)


@lru_cache(maxsize=1_024)
def _layers_of(model: Same, stage: Stage, attention: Attention) -> int:
    return sum(1 for layer in model.spec.layers_of(attention) if stage.holds(layer.index))


@lru_cache(maxsize=256)
def stages(layers: int, count: int, engine: str) -> tuple[Stage, ...]:
    """The stages of `layers` layers."""
    sizes = [layers // count] * count
    left = layers % count
    # vLLM spares the last stage (norm and head), SGLang fills from the end.
    first = count - left - (1 if engine == "vllm" and left else 0)
    for index in range(first, first + left):
        sizes[index] += 1
    starts = [sum(sizes[:index]) for index in range(count)]
    return tuple(Stage(index, count, start, start + sizes[index]) for index, start in enumerate(starts))
