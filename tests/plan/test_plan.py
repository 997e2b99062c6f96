"""The planner: verdicts, published floors, what would fit, laws, and bad input."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k3stack.errors import K3Error, NotKnownError, UsageError
from k3stack.hardware.table import gpu, gpus
from k3stack.plan import KvDtype, Layout, Plan, StateDtype, Verdict, Workload
from k3stack.plan.search import fewest_gpus
from k3stack.values import GIB, dump, load
from tests.plan.common import K3, assessed, plan_for

FLOORS = {"h100": 32, "h200": 16, "b200": 16, "b300": 8, "gb200": 16, "gb300": 8}


@pytest.mark.parametrize("scheme", ["mxfp4", "nvfp4-mixed"])
@pytest.mark.parametrize("hardware", FLOORS)
def test_published_floors(hardware: str, scheme: str) -> None:
    assert fewest_gpus(K3.with_scheme(scheme), gpu(hardware)).gpus == FLOORS[hardware]


def test_the_floor_on_amd() -> None:
    assert fewest_gpus(K3, gpu("mi355x")).gpus == 8
    assert fewest_gpus(K3, gpu("mi300x")).gpus == 16
    assert fewest_gpus(K3.with_scheme("nvfp4-mixed"), gpu("mi355x")).gpus is None


def test_eight_gb200_are_refused_with_the_arithmetic() -> None:
    """A public recipe offers 8 (vllm-project/recipes#934): TP8 holds 191.8 GiB of weights, the driver reports 184."""
    floor = fewest_gpus(K3, gpu("gb200"))
    assert floor.short_bytes is not None
    assert floor.short_bytes > 10e9
    assert sum(line.size_bytes for line in plan_for("gb200", Layout(tp=8)).ledger.lines[:12]) / GIB > 184


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("scheme", ["mxfp4", "nvfp4-mixed"])
def test_eight_b300_fit_and_four_do_not(scheme: str, engine: str) -> None:
    assert plan_for("b300", Layout(tp=8), scheme=scheme, engine=engine).verdict is Verdict.FITS
    four = plan_for("b300", Layout(tp=4), scheme=scheme, engine=engine)
    assert four.verdict is Verdict.DOES_NOT_FIT
    assert four.would_fit == ("8 x NVIDIA B300 (TP8) as asked",)
    assert four.routes[-1].id and not plan_for("b300", Layout(tp=8)).routes


def test_eight_h200_do_not_fit_and_it_says_by_how_much_and_what_would() -> None:
    plan = plan_for("h200", Layout(tp=8))
    assert plan.verdict is Verdict.DOES_NOT_FIT
    assert plan.left_bytes == plan.budget_bytes - plan.ledger.total_bytes < -80e9
    assert "GB too much" in plan.reason
    assert any(change.startswith("16 x NVIDIA H200 (TP8 x PP2)") for change in plan.would_fit)


def test_a_refused_layout_is_a_verdict_with_its_source() -> None:
    plan = plan_for("h200", Layout(tp=8, pp=2, dcp=8), engine="sglang")
    assert plan.verdict is Verdict.NOT_SUPPORTED
    assert not plan.yes
    assert "SGLang 0.5.23" in plan.reason and "2026" in plan.reason


def test_the_validated_setting_of_the_model_card_fits() -> None:
    """NVIDIA validated 8 x B300, TP8, 0.90, 196,608 tokens, 32 requests, 8,192 per step, FP8 cache, prefix caching."""
    plan = plan_for("b300", Layout(tp=8), scheme="nvfp4-mixed")
    assert plan.verdict is Verdict.FITS
    assert plan.capacity.longest_context >= 196_608


def test_what_vllm_prints_is_not_what_fits() -> None:
    capacity = plan_for("b300", Layout(tp=8)).capacity
    assert capacity.printed_tokens == int(capacity.blocks / (9 + 128) * 196_608)
    assert capacity.kv_tokens == (capacity.blocks - 32 * 9) * 1536


def test_the_fullest_stage_is_shown() -> None:
    plan = plan_for("h200", Layout(tp=8, pp=2))
    assert plan.ledger.stage == 1  # 13 of 24 MLA layers are on the second stage
    assert "11,501,568 B" in plan.ledger.lines[-1].formula


def test_data_parallel_replicas_share_the_requests() -> None:
    one, two = (plan_for("mi355x", Layout(tp=8, dp=dp, ep=dp > 1)) for dp in (1, 2))
    states = [next(line for line in plan.ledger.lines if line.what.startswith("KDA state of")) for plan in (one, two)]
    assert states[1].size_bytes * 2 == states[0].size_bytes


def test_an_older_release_counts_graphs_outside_the_budget() -> None:
    older = plan_for("b300", Layout(tp=8), version="0.28.0")
    assert not any(line.what == "CUDA graphs" for line in older.ledger.lines)
    assert any("CUDA graphs" in note for note in older.notes)
    assert any(line.what == "CUDA graphs" for line in plan_for("b300", Layout(tp=8)).ledger.lines)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_plan_survives_json(engine: str) -> None:
    for layout in (Layout(tp=8), Layout(tp=8, pp=2)):
        plan = plan_for("h200", layout, engine=engine)
        assert load(Plan, dump(plan)) == plan


layouts = st.sampled_from(
    [
        Layout(tp=8),
        Layout(tp=16),
        Layout(tp=8, pp=2),
        Layout(tp=16, dcp=8),
        Layout(tp=4, ep=True),
        Layout(tp=8, dp=2, ep=True),
        Layout(tp=3, pp=5),
        Layout(tp=4, pp=32),  # stages without MLA layers
    ]
)
workloads = st.builds(
    Workload,
    context=st.integers(1, 1_048_576),
    concurrency=st.integers(1, 256),
    kv_dtype=st.sampled_from(KvDtype),
    prefix_caching=st.booleans(),
    batched_tokens=st.integers(128, 65_536),
    utilization=st.floats(0.5, 1.0),
    state_dtype=st.sampled_from(StateDtype),
    speculative_tokens=st.sampled_from([0, 7]),
    replay_ssm=st.booleans(),
    vision=st.booleans(),
    state_slots=st.sampled_from([None, 3, 4]),
)
engines = st.sampled_from(["vllm", "sglang"])


@given(st.sampled_from(sorted(gpus())), layouts, workloads, engines)
def test_lines_sum_to_the_total(hardware: str, layout: Layout, workload: Workload, engine: str) -> None:
    plan = assessed(hardware, layout, workload, engine=engine)
    assert plan.ledger.total_bytes == sum(line.size_bytes for line in plan.ledger.lines)
    assert all(line.size_bytes >= 0 and line.formula for line in plan.ledger.lines)
    if engine == "vllm":
        assert plan.left_bytes == plan.budget_bytes - plan.ledger.total_bytes
    else:
        assert plan.left_bytes <= plan.budget_bytes - plan.ledger.total_bytes
    if plan.verdict is not Verdict.NOT_SUPPORTED:
        assert plan.yes == (plan.left_bytes >= 0)


@given(layouts, workloads, st.floats(0.0, 0.3), engines)
def test_more_memory_never_lowers_capacity(layout: Layout, workload: Workload, more: float, engine: str) -> None:
    workload = replace(workload, state_ratio=0.9)  # a balancing ratio moves memory between SGLang's pools
    roomier = replace(workload, utilization=min(1.0, workload.utilization + more))
    less, greater = (assessed("b300", layout, each, engine=engine) for each in (workload, roomier))
    names = ["state_requests", "blocks"]
    if engine == "vllm" or greater.capacity.blocks == less.capacity.blocks:  # SGLang pays one slot more with tokens
        names += ["kv_tokens", "full_requests", "longest_context", "printed_tokens"]
        assert greater.left_bytes >= less.left_bytes
    for name in names:
        assert getattr(greater.capacity, name) >= getattr(less.capacity, name)


@given(layouts, workloads, st.integers(1, 255), engines)
def test_fewer_requests_never_need_more(layout: Layout, workload: Workload, fewer: int, engine: str) -> None:
    smaller = replace(workload, concurrency=max(1, workload.concurrency - fewer))
    needs = [assessed("b300", layout, each, engine=engine).ledger.total_bytes for each in (smaller, workload)]
    assert needs[0] <= needs[1]


@given(layouts, workloads, st.integers(1, 65_000), engines)
def test_smaller_chunks_never_need_more(layout: Layout, workload: Workload, fewer: int, engine: str) -> None:
    smaller = replace(workload, batched_tokens=max(1, workload.batched_tokens - fewer))
    needs = [assessed("b300", layout, each, engine=engine).ledger.total_bytes for each in (smaller, workload)]
    assert needs[0] <= needs[1]


@given(workloads)
def test_what_fits_holds_what_was_asked(workload: Workload) -> None:
    """A yes under either engine means: the states of all requests and one full request are there."""
    for engine in ("vllm", "sglang"):
        plan = assessed("mi355x", Layout(tp=8), workload, engine=engine)
        if plan.yes:
            assert plan.capacity.longest_context >= workload.context
            assert plan.capacity.state_requests >= workload.concurrency
            assert plan.capacity.full_requests >= 1


@settings(max_examples=15)
@given(workloads)
def test_what_is_said_to_fit_does(workload: Workload) -> None:
    """Every layout in `would_fit` that is offered as asked is one that fits as asked."""
    plan = plan_for("h200", Layout(tp=8), workload)
    for change in plan.would_fit:
        if change.endswith("as asked"):
            described = change[change.index("(") + 1 : change.index(")")]
            sizes = [int(part.strip("TPx ")) for part in described.split(" x ")]
            assert plan_for("h200", Layout(tp=sizes[0], pp=sizes[1] if len(sizes) > 1 else 1), workload).yes


BAD: list[tuple[Callable[[], object], type[K3Error], str]] = [
    (lambda: Layout(tp=0), UsageError, "tp"),
    (lambda: Layout(dp=-1), UsageError, "dp"),
    (lambda: Layout(tp=8, dcp=3), UsageError, "dcp"),
    (lambda: Workload(context=0), UsageError, "context"),
    (lambda: Workload(utilization=-0.1), UsageError, "utilization"),
    (lambda: Workload(utilization=1.5), UsageError, "utilization"),
    (lambda: Workload(speculative_tokens=-1), UsageError, "speculative_tokens"),
    (lambda: Workload(state_slots=0), UsageError, "state_slots"),
    (lambda: Workload(state_ratio=0.0), UsageError, "state_ratio"),
    (lambda: plan_for("b300", Layout(tp=7)), UsageError, "tp"),
    (lambda: plan_for("b300", Layout(tp=8), Workload(context=1_048_577)), UsageError, "context"),
    (lambda: plan_for("b300", Layout(tp=1, pp=94)), UsageError, "pp"),
    (lambda: plan_for("b400", Layout(tp=8)), NotKnownError, "--hardware"),
    (lambda: plan_for("b300", Layout(tp=8), engine="trt"), NotKnownError, "engine"),
    (lambda: plan_for("b300", Layout(tp=8), version="new"), UsageError, "release"),
]


@pytest.mark.parametrize(("make", "kind", "named"), BAD)
def test_impossible_input_is_one_clear_line(make: Callable[[], object], kind: type[K3Error], named: str) -> None:
    with pytest.raises(kind) as caught:
        make()
    assert str(caught.value).startswith(named)
    assert "\n" not in str(caught.value)
