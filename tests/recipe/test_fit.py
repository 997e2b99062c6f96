"""The planner is asked about every role, with what its own command says."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k3stack.errors import NotKnownError
from k3stack.hardware.table import gpu
from k3stack.plan.layout import KvDtype, Layout, StateDtype, Workload
from k3stack.plan.plan import Verdict
from k3stack.plan.reserves import Reserves
from k3stack.recipe.build import build, unchecked
from k3stack.recipe.choice import Choice, Feature, Goal, Serving, refused
from k3stack.recipe.fit import Fit, _settings, fit
from k3stack.recipe.link import from_query, to_query
from k3stack.recipe.suggest import suggest
from k3stack.spec.schemes import Scheme
from k3stack.values import GIB, dump, load

SGLANG = Workload(kv_dtype=KvDtype.BF16, utilization=0.85)


def vllm(layout: Layout, hardware: str = "b300", **more: Any) -> Choice:
    return Choice("vllm", "0.33.0", gpu(hardware), Scheme.MXFP4, layout, **more)


def sglang(layout: Layout, hardware: str = "b300", **more: Any) -> Choice:
    more = {"workload": SGLANG, **more}
    return Choice("sglang", "0.5.23", gpu(hardware), Scheme.MXFP4, layout, **more)


def test_what_does_not_fit_says_so_on_every_route() -> None:
    one = fit(vllm(Layout(tp=16), "h200", workload=Workload(kv_dtype=KvDtype.BF16)))
    spread = fit(vllm(Layout(tp=1, dp=16, ep=True), "b200"))
    other = fit(sglang(Layout(tp=8), workload=Workload(kv_dtype=KvDtype.BF16, utilization=0.85, concurrency=256)))
    for found in (one, spread, other):
        assert not found.yes and "too much" in found.reason
        assert found.short[0].plan.would_fit
    assert "fits" in fit(vllm(Layout(tp=8))).reason


def test_each_role_has_a_plan_of_its_own() -> None:
    known = suggest("vllm", gpu("b300"), Serving.DISAGGREGATED, Goal.BALANCED)
    found = fit(vllm(known.layout, serving=Serving.DISAGGREGATED, prefill=known.prefill))
    assert found.yes
    assert [(one.role, one.plan.layout) for one in found.roles] == [
        ("prefill", known.prefill),
        ("decode", known.layout),
    ]
    prefill, decode = (one.plan.workload for one in found.roles)
    assert (prefill.batched_tokens, prefill.prefix_caching) == (16_384, True)
    assert (decode.batched_tokens, decode.prefix_caching) == (8_192, False)


def test_one_role_that_does_not_fit_is_named() -> None:
    choice = vllm(Layout(tp=16), "b200", serving=Serving.DISAGGREGATED, prefill=Layout(tp=1, dp=16, ep=True))
    found = fit(choice)
    assert [one.role for one in found.short] == ["prefill"] and found.reason.startswith("prefill: does not fit")


def test_the_command_decides_what_is_counted() -> None:
    plain = fit(vllm(Layout(tp=16), "b200")).roles[0].plan.workload
    drafted = fit(vllm(Layout(tp=16), "b200", features=(Feature.DSPARK, Feature.TEXT_ONLY))).roles[0].plan.workload
    assert (plain.speculative_tokens, plain.vision) == (0, True)
    assert (drafted.speculative_tokens, drafted.vision) == (8, False)
    replayed = fit(sglang(Layout(tp=8, dcp=8), features=(Feature.DSPARK,))).roles[0].plan.workload
    assert (replayed.speculative_tokens, replayed.replay_ssm, replayed.state_slots) == (7, True, 5)
    amd = Choice("sglang", "0.5.19", gpu("mi355x"), Scheme.MXFP4, Layout(tp=8, dcp=8), SGLANG)
    assert fit(amd).roles[0].plan.workload.state_dtype is StateDtype.BF16
    lazy = sglang(Layout(tp=32, ep=True), "h200", goal=Goal.HIGH_THROUGHPUT)
    assert fit(lazy).roles[0].plan.workload.state_slots == 4


def test_a_prefill_role_of_sglang_keeps_no_states_for_its_draft() -> None:
    known = suggest("sglang", gpu("b200"), Serving.DISAGGREGATED, Goal.BALANCED)
    more: dict[str, Any] = {"serving": Serving.DISAGGREGATED, "prefill": known.prefill, "features": (Feature.DSPARK,)}
    found = fit(sglang(known.layout, "b200", **more))
    assert found.yes, found.reason
    prefill, decode = (one.plan.workload for one in found.roles)
    assert not prefill.verifies and prefill.speculative_tokens == 7
    assert decode.verifies and decode.state_slots == 1
    assert any("16 more KDA states" in told for told in found.unknown)


def test_sglangs_own_ratio_is_kept_where_it_does() -> None:
    found = fit(sglang(Layout(tp=8, dcp=8)))
    assert found.yes and found.choice.workload.state_ratio is None
    assert found.roles[0].plan.capacity.state_ratio == 0.9
    assert build(found.choice).roles[0].command.flag("mamba-full-memory-ratio") is None


def test_where_sglangs_own_ratio_does_not_do_the_command_carries_one_that_does() -> None:
    asked = sglang(Layout(tp=8, dcp=8), features=(Feature.DSPARK,))
    found = fit(asked)
    assert found.yes and found.choice != asked
    ratio = build(found.choice).roles[0].command.flag("mamba-full-memory-ratio")
    assert ratio == found.choice.workload.state_ratio == found.roles[0].plan.capacity.state_ratio
    assert fit(found.choice) == found
    by_hand = sglang(Layout(tp=8, dcp=8), features=(Feature.DSPARK,), workload=Workload(kv_dtype=KvDtype.BF16,
                     utilization=0.85, state_ratio=0.9))  # fmt: skip
    assert not fit(by_hand).yes


def test_decode_needs_no_ratio() -> None:
    known = suggest("sglang", gpu("b300"), Serving.DISAGGREGATED, Goal.BALANCED)
    more: dict[str, Any] = {"serving": Serving.DISAGGREGATED, "prefill": known.prefill, "features": (Feature.DSPARK,)}
    found = fit(sglang(known.layout, **more))
    prefill, decode, _ = build(found.choice).roles
    assert prefill.command.flag("mamba-full-memory-ratio") is not None
    assert decode.command.flag("mamba-full-memory-ratio") is None


def test_the_chunk_is_the_planned_one_for_each_replica() -> None:
    choice = sglang(Layout(tp=8, dp=2, ep=True), "b200", workload=Workload(kv_dtype=KvDtype.BF16, batched_tokens=4_096))
    found = fit(choice)
    assert build(choice).roles[0].command.flag("chunked-prefill-size") == 8_192
    assert found.roles[0].plan.workload.batched_tokens == 4_096


def test_what_is_not_allowed_is_refused_before_it_is_planned() -> None:
    with pytest.raises(NotKnownError, match="H100"):
        fit(vllm(Layout(tp=32), "h100"))


def test_what_cannot_be_counted_is_said() -> None:
    choice = sglang(Layout(tp=16), "gb200", features=(Feature.DFLASH,))
    assert any("DFlash" in told for told in fit(choice).unknown)
    assert fit(sglang(Layout(tp=16), "gb200")).unknown == ()


def test_a_sites_own_figures_are_used() -> None:
    choice = vllm(Layout(tp=8))
    assert fit(choice).yes
    huge = Reserves(60 * GIB, 10 * GIB, 8_192, 2 * GIB, "vllm 0.33.0, TP8, start.log")
    assert not fit(choice, reserves=huge).yes


def test_a_fit_survives_json_and_its_choice_a_link() -> None:
    found = fit(sglang(Layout(tp=8, dcp=8), features=(Feature.DSPARK,)))
    assert load(Fit, dump(found)) == found
    assert from_query(to_query(found.choice)) == found.choice


@settings(max_examples=60)
@given(
    st.sampled_from(["vllm", "sglang"]),
    st.sampled_from([Layout(tp=8), Layout(tp=8, dp=2), Layout(tp=8, dcp=8), Layout(tp=4, dp=4, ep=True)]),
    st.sampled_from(list(Serving)),
    st.sampled_from([(), (Feature.DSPARK,), (Feature.TEXT_ONLY,), (Feature.HICACHE,)]),
    st.sampled_from([8_192, 196_608, 196_609, 1_048_576]),
    st.sampled_from([1, 5, 64, 512, 20_000]),
    st.booleans(),
)
def test_every_size_is_planned_as_its_own_command_says(
    engine: str,
    layout: Layout,
    serving: Serving,
    features: tuple[Feature, ...],
    context: int,
    concurrency: int,
    cached: bool,
) -> None:
    kv = KvDtype.FP8 if engine == "vllm" else KvDtype.BF16
    work = Workload(kv_dtype=kv, context=context, concurrency=concurrency, prefix_caching=cached, utilization=0.85)
    make = vllm if engine == "vllm" else sglang
    prefill = layout if serving is Serving.DISAGGREGATED else None
    choice = make(layout, workload=work, serving=serving, prefill=prefill, features=features)
    if refused(choice):
        return
    found = fit(choice, changes=False)
    commands = {role.name: role.command for role in unchecked(found.choice).roles}
    assert [one.role for one in found.roles] == [name for name, _ in choice.roles()]
    for (name, role_layout), one in zip(choice.roles(), found.roles, strict=True):
        said = _settings(found.choice, name, role_layout, commands[name])
        assert one.plan.workload == replace(found.choice.workload, **said)


@settings(max_examples=40)
@given(
    st.sampled_from([("vllm", "b300"), ("vllm", "gb200"), ("sglang", "b300"), ("sglang", "h200"), ("sglang", "b200")]),
    st.sampled_from([Layout(tp=8), Layout(tp=16), Layout(tp=16, ep=True), Layout(tp=8, pp=2), Layout(tp=16, dcp=16)]),
    st.sampled_from([(), (Feature.DSPARK,)]),
    st.integers(1, 512),
)
def test_more_requests_never_fit_better(
    where: tuple[str, str], layout: Layout, features: tuple[Feature, ...], requests: int
) -> None:
    engine, hardware = where
    version = "0.33.0" if engine == "vllm" else "0.5.23"
    kv = KvDtype.FP8 if engine == "vllm" else KvDtype.BF16

    def at(concurrency: int) -> Choice:
        work = Workload(kv_dtype=kv, concurrency=concurrency)
        return Choice(engine, version, gpu(hardware), Scheme.MXFP4, layout, work, features=features)

    if refused(at(requests)):
        return
    if not fit(at(requests)).yes:
        found = fit(at(requests * 2))
        assert not found.yes and found.short[0].plan.verdict is Verdict.DOES_NOT_FIT
