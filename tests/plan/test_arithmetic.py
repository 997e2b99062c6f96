"""Blocks, pools, weights and stages: numbers of public logs, and of the engines' source."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k3stack.plan import KvDtype, Layout, StateDtype, Workload
from k3stack.plan.cache import kda_state_bytes, kv_bytes_per_token
from k3stack.plan.releases import release
from k3stack.plan.reserves import fit, graph_bytes
from k3stack.plan.sglang import SglangPools, sglang_pools
from k3stack.plan.stages import stages
from k3stack.plan.weights import expert_rows, weights_of_stage
from k3stack.spec.sizes import measure
from k3stack.values import GIB
from tests.plan.common import DAY0, K3, SGLANG, VLLM, assessed, blocks_for, load_gib


def test_cache_and_state_sizes() -> None:
    assert kv_bytes_per_token(K3, KvDtype.BF16) == 27_648
    assert kv_bytes_per_token(K3, KvDtype.FP8) == 13_824
    assert kv_bytes_per_token(K3, KvDtype.FP8_DS_MLA) == 15_744
    assert kda_state_bytes(K3) == 449_372_160
    assert kda_state_bytes(K3, StateDtype.BF16) == 232_316_928


@pytest.mark.parametrize(
    ("tp", "kv_dtype", "tokens", "page_bytes"),
    [
        (1, "bf16", 5760, 6_635_520),
        (1, "fp8", 11_392, 6_561_792),
        (2, "bf16", 2944, 3_391_488),
        (2, "fp8_ds_mla", 5760, 3_778_560),  # chosen by 576 bytes a token, stored in 656
        (4, "fp8", 2944, 1_695_744),
        (8, "bf16", 768, 884_736),
        (8, "fp8", 1536, 884_736),
        (16, "bf16", 384, 442_368),
    ],
)
def test_vllm_blocks(tp: int, kv_dtype: str, tokens: int, page_bytes: int) -> None:
    blocks = blocks_for(Layout(tp=tp), Workload(kv_dtype=KvDtype(kv_dtype)))
    assert (blocks.tokens, blocks.page_bytes) == (tokens, page_bytes)
    assert blocks.block_bytes() == 24 * page_bytes
    assert (blocks.mla_groups, blocks.state_groups) == (1, 3)


@pytest.mark.parametrize(
    ("known", "prefix_caching", "draft", "replay", "nvidia", "states"),
    [
        (VLLM, False, 0, False, True, 1),
        (VLLM, True, 0, False, True, 3),
        (VLLM, True, 0, False, False, 2),  # no FlashKDA on AMD
        (DAY0, True, 0, False, True, 2),
        (VLLM, True, 7, False, True, 10),
        (VLLM, True, 7, True, True, 3),
        (VLLM, False, 7, False, True, 8),
    ],
)
def test_states_per_group(
    known: object, prefix_caching: bool, draft: int, replay: bool, nvidia: bool, states: int
) -> None:
    work = Workload(prefix_caching=prefix_caching, speculative_tokens=draft, replay_ssm=replay)
    assert blocks_for(Layout(tp=8), work, known, nvidia).states == states  # type: ignore[arg-type]


def test_a_draft_widens_the_group_and_the_state() -> None:
    blocks = blocks_for(Layout(tp=8), Workload(speculative_tokens=7))
    assert blocks.pages == (29,)  # 24 layers and 5 of the draft
    assert blocks.page_bytes == 884_736  # 878,592 of state still fit


def test_stages_hold_their_share_of_each_group() -> None:
    assert blocks_for(Layout(tp=8, pp=2), Workload()).pages == (12, 13)


@pytest.mark.parametrize(("engine", "ends"), [("vllm", (47, 93)), ("sglang", (46, 93))])
def test_stages_of_93_layers_over_two(engine: str, ends: tuple[int, int]) -> None:
    assert tuple(stage.end for stage in stages(93, 2, engine)) == ends


@given(st.integers(1, 200), st.integers(1, 40), st.sampled_from(["vllm", "sglang"]))
def test_stages_hold_every_layer_once(layers: int, count: int, engine: str) -> None:
    if count <= layers:
        found = stages(layers, count, engine)
        assert [layer for stage in found for layer in range(stage.start, stage.end)] == list(range(layers))
        assert max(stage.end - stage.start for stage in found) - min(stage.end - stage.start for stage in found) <= 1


# github.com/mnmehta/kimi-k3 @0c170c5, "Model loading took", GiB
@pytest.mark.parametrize(
    ("layout", "stage", "reported"),
    [
        (Layout(tp=16), 0, 129.75),
        (Layout(tp=16, ep=True), 0, 129.75),
        (Layout(tp=8, dp=2), 0, 135.69),
        (Layout(tp=8, pp=2), 0, 96.79),
        (Layout(tp=8, pp=2), 1, 96.47),
    ],
)
def test_load_memory_of_public_logs(layout: Layout, stage: int, reported: float) -> None:
    assert load_gib(layout, DAY0, stage) == pytest.approx(reported, rel=0.004)


def test_expert_parallelism_saves_the_padding_since_0_27_1() -> None:
    """The image of July 2026 widened experts to 4,096 rows under TP16 with EP; 0.27.1 and later keep 3,072."""
    with_ep, without = Layout(tp=16, ep=True), Layout(tp=16)
    assert expert_rows(K3, with_ep, DAY0) == 4_096
    assert expert_rows(K3, with_ep, VLLM) == expert_rows(K3, with_ep, release("vllm", "0.27.1")) == 3_072
    assert load_gib(with_ep, DAY0) == pytest.approx(load_gib(without, DAY0), rel=1e-9)
    assert load_gib(without) - load_gib(with_ep) == pytest.approx(28.07, abs=0.01)


@pytest.mark.parametrize(
    ("layout", "vllm", "sglang"),
    [
        (Layout(tp=8), 384, 384),
        (Layout(tp=16), 256, 256),
        (Layout(tp=32), 256, 128),  # vLLM's model file asks for 256, the kernel for 128
        (Layout(tp=8, dp=4), 128, 128),  # 96 rows, rounded up by the kernel alone
    ],
)
def test_expert_rows(layout: Layout, vllm: int, sglang: int) -> None:
    assert (expert_rows(K3, layout, VLLM), expert_rows(K3, layout, SGLANG)) == (vllm, sglang)


@pytest.mark.parametrize("scheme", ["mxfp4", "nvfp4-mixed", "nvfp4-experts", "fp8-block", "bf16"])
def test_one_rank_holds_the_checkpoint(scheme: str) -> None:
    spec = K3.with_scheme(scheme)
    parts = weights_of_stage(spec, Layout(), VLLM)
    total = measure(spec).payload_bytes
    assert sum(part.rank_bytes for part in parts) == sum(part.total_bytes for part in parts) == total


@settings(max_examples=20)
@given(st.sampled_from([1, 2, 3, 4, 6, 8, 12, 16, 24, 32]), st.integers(1, 12), st.booleans())
def test_ranks_together_hold_at_least_the_checkpoint(tp: int, pp: int, ep: bool) -> None:
    layout = Layout(tp=tp, pp=pp, ep=ep)
    held = sum(load_gib(layout, VLLM, stage) for stage in range(pp)) * tp
    assert held >= measure(K3).payload_bytes / GIB * 0.9999


def test_vision_can_be_left_out() -> None:
    with_vision, without = (weights_of_stage(K3, Layout(tp=8), VLLM, None, vision) for vision in (True, False))
    assert sum(p.rank_bytes for p in with_vision) - sum(p.rank_bytes for p in without) == 2 * (401_214_464 + 46_144_512)


def pools(layout: Layout, **settings: object) -> SglangPools:
    found = stages(len(K3.layers), layout.pp, "sglang")
    return sglang_pools(K3, layout, Workload(**settings), found, found[0])  # type: ignore[arg-type]


def test_sglang_slots() -> None:
    """whn09/kimi-k3-sglang: ssm_state 15.67 GB on 8 x B300 is 310 slots of 69 x 786,432 bytes, conv state besides."""
    pool = pools(Layout(tp=8))
    assert pool.slot_bytes == 449_372_160 // 8
    assert pytest.approx(15.67, abs=0.005) == 310 * 69 * 786_432 / GIB
    assert [pools(Layout(tp=8), prefix_caching=on).slots_per_request for on in (True, False)] == [5, 1]
    assert pool.token_bytes == 13_824
    assert pools(Layout(tp=8, dcp=8)).token_bytes == 1_728


def test_sglang_ratio_that_balances_follows_dcp() -> None:
    """A launcher of whn09's ties ratio 5.13 to dcp 8 and 0.86 to dcp 1: per dcp it must grow about so."""
    one, eight = (pools(Layout(tp=8, dcp=dcp)).balance(24_000) for dcp in (1, 8))
    assert eight == pytest.approx(8 * one)
    assert one == pytest.approx(5 * 56_171_520 / (24_000 * 13_824))


