"""What the planner recommends is what `k3 recipe` takes."""

from dataclasses import replace

import pytest

from k3stack.hardware.table import gpu, gpus
from k3stack.plan import Layout, Plan, Workload, make_plan
from k3stack.plan.changes import ways
from k3stack.plan.search import Goal, search
from k3stack.recipe.choice import Choice, Feature, kv_standard, refused, standard_version
from k3stack.recipe.objections import objections, objections_to
from k3stack.spec.published import kimi_k3

SPEC = kimi_k3()
CASES = [(engine, one) for engine in ("vllm", "sglang") for one in gpus()]


def rules_against(plan: Plan) -> set[str]:
    """Asked of the rules directly, for the release that plans are made for."""
    drafts = (Feature.DSPARK,) if plan.workload.speculative_tokens else ()
    assert plan.release == standard_version(plan.engine, plan.gpu, plan.scheme) or plan.gpu.vendor == "amd"
    choice = Choice(plan.engine, plan.release, plan.gpu, plan.scheme, plan.layout, plan.workload, features=drafts)
    return {one.reason.rule for one in refused(choice)}


@pytest.mark.parametrize(("engine", "kind"), CASES)
def test_the_first_layout_of_a_search_is_one_that_recipes_take(engine: str, kind: str) -> None:
    one = gpu(kind)
    against = objections(engine, None if one.vendor == "amd" else standard_version(engine, one, SPEC.scheme), one, SPEC)
    for goal in Goal:
        work = Workload(65_536, 8, kv_standard(engine, one))
        found = search(SPEC, "m", one, 16, work, goal, engine, objections=against)
        refusing = [bool(plan.objections) for plan in found.plans]
        assert refusing == sorted(refusing), "those without an objection first"
        for plan in found.plans:
            if one.vendor != "amd":
                assert {reason.rule for reason in plan.objections} == rules_against(plan)


@pytest.mark.parametrize(("engine", "kind"), CASES)
@pytest.mark.parametrize("draft", [0, 7])
def test_what_would_fit_is_refused_by_no_rule_that_does_not_refuse_the_plan(engine: str, kind: str, draft: int) -> None:
    one = gpu(kind)
    work = Workload(262_144, 64, kv_standard(engine, one), speculative_tokens=draft)
    plan = make_plan(SPEC, "m", one, Layout(tp=4), work, engine)
    against = objections_to(plan)
    own = {reason.rule for reason in against(plan.layout, plan.workload)}
    for way in ways(plan, objections=against):
        tried = replace(plan, layout=way.layout, workload=way.workload)
        assert {reason.rule for reason in against(tried.layout, tried.workload)} <= own
        if one.vendor != "amd":
            assert rules_against(tried) <= own


def test_memory_alone_would_advise_what_recipes_refuse() -> None:
    """The draft of vLLM gives NaN over pipeline stages: an open report."""
    work = Workload(196_608, 32, kv_standard("vllm", gpu("h200")), speculative_tokens=7)
    asked = make_plan(SPEC, "m", gpu("h200"), Layout(tp=8), work)
    assert any(way.layout.pp > 1 for way in ways(asked))
    advised = list(ways(asked, objections=objections_to(asked)))
    assert advised and all(way.layout.pp == 1 for way in advised)


def test_a_plan_says_what_recipes_refuse_and_keeps_its_verdict() -> None:
    h100 = gpu("h100")
    work = Workload(kv_dtype=kv_standard("vllm", h100))
    plan = make_plan(
        SPEC, "m", h100, Layout(tp=8, pp=4), work, objections=objections("vllm", None, h100, SPEC)
    )  # fmt: skip
    assert plan.yes and [one.rule for one in plan.objections] == ["vllm-no-h100"]
