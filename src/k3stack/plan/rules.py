"""What engines refuse about layouts: the tests. Reasons, sources and dates are in data/layouts.yaml.

A refused layout is an answer ("not supported"), not an error: the search shows it with its reason.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

import yaml
from pydantic import BaseModel, ConfigDict

from k3stack.hardware.table import Gpu
from k3stack.plan.layout import Layout, Workload
from k3stack.spec.model import ModelSpec
from k3stack.spec.schemes import Scheme

__all__ = ["Objections", "Refusal", "beyond", "no_objections", "refusals", "rule_names"]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a layout cannot be: the rule, the reason in words, its source and date."""

    rule: str
    why: str
    source: str
    date: str

    def __str__(self) -> str:
        return f"{self.why} ({self.source}, {self.date})"


Objections = Callable[[Layout, Workload], tuple[Refusal, ...]]
"""What others than the planner have against a layout. It changes no verdict on memory, only what is recommended."""


def no_objections(layout: Layout, workload: Workload) -> tuple[Refusal, ...]:
    """Of one who asks about memory alone."""
    return ()


def beyond(objections: Objections, layout: Layout, workload: Workload) -> Objections:
    """Only what is not against this layout already: whoever asks about a change of it has accepted that."""
    accepted = {one.rule for one in objections(layout, workload)}
    return lambda changed, work: tuple(one for one in objections(changed, work) if one.rule not in accepted)


@dataclass(frozen=True, slots=True)
class _Case:
    """All that a test may look at."""

    spec: ModelSpec
    gpu: Gpu
    layout: Layout
    workload: Workload
    engine: str

    @property
    def nvfp4(self) -> bool:
        return self.spec.scheme in (Scheme.NVFP4_MIXED, Scheme.NVFP4_EXPERTS)


def _heads(case: _Case) -> bool:
    return any(heads % case.layout.tp for heads in (case.spec.kda.heads, case.spec.mla.heads))


def _nodes(case: _Case) -> bool:
    node, tp = case.gpu.gpus_per_node, case.layout.tp
    return tp % node != 0 and node % tp != 0


def _expert_rows(case: _Case) -> bool:
    """Without expert parallelism slices must hold whole scale groups; vLLM's padding makes wide ones fit."""
    layout, spec = case.layout, case.spec
    padded = case.engine == "vllm" and layout.tp > 1 and spec.moe.expert_width // layout.tp < 256
    group = 16 if case.nvfp4 else 32
    return not layout.ep and not padded and spec.moe.expert_width % (layout.expert_ranks * group) != 0


_TESTS: dict[str, Callable[[_Case], bool]] = {
    "heads": _heads,
    "stages": lambda case: case.layout.pp > len(case.spec.layers),
    "nodes": _nodes,
    "sglang-experts": lambda case: (
        case.engine == "sglang" and case.layout.ep and case.spec.moe.experts % case.layout.expert_ranks != 0
    ),
    "expert-rows": _expert_rows,
    "sglang-dspark-stages": lambda case: (
        case.engine == "sglang"
        and case.workload.speculative_tokens > 0
        and case.workload.verifies
        and case.layout.pp > 1
    ),
    "vllm-amd-dspark-stages": lambda case: (
        case.engine == "vllm"
        and case.gpu.vendor == "amd"
        and case.workload.speculative_tokens > 0
        and case.layout.pp > 1
    ),
    "vllm-replay": lambda case: (
        case.engine == "vllm"
        and case.workload.replay_ssm
        and (case.layout.pp > 1 or case.workload.speculative_tokens == 0)
    ),
    "sglang-dcp-hopper": lambda case: (
        case.engine == "sglang" and case.layout.dcp > 1 and case.gpu.vendor == "nvidia" and not case.gpu.blackwell
    ),
    "nvfp4-sglang": lambda case: (
        case.engine == "sglang" and case.nvfp4 and case.gpu.vendor == "nvidia" and not case.gpu.blackwell
    ),
    "nvfp4-amd": lambda case: case.nvfp4 and case.gpu.vendor == "amd",
    "batch": lambda case: (
        case.engine == "vllm" and case.workload.batched_tokens < case.workload.per_replica(case.layout)
    ),
}


class _Rule(BaseModel):
    model_config = ConfigDict(extra="forbid")

    why: str
    source: str
    date: datetime.date


@lru_cache(maxsize=1)
def _rules() -> dict[str, _Rule]:
    data = yaml.safe_load(files("k3stack.plan").joinpath("data/layouts.yaml").read_text())
    return {name: _Rule.model_validate(row) for name, row in data.items()}


def rule_names() -> tuple[set[str], set[str]]:
    """The rules that have a reason, and those that have a test; they must be the same."""
    return set(_rules()), set(_TESTS)


def refusals(spec: ModelSpec, gpu: Gpu, layout: Layout, workload: Workload, engine: str) -> tuple[Refusal, ...]:
    """Every rule that this layout breaks under this engine; empty if it may be tried."""
    case = _Case(spec, gpu, layout, workload, engine)
    return tuple(_refusal(name, case) for name, test in _TESTS.items() if test(case))


def _refusal(name: str, case: _Case) -> Refusal:
    rule, layout, spec = _rules()[name], case.layout, case.spec
    why = rule.why.format(
        tp=layout.tp,
        pp=layout.pp,
        heads=spec.mla.heads,
        layers=len(spec.layers),
        node=case.gpu.gpus_per_node,
        ranks=layout.expert_ranks,
        experts=spec.moe.experts,
        width=spec.moe.expert_width,
        group=16 if case.nvfp4 else 32,
        draft=case.workload.speculative_tokens,
        architecture=case.gpu.architecture,
        tokens=f"{case.workload.batched_tokens:,}",
        requests=case.workload.per_replica(layout),
    )
    return Refusal(name, why, rule.source, str(rule.date))
