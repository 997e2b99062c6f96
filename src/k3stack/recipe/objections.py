"""What the rules have against a layout that the planner may recommend.

The planner knows memory, the rules know what engines and published recipes allow. A layout that only one of them takes
is no advice.
"""

from __future__ import annotations

from dataclasses import replace

from k3stack.engines.releases import versions
from k3stack.hardware.table import Gpu
from k3stack.plan.layout import Layout, Workload
from k3stack.plan.plan import Plan
from k3stack.plan.rules import Objections, Refusal
from k3stack.recipe.choice import Choice, Feature, Serving, refused, standard_version
from k3stack.spec.model import ModelSpec
from k3stack.spec.published import smaller_than_published

__all__ = ["objections", "objections_of", "objections_to"]


def objections(engine: str, release: str | None, gpu: Gpu, spec: ModelSpec) -> Objections:
    """Whoever is asked about layouts of this model on this GPU: one server for everything, with a draft if it has one.

    Args:
        release: of the engine; one without a snapshot, or None, stands for the one that `k3 recipe` takes by itself.
    """
    version = release if release in versions(engine) else standard_version(engine, gpu, spec.scheme)
    smaller = smaller_than_published(spec)

    def against(layout: Layout, workload: Workload) -> tuple[Refusal, ...]:
        drafts = (Feature.DSPARK,) if workload.speculative_tokens else ()
        choice = Choice(engine, version, gpu, spec.scheme, layout, workload, features=drafts, smaller=smaller)
        return _told(choice)

    return against


def objections_to(plan: Plan) -> Objections:
    """The same, for all that may be recommended instead of a plan."""
    return objections(plan.engine, plan.release, plan.gpu, plan.spec)


def objections_of(choice: Choice, role: str, plan: Plan) -> Objections:
    """The same, for the plan of one role of a choice: of a split deployment the rules see the other role as well."""
    if choice.serving is Serving.UNIFIED:
        return objections_to(plan)

    def against(layout: Layout, workload: Workload) -> tuple[Refusal, ...]:
        changed = choice.at(workload.context, workload.concurrency)
        if role == "prefill":
            return _told(replace(changed, prefill=layout))
        return _told(replace(changed, layout=layout, prefill=choice.prefill or choice.layout))

    return against


def _told(choice: Choice) -> tuple[Refusal, ...]:
    reasons = (one.reason for one in refused(choice))
    return tuple(Refusal(one.rule, one.why, one.source, one.date) for one in reasons)
