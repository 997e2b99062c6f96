"""Search, rules, routes, switches: what is offered is legal and fits, what is rejected has a reason."""

import dataclasses
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k3stack.errors import UsageError
from k3stack.hardware.table import gpu, gpus
from k3stack.plan import KvDtype, Layout, Workload
from k3stack.plan.effects import effects
from k3stack.plan.routes import routes
from k3stack.plan.rules import refusals, rule_names
from k3stack.plan.search import Goal, Search, search
from k3stack.values import dump, load
from tests.plan.common import K3, plan_for


def find(hardware: str, count: int, goal: Goal = Goal.LATENCY, engine: str = "vllm", **work: object) -> Search:
    return search(K3, "m", gpu(hardware), count, Workload(**work), goal, engine)  # type: ignore[arg-type]


def test_two_nodes_of_h200_are_best_split_into_stages() -> None:
    found = find("h200", 16)
    assert found.plans[0].layout == Layout(tp=8, pp=2)
    rejected = {one.layout: one.why for one in found.rejected}
    assert "too much" in rejected[Layout(tp=16)]


def test_one_node_of_b300_needs_no_stages() -> None:
    assert find("b300", 8).plans[0].layout == Layout(tp=8)
    assert find("b300", 8, Goal.THROUGHPUT).plans[0].layout == Layout(tp=8, dcp=8)


def test_gb200_uses_its_nvlink_domain() -> None:
    assert find("gb200", 16).plans[0].layout == Layout(tp=16)


def test_long_context_ranks_by_the_longest_request() -> None:
    found = find("b300", 8, Goal.LONG_CONTEXT, kv_dtype=KvDtype.BF16)
    best = found.plans[0].capacity
    assert best.longest_context == max(plan.capacity.longest_context for plan in found.plans) == 1_048_576


@settings(max_examples=15)
@given(
    st.sampled_from(sorted(gpus())),
    st.sampled_from([1, 4, 8, 12, 16, 24, 32]),
    st.sampled_from(Goal),
    st.sampled_from(["vllm", "sglang"]),
)
def test_every_layout_is_offered_or_rejected_with_a_reason(hardware: str, count: int, goal: Goal, engine: str) -> None:
    found = find(hardware, count, goal, engine)
    for plan in found.plans:
        assert plan.yes and plan.layout.gpus == count
        assert not refusals(K3, gpu(hardware), plan.layout, plan.workload, engine)
    assert all(one.why for one in found.rejected)
    seen = [plan.layout for plan in found.plans] + [one.layout for one in found.rejected]
    assert len(seen) == len(set(seen))
    assert found.because


def test_a_search_survives_json() -> None:
    found = find("b300", 8)
    assert load(Search, dump(found)) == found


@pytest.mark.slow
def test_sixteen_nodes_are_searched_quickly() -> None:
    find("h200", 128)
    best = min(_seconds() for _ in range(5))
    assert best < 0.1


def _seconds() -> float:
    start = time.perf_counter()
    find("h200", 128)
    return time.perf_counter() - start


@pytest.mark.parametrize("count", [0, -1, 257])
def test_impossible_counts(count: int) -> None:
    with pytest.raises(UsageError, match="--gpus"):
        find("b300", count)


def test_every_rule_has_a_test_and_a_reason() -> None:
    reasons, tests = rule_names()
    assert reasons == tests


