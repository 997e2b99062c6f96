"""A choice: everything that decides what a deployment's commands are, and whether it is allowed.

Whatever it comes from (flags, JSON, a saved link, a plan), a choice is judged in one place, `refused`; `build` asks it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from typing import Any

from k3stack.engines.releases import latest, versions
from k3stack.engines.rules import CARD_VERSION, refusals
from k3stack.errors import NotKnownError, UsageError
from k3stack.hardware.table import Gpu
from k3stack.plan.layout import KvDtype, Layout, Workload
from k3stack.plan.plan import Plan
from k3stack.recipe.deployment import Reason, reason_of
from k3stack.spec.schemes import Scheme

__all__ = [
    "CARD",
    "Choice",
    "Feature",
    "Goal",
    "Parsers",
    "Refusal",
    "Serving",
    "from_plan",
    "kv_standard",
    "refused",
    "standard_version",
]

CARD = "kimi-k3"
"""The version name of vLLM's first image for K3: the one that NVIDIA's model card was validated with."""

_CARD_SNAPSHOT = "0.27.1"

DRAFT_TOKENS = 8
"""Tokens that the drafts we name propose in a step."""

LONG = 196_608
"""Tokens above which the rules see a long context."""

MODELS = {
    Scheme.MXFP4: "moonshotai/Kimi-K3",
    Scheme.NVFP4_MIXED: "nvidia/Kimi-K3-NVFP4",
    Scheme.NVFP4_EXPERTS: "RedHatAI/Kimi-K3-NVFP4",
    Scheme.FP8_BLOCK: "RedHatAI/Kimi-K3-FP8-BLOCK",
    Scheme.BF16: "moonshotai/Kimi-K3",
}
"""The published checkpoint of each scheme."""


class Goal(StrEnum):
    """What the endpoint should be good at."""

    LOW_LATENCY = "low-latency"
    BALANCED = "balanced"
    HIGH_THROUGHPUT = "high-throughput"


class Serving(StrEnum):
    """One kind of server for everything, or prefill and decode apart behind a router."""

    UNIFIED = "unified"
    DISAGGREGATED = "prefill-decode"


class Feature(StrEnum):
    """What can be added."""

    DSPARK = "dspark"
    DFLASH = "dflash"
    TEXT_ONLY = "text-only"
    HICACHE = "hicache"


class Parsers(StrEnum):
    """Who takes apart what K3 writes: the engine's parsers for it, nobody, or K2's, which is not allowed."""

    KIMI_K3 = "kimi_k3"
    RAW = "raw"
    KIMI_K2 = "kimi_k2"


@dataclass(frozen=True, slots=True)
class Choice:
    """What is to be deployed.

    Attributes:
        version: a release there is a snapshot of, or `kimi-k3` for vLLM's image of the model card.
        layout: of the server, or of decode when serving is disaggregated.
        prefill: layout of the prefill role; None when serving is unified.
        model: what to load; empty for the scheme's published checkpoint.
        parsers: of tool calls and reasoning.
        smaller: the model has fewer or smaller layers than Kimi-K3, so that floors on its GPUs say nothing about it.
        prefill_utilization: share of each GPU's memory for the prefill role; None takes the workload's.
    """

    engine: str
    version: str
    gpu: Gpu
    scheme: Scheme
    layout: Layout
    workload: Workload = field(default_factory=Workload)
    goal: Goal = Goal.BALANCED
    serving: Serving = Serving.UNIFIED
    prefill: Layout | None = None
    features: tuple[Feature, ...] = ()
    model: str = ""
    parsers: Parsers = Parsers.KIMI_K3
    smaller: bool = False
    prefill_utilization: float | None = None

    def __post_init__(self) -> None:
        if self.prefill_utilization is not None:
            if self.serving is Serving.UNIFIED:
                raise UsageError("there is no prefill role", where="prefill_utilization", hint="Leave it out.")
            replace(self.workload, utilization=self.prefill_utilization)  # which says what is no share

    @property
    def model_path(self) -> str:
        """What the engine is told to load."""
        return self.model or MODELS[self.scheme]

    @property
    def snapshot(self) -> str:
        """The release whose snapshot answers for this version."""
        return _CARD_SNAPSHOT if self.version == CARD else self.version

    def at(self, context: int, concurrency: int) -> Choice:
        """The same choice for other requests."""
        return replace(self, workload=replace(self.workload, context=context, concurrency=concurrency))

    def work(self, role: str) -> Workload:
        """The workload of a role."""
        if role != "prefill" or self.prefill_utilization is None:
            return self.workload
        return replace(self.workload, utilization=self.prefill_utilization)

    def roles(self) -> tuple[tuple[str, Layout], ...]:
        """The engine's roles and their layouts."""
        if self.serving is Serving.UNIFIED:
            return (("server", self.layout),)
        return (("prefill", self.prefill or self.layout), ("decode", self.layout))

    def facts(self, role: str, layout: Layout) -> dict[str, Any]:
        """What the conditions of rules are about, for one role."""
        gpu, work = self.gpu, self.workload
        nodes = max(1, -(-layout.gpus // gpu.gpus_per_node))
        prefill = self.prefill or self.layout
        sequences = -(-work.concurrency // layout.dp)
        drafts = bool({Feature.DSPARK, Feature.DFLASH} & set(self.features))
        return {
            "version": CARD_VERSION if self.version == CARD else self.version,
            "gpu": gpu.id,
            "vendor": gpu.vendor,
            "architecture": gpu.architecture,
            "scheme": self.scheme.value,
            "smaller": self.smaller,
            "goal": self.goal.value,
            "serving": self.serving.value,
            "role": role,
            "feature": frozenset(feature.value for feature in self.features),
            "parsers": self.parsers.value,
            "both_drafts": {Feature.DSPARK, Feature.DFLASH} <= set(self.features),
            "kv_dtype": work.kv_dtype.value,
            "prefix_caching": work.prefix_caching,
            "state_ratio_set": work.state_ratio is not None,
            "long_context": work.context > LONG,
            "batched_below_sequences": work.batched_tokens < sequences,
            "drafts_fill_step": drafts and work.batched_tokens <= sequences * (DRAFT_TOKENS - 1),
            "strategy": strategy(layout),
            "gpus": layout.gpus,
            "nodes": nodes,
            "tp": layout.tp,
            "attention_tp": layout.tp,
            "pp": layout.pp,
            "dp": layout.dp,
            "ep": layout.ep,
            "dcp": layout.dcp,
            "tp_mod_dcp": layout.tp % layout.dcp,
            "dcp_is_tp": layout.dcp == layout.tp,
            "inside_nvlink": layout.gpus <= gpu.nvlink_gpus,
            "replica_crosses_nodes": layout.tp * layout.pp > gpu.gpus_per_node,
            "pd_stages_differ": self.layout.pp not in (1, prefill.pp),
            "pd_dcp_differs": self.layout.dcp != prefill.dcp,
            "pd_prefill_dcp": prefill.dcp,
            "pd_tp_divides": max(self.layout.tp, prefill.tp) % min(self.layout.tp, prefill.tp) == 0,
        }


def strategy(layout: Layout) -> str:
    """The layout's name in the vendors' words: tp, tep, tp-pp, dp (whole replicas) or dep."""
    if layout.dp > 1:
        return "dep" if layout.ep else "dp"
    if layout.pp > 1:
        return "tp-pp"
    return "tep" if layout.ep else "tp"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a choice is not allowed, and what to choose instead."""

    reason: Reason
    role: str
    fix: str


def refused(choice: Choice) -> tuple[Refusal, ...]:
    """Every reason why this choice is not allowed; empty when it is.

    Raises:
        NotKnownError: no such engine or release.
    """
    known = (*([CARD] if choice.engine == "vllm" else []), *versions(choice.engine))
    if choice.version not in known:
        raise NotKnownError(
            f"{choice.engine} {choice.version} is not known",
            where="--engine-version",
            hint=f"Known: {', '.join(known)}.",
        )
    return tuple(_refused(choice))


def _refused(choice: Choice) -> Iterator[Refusal]:
    seen: set[str] = set()
    for role, layout in choice.roles():
        yield from _shape(choice, role, layout)
        for rule in refusals(choice.engine, choice.facts(role, layout)):
            if rule.id not in seen:
                seen.add(rule.id)
                yield Refusal(reason_of(rule), role, rule.fix)


def _shape(choice: Choice, role: str, layout: Layout) -> Iterator[Refusal]:
    per_node = choice.gpu.gpus_per_node
    if layout.gpus > per_node and layout.gpus % per_node:
        why = f"{layout.gpus} GPUs are not whole nodes of {per_node}."
        yield _own("whole-nodes", why, role, f"Use a multiple of {per_node}.")
    if choice.serving is Serving.UNIFIED and choice.prefill is not None:
        yield _own("no-prefill", "A unified endpoint has no prefill role.", role, "Leave the prefill layout out.")
    owner = next((scheme for scheme, model in MODELS.items() if model == choice.model), None)
    if owner is not None and MODELS[choice.scheme] != choice.model:
        why = f"{choice.model} is stored as {owner}, not as {choice.scheme}."
        yield _own("checkpoint-scheme", why, role, f"Use {MODELS[choice.scheme]} or --scheme {owner}.")


def _own(rule: str, why: str, role: str, fix: str) -> Refusal:
    return Refusal(Reason(rule, why, "k3stack", "2026-11-29"), role, fix)


def standard_version(engine: str, gpu: Gpu, scheme: Scheme) -> str:
    """The version to take when none is asked for: the validated image for NVFP4 on Blackwell, else the newest release.

    On AMD, SGLang has one image known by name.
    """
    if engine == "vllm" and scheme is Scheme.NVFP4_MIXED and gpu.blackwell:
        return CARD
    if engine == "sglang" and gpu.vendor == "amd":
        return "0.5.19"
    return latest(engine)


def from_plan(plan: Plan, version: str | None = None, **more: Any) -> Choice:
    """The choice that a plan stands for.

    Args:
        more: other fields of a choice: goal, serving, prefill, features.
    """
    return Choice(
        engine=plan.engine,
        version=version or standard_version(plan.engine, plan.gpu, plan.scheme),
        gpu=plan.gpu,
        scheme=plan.scheme,
        layout=plan.layout,
        workload=plan.workload,
        model=plan.model,
        **more,
    )


KV_STANDARD = {"vllm": KvDtype.FP8, "sglang": KvDtype.BF16}
"""How the cache is stored when nobody asks: as in the published commands of each engine."""


@lru_cache
def kv_standard(engine: str, gpu: Gpu) -> KvDtype:
    """How the cache is stored on this GPU when nobody asks: BF16 where the engine's newest release reads no other."""
    usual = KV_STANDARD[engine]
    facts = {"kv_dtype": usual.value, "architecture": gpu.architecture, "version": latest(engine)}
    return KvDtype.BF16 if any("kv_dtype" in rule.when for rule in refusals(engine, facts)) else usual


UTILIZATION_STANDARD = {"vllm": 0.90, "sglang": 0.85}
"""The share of GPU memory when nobody asks: model card for vLLM, the panel's cells for SGLang."""
