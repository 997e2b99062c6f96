"""What somebody says, and what is chosen where nothing was said."""

from dataclasses import replace

import pytest

from k3stack.errors import NotKnownError, UsageError
from k3stack.hardware.table import gpu
from k3stack.launch.preflight import wanted_of as preflight_of
from k3stack.plan.layout import KvDtype, Layout
from k3stack.recipe.build import build
from k3stack.recipe.choice import UTILIZATION_STANDARD, Feature, Goal, Serving, refused
from k3stack.recipe.link import from_query, to_query
from k3stack.recipe.suggest import suggest
from k3stack.recipe.wanted import MARGIN_BYTES, Wanted, choose, fitting
from k3stack.spec.schemes import Scheme

HARDWARE = ["h100", "h200", "b200", "b300", "gb200", "gb300", "mi350x", "mi355x"]


def test_what_is_open_is_as_published() -> None:
    choice = choose(Wanted(gpu("h200")))
    work = choice.workload
    assert choice.layout == Layout(tp=16)
    assert (work.context, work.concurrency, work.batched_tokens, work.utilization) == (32_768, 5, 4_096, 0.97)
    assert work.kv_dtype is KvDtype.BF16
    assert choose(Wanted(gpu("b300"))).workload.kv_dtype is KvDtype.FP8
    assert choose(Wanted(gpu("b300"), "sglang")).workload.utilization == 0.85


def test_what_was_said_stays() -> None:
    work = choose(Wanted(gpu("h200"), context=8_192, utilization=0.9)).workload
    assert (work.context, work.utilization, work.concurrency) == (8_192, 0.9, 5)


def test_a_layout_of_ones_own_takes_no_published_workload() -> None:
    choice = choose(Wanted(gpu("h200"), tp=8, pp=2))
    assert choice.layout == Layout(tp=8, pp=2) and choice.workload.context == 196_608
    assert choose(Wanted(gpu("h200"), gpus=16)).workload.context == 32_768


def test_fewer_requests_where_nobody_asked_for_a_number() -> None:
    drafted = Wanted(gpu("b300"), features=(Feature.DSPARK,))
    found = fitting(drafted)
    assert found.yes and found.choice.workload.concurrency == 16
    assert "16 requests" in found.lowered and "32 requests" in found.lowered and "too much" in found.lowered
    insisted = fitting(Wanted(gpu("b300"), features=(Feature.DSPARK,), concurrency=32))
    assert not insisted.yes and not insisted.lowered


def test_what_is_chosen_is_not_within_the_error_of_the_estimate() -> None:
    tight = Wanted(gpu("b300"), "sglang", scheme=Scheme.NVFP4_MIXED, features=(Feature.DSPARK,))
    found = fitting(tight)
    assert found.choice.workload.concurrency == 16 and "32 requests" in found.lowered
    assert all(one.plan.left_bytes >= MARGIN_BYTES for one in found.roles)
    asked = fitting(replace(tight, concurrency=32, context=196_608))
    assert asked.yes and not asked.lowered and asked.tight


def test_a_tight_fit_is_better_than_none() -> None:
    found = fitting(Wanted(gpu("h200"), features=(Feature.DSPARK,)))
    assert found.yes and found.choice.workload.concurrency == 1 and found.tight


def test_throughput_means_more_requests() -> None:
    assert choose(Wanted(gpu("b300"), goal=Goal.HIGH_THROUGHPUT)).workload.concurrency == 128
    published = choose(Wanted(gpu("h200"), "sglang", goal=Goal.HIGH_THROUGHPUT)).workload
    assert (published.concurrency, published.utilization) == (128, 0.9)
    assert choose(Wanted(gpu("mi355x"), "sglang")).workload.kv_dtype is KvDtype.FP8


def test_a_shorter_context_where_nobody_asked_for_one() -> None:
    """Requests are halved first; here that alone does not do."""
    found = fitting(Wanted(gpu("h100"), "sglang"))
    assert found.yes and found.choice.workload.context == 49_152 and "49,152 tokens" in found.lowered
    assert not fitting(Wanted(gpu("h100"), "sglang", context=196_608, concurrency=32)).yes


def test_nothing_is_lowered_where_it_would_not_help() -> None:
    found = fitting(Wanted(gpu("h200"), scheme=Scheme.NVFP4_MIXED))
    assert not found.yes and not found.lowered and found.choice.workload.concurrency == 5


