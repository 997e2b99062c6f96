"""What each switch of a plan is worth: the same plan with one thing changed, before and after."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from k3stack.plan.assess import Capacity, Job, assess
from k3stack.plan.layout import KvDtype, Layout, StateDtype, Workload
from k3stack.plan.plan import Plan
from k3stack.plan.releases import release
from k3stack.plan.reserves import Reserves
from k3stack.plan.rules import Objections, beyond, no_objections, refusals

__all__ = ["Effect", "effects"]

DSPARK_TOKENS = 7
"""Tokens per step of the published DSpark recipes."""


@dataclass(frozen=True, slots=True)
class Effect:
    """One switch.

    Attributes:
        switch: what is changed.
        before, after: the cache in both states; `after` is None where the engine refuses the change.
        why_not: the refusal.
        objection: what else is against the change and not against the plan itself.
    """

    switch: str
    before: Capacity
    after: Capacity | None
    why_not: str = ""
    objection: str = ""


def effects(plan: Plan, reserves: Reserves | None = None, objections: Objections = no_objections) -> tuple[Effect, ...]:
    """The effect of each long-context switch on this plan, one at a time."""
    added = beyond(objections, plan.layout, plan.workload)

    def effect(switch: str, layout: Layout, workload: Workload) -> Effect:
        against = next((one.why for one in added(layout, workload)), "")
        return replace(_effect(plan, reserves, switch, layout, workload), objection=against)

    return tuple(effect(*change) for change in _switches(plan))


def _switches(plan: Plan) -> Iterator[tuple[str, Layout, Workload]]:
    layout, work = plan.layout, plan.workload
    other = KvDtype.BF16 if work.kv_dtype is not KvDtype.BF16 else KvDtype.FP8
    yield f"KV cache in {other} instead of {work.kv_dtype}", layout, replace(work, kv_dtype=other)
    caching = "off" if work.prefix_caching else "on"
    yield f"prefix caching {caching}", layout, replace(work, prefix_caching=not work.prefix_caching, state_slots=None)
    for tokens in (2_048, 4_096, 16_384, 32_768):
        if tokens != work.batched_tokens:
            title = f"chunks of {tokens:,} tokens instead of {work.batched_tokens:,}"
            yield title, layout, replace(work, batched_tokens=tokens)
    wide = 1 if layout.dcp > 1 else layout.tp
    if wide != layout.dcp:
        yield f"decode-context parallelism over {wide} ranks", replace(layout, dcp=wide), work
    if work.speculative_tokens:
        yield "no draft", layout, replace(work, speculative_tokens=0, replay_ssm=False)
    else:
        drafted = replace(work, speculative_tokens=DSPARK_TOKENS)
        yield f"DSpark draft of {DSPARK_TOKENS} tokens", layout, drafted
        yield f"DSpark draft of {DSPARK_TOKENS} tokens with ReplaySSM", layout, replace(drafted, replay_ssm=True)
    state = StateDtype.BF16 if work.state_dtype is StateDtype.FP32 else StateDtype.FP32
    yield f"KDA state in {state}", layout, replace(work, state_dtype=state)


def _effect(plan: Plan, reserves: Reserves | None, switch: str, layout: Layout, workload: Workload) -> Effect:
    refused = refusals(plan.spec, plan.gpu, layout, workload, plan.engine)
    if refused:
        return Effect(switch, plan.capacity, None, refused[0].why)
    job = Job(plan.spec, plan.gpu, layout, workload, release(plan.engine, plan.release), reserves)
    return Effect(switch, plan.capacity, assess(job).capacity)
