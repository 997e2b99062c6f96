"""The planner: published floors, laws, and bad input."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3stack.errors import UsageError
from k3stack.hardware.table import gpu, gpus
from k3stack.plan import KvDtype, Layout, Plan, Verdict, Workload, make_plan
from k3stack.plan.cache import kda_state_bytes, kv_bytes_per_token, vllm_blocks
from k3stack.plan.weights import weights_per_gpu
from k3stack.spec.published import kimi_k3
from k3stack.values import GIB, dump, load

K3 = kimi_k3()


def plan_for(hardware: str, layout: Layout, workload: Workload | None = None, scheme: str = "mxfp4") -> Plan:
    return make_plan(K3.with_scheme(scheme), "model", gpu(hardware), layout, workload or Workload())


@pytest.mark.parametrize("scheme", ["mxfp4", "nvfp4-mixed"])
def test_eight_b300_fit_and_four_do_not(scheme: str) -> None:
    assert plan_for("b300", Layout(tp=8), scheme=scheme).verdict is Verdict.FITS
    four = plan_for("b300", Layout(tp=4), scheme=scheme)
    assert four.verdict is Verdict.DOES_NOT_FIT
    assert four.would_fit == ("8 x NVIDIA B300 (TP8) as asked",)


def test_eight_h200_do_not_fit_and_it_says_by_how_much_and_what_would() -> None:
    plan = plan_for("h200", Layout(tp=8))
    assert plan.verdict is Verdict.DOES_NOT_FIT
    assert plan.left_bytes == plan.budget_bytes - plan.ledger.total_bytes < -80e9
    assert "84.25 GB too much" in plan.reason
    assert any(change.startswith("16 x NVIDIA H200 (TP8 x PP2)") for change in plan.would_fit)


def test_weights_of_tp16_match_the_public_log() -> None:
    """vLLM logged 129.75 GiB per GPU for TP16 in MXFP4 (github.com/mnmehta/kimi-k3 @0c170c5)."""
    total = sum(part.rank_bytes for part in weights_per_gpu(K3, Layout(tp=16)))
    assert total / GIB == pytest.approx(129.75, rel=0.001)


def test_weights_of_tp8_pp2_match_the_public_log() -> None:
    """The same runs logged 96.47 and 96.79 GiB for the two stages."""
    total = sum(part.rank_bytes for part in weights_per_gpu(K3, Layout(tp=8, pp=2)))
    assert total / GIB == pytest.approx(96.79, rel=0.01)


def test_one_rank_holds_the_checkpoint() -> None:
    parts = weights_per_gpu(K3, Layout())
    assert sum(part.rank_bytes for part in parts) == sum(part.total_bytes for part in parts) == 1_560_860_324_864


def test_cache_and_state_sizes() -> None:
    assert kv_bytes_per_token(K3, KvDtype.BF16) == 27_648
    assert kv_bytes_per_token(K3, KvDtype.FP8) == 13_824
    assert kda_state_bytes(K3) == 449_372_160


@pytest.mark.parametrize(
    ("tp", "kv_dtype", "tokens", "page_bytes"),
    [
        (1, "bf16", 5760, 6_635_520),
        (1, "fp8", 11_392, 6_561_792),
        (2, "bf16", 2944, 3_391_488),
        (4, "fp8", 2944, 1_695_744),
        (8, "bf16", 768, 884_736),
        (8, "fp8", 1536, 884_736),
        (16, "bf16", 384, 442_368),
    ],
)
def test_vllm_blocks(tp: int, kv_dtype: str, tokens: int, page_bytes: int) -> None:
    blocks = vllm_blocks(K3, Layout(tp=tp), KvDtype(kv_dtype))
    assert (blocks.tokens, blocks.page_bytes) == (tokens, page_bytes)
    assert blocks.block_bytes == 24 * page_bytes
    assert (blocks.state_blocks(False), blocks.state_blocks(True)) == (3, 9)


def test_a_plan_survives_json() -> None:
    plan = plan_for("h200", Layout(tp=8))
    assert load(Plan, dump(plan)) == plan


layouts = st.sampled_from([Layout(tp=8), Layout(tp=16), Layout(tp=8, pp=2), Layout(tp=16, dcp=8), Layout(tp=4)])
workloads = st.builds(
    Workload,
    context=st.integers(1, 1_048_576),
    concurrency=st.integers(1, 256),
    kv_dtype=st.sampled_from(KvDtype),
    prefix_caching=st.booleans(),
    batched_tokens=st.integers(128, 65_536),
    utilization=st.floats(0.5, 1.0),
)


@given(st.sampled_from(sorted(gpus())), layouts, workloads)
def test_lines_sum_to_the_total(hardware: str, layout: Layout, workload: Workload) -> None:
    plan = plan_for(hardware, layout, workload)
    assert plan.ledger.total_bytes == sum(line.size_bytes for line in plan.ledger.lines)
    assert plan.left_bytes == plan.budget_bytes - plan.ledger.total_bytes
    assert plan.yes == (plan.left_bytes >= 0)


@given(layouts, workloads, st.floats(0.0, 0.3))
def test_more_memory_never_lowers_capacity(layout: Layout, workload: Workload, more: float) -> None:
    from dataclasses import replace

    roomier = replace(workload, utilization=min(1.0, workload.utilization + more))
    less, greater = plan_for("b300", layout, workload), plan_for("b300", layout, roomier)
    assert greater.capacity.kv_tokens >= less.capacity.kv_tokens
    assert greater.left_bytes >= less.left_bytes


@given(layouts, workloads, st.integers(1, 255))
def test_a_smaller_batch_never_needs_more(layout: Layout, workload: Workload, fewer: int) -> None:
    from dataclasses import replace

    smaller = replace(workload, concurrency=max(1, workload.concurrency - fewer))
    plans = [plan_for("b300", layout, each).ledger.total_bytes for each in (smaller, workload)]
    assert plans[0] <= plans[1]


@given(workloads)
def test_what_is_said_to_fit_does(workload: Workload) -> None:
    """Every layout in `would_fit` that is offered as asked is one that fits as asked."""
    plan = plan_for("h200", Layout(tp=8), workload)
    for change in plan.would_fit:
        if change.endswith("as asked"):
            described = change[change.index("(") + 1 : change.index(")")]
            sizes = [int(part.strip("TPx ")) for part in described.split(" x ")]
            assert plan_for("h200", Layout(tp=sizes[0], pp=sizes[1] if len(sizes) > 1 else 1), workload).yes


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Layout(tp=0), "tp"),
        (lambda: Layout(tp=8, dcp=3), "dcp"),
        (lambda: Workload(context=0), "context"),
        (lambda: Workload(utilization=-0.1), "utilization"),
        (lambda: Workload(utilization=1.5), "utilization"),
        (lambda: plan_for("b300", Layout(tp=7)), "tp"),
        (lambda: plan_for("b300", Layout(tp=8), Workload(context=1_048_577)), "context"),
        (lambda: plan_for("b300", Layout(tp=1, pp=94)), "pp"),
    ],
)
def test_impossible_input_is_one_clear_line(make: object, named: str) -> None:
    with pytest.raises(UsageError) as caught:
        make()  # type: ignore[operator]
    assert str(caught.value).startswith(named)
    assert "\n" not in str(caught.value)