@pytest.mark.parametrize("hardware", HARDWARE)
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("serving", list(Serving))
def test_every_published_start_fits(engine: str, hardware: str, serving: Serving) -> None:
    """Whoever says only what is there gets a command, or a reason why nothing was published."""
    tried = 0
    for goal in Goal:
        wanted = Wanted(gpu(hardware), engine, goal=goal, serving=serving)
        try:
            known = suggest(engine, gpu(hardware), serving, goal)
        except NotKnownError:
            with pytest.raises(NotKnownError):
                choose(wanted)
            continue
        assert choose(wanted).layout == known.layout and not refused(choose(wanted))
        found = fitting(wanted)
        assert found.yes, found.reason
        tried += 1
    assert tried in (0, 3)


def test_sizes_that_contradict_each_other() -> None:
    with pytest.raises(UsageError, match="32 GPUs, not 16"):
        choose(Wanted(gpu("b300"), gpus=16, tp=16, dp=2))
    with pytest.raises(UsageError, match="missing"):
        choose(Wanted(gpu("b300"), serving=Serving.DISAGGREGATED, ep=True))


def test_both_roles_of_vllm_spread_the_cache_alike() -> None:
    """NIXL moves K3's cache between sides of one decode-context-parallel size only."""
    pair = Wanted(gpu("gb300"), serving=Serving.DISAGGREGATED, tp=16, dcp=16)
    made = choose(pair)
    assert made.prefill is not None and (made.prefill.tp, made.prefill.dcp) == (16, 16)
    assert not refused(made)
    apart = replace(made, prefill=replace(made.prefill, dcp=1))
    assert {one.reason.rule for one in refused(apart)} == {"vllm-pd-dcp-differs"}
    sglang = choose(replace(pair, engine="sglang", tp=8, dcp=8))
    assert sglang.prefill is not None and sglang.prefill.dcp == 1 and not refused(sglang)
    wrong = replace(sglang, prefill=replace(sglang.prefill, dcp=4))
    assert "sglang-pd-dcp" in {one.reason.rule for one in refused(wrong)}


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_sizes_that_leave_ranks_without_a_partner(engine: str) -> None:
    made = choose(Wanted(gpu("b300"), engine, serving=Serving.DISAGGREGATED, tp=8))
    uneven = replace(made, prefill=Layout(tp=12))
    assert f"{engine}-pd-tp-divides" in {one.reason.rule for one in refused(uneven)}


@pytest.mark.parametrize(("engine", "flag"), [("vllm", "gpu-memory-utilization"), ("sglang", "mem-fraction-static")])
def test_prefill_may_have_another_share_of_memory(engine: str, flag: str) -> None:
    wanted = Wanted(gpu("gb300"), engine, serving=Serving.DISAGGREGATED)
    usual = UTILIZATION_STANDARD[engine]
    shared = {role.command.flag(flag) for role in build(choose(wanted)).roles[:2]}
    assert shared == {f"{usual:.2f}"}
    found = fitting(replace(wanted, utilization=0.87, prefill_utilization=0.92))
    prefill, decode = build(found.choice).roles[:2]
    assert (prefill.command.flag(flag), decode.command.flag(flag)) == ("0.92", "0.87")
    assert [one.plan.workload.utilization for one in found.roles] == [0.92, 0.87]
    assert from_query(to_query(found.choice)) == found.choice
    assert preflight_of(build(found.choice), usual).utilization == 0.92


def test_a_share_for_prefill_needs_a_prefill_role() -> None:
    with pytest.raises(UsageError, match="prefill and decode apart"):
        choose(Wanted(gpu("b300"), prefill_utilization=0.9))
    with pytest.raises(UsageError, match="no prefill role"):
        replace(choose(Wanted(gpu("b300"))), prefill_utilization=0.9)
    with pytest.raises(UsageError, match="above 0"):
        choose(Wanted(gpu("b300"), serving=Serving.DISAGGREGATED, prefill_utilization=1.5))


def test_a_prefill_role_that_does_not_fit_can_be_given_more() -> None:
    """Its own share, so that decode keeps what its graphs and draft need outside."""
    wanted = Wanted(gpu("gb300"), serving=Serving.DISAGGREGATED, utilization=0.82, context=196_608, concurrency=32)
    tight = fitting(wanted)
    assert [one.role for one in tight.short] == ["prefill"]
    assert fitting(replace(wanted, prefill_utilization=0.90)).yes