@pytest.mark.parametrize(
    ("rule", "hardware", "scheme", "layout", "work", "engine"),
    [
        ("heads", "b300", "mxfp4", Layout(tp=7), Workload(), "vllm"),
        ("stages", "b300", "mxfp4", Layout(tp=8, pp=94), Workload(), "vllm"),
        ("nodes", "b300", "mxfp4", Layout(tp=12), Workload(), "vllm"),
        ("sglang-experts", "h200", "mxfp4", Layout(tp=24, ep=True), Workload(), "sglang"),
        ("expert-rows", "h200", "mxfp4", Layout(tp=8, dp=24), Workload(), "sglang"),
        ("sglang-dspark-stages", "h200", "mxfp4", Layout(tp=8, pp=2), Workload(speculative_tokens=7), "sglang"),
        ("vllm-amd-dspark-stages", "mi300x", "mxfp4", Layout(tp=8, pp=2), Workload(speculative_tokens=7), "vllm"),
        ("vllm-replay", "b300", "mxfp4", Layout(tp=8), Workload(replay_ssm=True), "vllm"),
        ("sglang-dcp-hopper", "h200", "mxfp4", Layout(tp=8, dcp=8), Workload(), "sglang"),
        ("nvfp4-sglang", "h200", "nvfp4-mixed", Layout(tp=16), Workload(), "sglang"),
        ("nvfp4-amd", "mi355x", "nvfp4-mixed", Layout(tp=8), Workload(), "vllm"),
        ("batch", "b300", "mxfp4", Layout(tp=8), Workload(batched_tokens=16), "vllm"),
    ],
)
def test_rules(rule: str, hardware: str, scheme: str, layout: Layout, work: Workload, engine: str) -> None:
    found = {one.rule: one for one in refusals(K3.with_scheme(scheme), gpu(hardware), layout, work, engine)}
    assert rule in found
    assert "{" not in str(found[rule]) and found[rule].source in str(found[rule])


def test_nothing_is_refused_of_what_was_validated() -> None:
    assert not refusals(K3.with_scheme("nvfp4-mixed"), gpu("b300"), Layout(tp=8), Workload(), "vllm")
    drafted = Workload(speculative_tokens=7, replay_ssm=True)
    assert not refusals(K3.with_scheme("nvfp4-mixed"), gpu("b300"), Layout(tp=8, dcp=8), drafted, "sglang")


def test_switches_do_what_the_arithmetic_says() -> None:
    plan = plan_for("b300", Layout(tp=8))
    found = {effect.switch: effect for effect in effects(plan)}
    fewer = found["KV cache in bf16 instead of fp8"].after
    more = found["decode-context parallelism over 8 ranks"].after
    drafted = found["DSpark draft of 7 tokens"].after
    assert fewer is not None and more is not None and drafted is not None
    assert fewer.kv_tokens * 2 == plan.capacity.kv_tokens
    assert more.kv_tokens == 8 * plan.capacity.kv_tokens
    assert drafted.kv_tokens < plan.capacity.kv_tokens
    chunks = [found[f"chunks of {size:,} tokens instead of 8,192"].after for size in (2_048, 4_096, 16_384, 32_768)]
    tokens = [after.kv_tokens for after in chunks if after is not None]
    assert tokens == sorted(tokens, reverse=True) and len(tokens) == 4


def test_a_refused_switch_says_why() -> None:
    plan = plan_for("h200", Layout(tp=8, pp=2), engine="sglang")
    refused = [effect for effect in effects(plan) if effect.after is None]
    assert any("Hopper" in effect.why_not or "sm90" in effect.why_not for effect in refused)


def test_routes_of_a_laptop() -> None:
    ways = {way.id: way for way in routes(0, 16 * 10**9, 200 * 10**9, apple=False)}
    possible = {name for name, way in ways.items() if way.possible}
    assert possible == {"tiny", "hosted"}
    assert "needs about" in ways["gguf-q2"].why and "Apple" in ways["mlx"].why
    assert "#2109" in ways["ktransformers"].why


def test_routes_grow_with_the_machine() -> None:
    def names(gpu_gb: int, ram_gb: int, disk_gb: int, apple: bool = False) -> set[str]:
        found = routes(gpu_gb * 10**9, ram_gb * 10**9, disk_gb * 10**9, apple)
        return {way.id for way in found if way.possible}

    assert "streaming" in names(0, 64, 2_000)
    assert "gguf-iq1" in names(141 * 3, 0, 0)
    assert "mlx" in names(0, 512, 0, apple=True)
    assert {"gguf-q2", "gguf-q4"} <= names(24, 2_000, 0)
    assert names(0, 16, 10) <= names(0, 600, 2_000) <= names(900, 2_000, 2_000)


def test_every_route_has_a_cost() -> None:
    for way in routes(0, 0, 0, apple=False):
        assert all(getattr(way, field.name) != "" for field in dataclasses.fields(way) if field.name != "why")