@given(st.integers(10**9, 10**11), st.floats(0.02, 20), st.sampled_from([0, 7]), st.booleans())
def test_sglang_pools_stay_in_the_memory(memory: int, ratio: float, draft: int, replay: bool) -> None:
    pool = pools(Layout(tp=8), speculative_tokens=draft, replay_ssm=replay)
    slots, tokens = pool.slots_in(memory, ratio), pool.tokens_in(memory, ratio)
    running = min(pool.requests_in(memory, ratio), pool.most_requests)
    kept = pool.state_bytes * (running + 1) * pool.verified_tokens
    assert (slots + 1) * pool.slot_bytes * bool(slots) + kept * bool(
        slots
    ) + tokens * pool.token_bytes <= memory * 1.0001


@given(st.integers(1, 200), st.integers(64, 10**6))
def test_the_balancing_ratio_gives_what_was_asked(requests: int, tokens: int) -> None:
    plan = assessed("b300", Layout(tp=8), Workload(tokens, requests), "sglang")
    if plan.yes:
        assert plan.capacity.state_requests >= requests
        assert plan.capacity.kv_tokens >= tokens
        fixed = Workload(tokens, requests, state_ratio=plan.capacity.state_ratio)
        assert assessed("b300", Layout(tp=8), fixed, "sglang").yes


def test_reserves_are_a_fit_with_its_spread() -> None:
    line = fit()
    assert line.points >= 10
    assert 200_000 < line.token_bytes < 600_000
    assert 0.5 * GIB < line.spread_bytes < 1.5 * GIB
    assert graph_bytes(1) == graph_bytes(2) < graph_bytes(32) < graph_bytes(128) < graph_bytes(256) == graph_bytes(999)
