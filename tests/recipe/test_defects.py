"""What upstream's panels and recipes got wrong, executed or reported: none of it can be made here.

The letters are those of the vLLM recipes' resolver run over 1,224 K3 commands (2026-08-21).
"""

import shlex
import subprocess
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3stack.errors import NotKnownError
from k3stack.hardware.table import gpu
from k3stack.plan.layout import KvDtype, Layout, Workload
from k3stack.recipe.asking import engine_words
from k3stack.recipe.build import build, captured
from k3stack.recipe.choice import Choice, Feature, Goal, Serving, kv_standard, refused
from k3stack.recipe.deployment import Command, Deployment
from k3stack.recipe.render.docker import render as docker
from k3stack.recipe.suggest import suggest
from k3stack.recipe.wanted import Wanted, choose
from k3stack.spec.schemes import Scheme

BF16 = Workload(kv_dtype=KvDtype.BF16)


def vllm(hardware: str, layout: Layout, *features: Feature, version: str = "0.33.0", **more: object) -> Choice:
    work = Workload(kv_dtype=kv_standard("vllm", gpu(hardware)))
    choice = Choice("vllm", version, gpu(hardware), Scheme.MXFP4, layout, work, features=features)
    return replace(choice, **more)  # type: ignore[arg-type]


def sglang(hardware: str, layout: Layout, *features: Feature, version: str = "0.5.23", **more: object) -> Choice:
    choice = Choice("sglang", version, gpu(hardware), Scheme.MXFP4, layout, BF16, features=features)
    return replace(choice, **more)  # type: ignore[arg-type]


def published(engine: str, hardware: str, serving: Serving, goal: Goal, *features: Feature) -> Choice:
    known = suggest(engine, gpu(hardware), serving, goal)
    make = vllm if engine == "vllm" else sglang
    return make(hardware, known.layout, *features, goal=goal, serving=serving, prefill=known.prefill)


def command(choice: Choice, role: int = 0) -> Command:
    return build(choice).roles[role].command


def rule_against(choice: Choice) -> set[str]:
    return {refusal.reason.rule for refusal in refused(choice)}


# --- 2.4: the vLLM recipes ---


@pytest.mark.parametrize(
    ("tokens", "version", "told"), [(224, "0.32.0", True), (225, "0.32.0", False), (224, "0.33.0", False)]
)
def test_drafts_leave_tokens_of_a_step(tokens: int, version: str, told: bool) -> None:
    work = Workload(concurrency=32, batched_tokens=tokens)
    choice = vllm("b300", Layout(tp=8), Feature.DSPARK, version=version, workload=work)
    assert ("vllm-drafts-fill-step" in rule_against(choice)) is told
    assert "vllm-drafts-fill-step" not in rule_against(replace(choice, features=()))


@pytest.mark.parametrize("side", ["prefill", "layout"])
def test_a_replica_does_not_span_gb_trays(side: str) -> None:
    """The page's pool mode DEP for prefill gives each replica eight GPUs, and a tray has four; vLLM refuses that."""
    wide, one = Layout(tp=8, dp=4, ep=True), Layout(tp=8)
    layouts = {"prefill": one, "layout": one, side: wide}
    choice = vllm("gb300", layouts["layout"], serving=Serving.DISAGGREGATED, prefill=layouts["prefill"])
    assert "vllm-replicas-in-node" in rule_against(choice)
    assert "vllm-replicas-in-node" not in rule_against(vllm("b300", wide))


@pytest.mark.parametrize("layout", [Layout(tp=8), Layout(tp=8, ep=True)])
def test_a_two_gb200_trays_are_not_offered(layout: Layout) -> None:
    assert "vllm-floor-16" in rule_against(vllm("gb200", layout))
    assert not refused(vllm("gb200", Layout(tp=16)))


@pytest.mark.parametrize("role", [0, 1])
def test_b_disaggregated_roles_keep_the_whole_baseline(role: int) -> None:
    made = command(published("vllm", "b300", Serving.DISAGGREGATED, Goal.BALANCED), role)
    assert made.variables()["VLLM_ENGINE_READY_TIMEOUT_S"] == "3600"
    assert made.flag("kv-cache-dtype") == "fp8"
    assert made.flag("load-format") == "fastsafetensors"
    assert made.flag("max-model-len") == 196_608
    assert made.variables()["UCX_TLS"] == "rc,cuda_copy"


@pytest.mark.parametrize("hardware", ["mi350x", "mi355x", "h200"])
def test_c_blackwell_kernels_stay_on_blackwell(hardware: str) -> None:
    layout = Layout(tp=16 if hardware == "h200" else 8)
    assert "vllm-dcp-blackwell" in rule_against(vllm(hardware, replace(layout, dcp=8)))
    made = command(vllm(hardware, layout))
    words = " ".join(made.words())
    assert "TOKENSPEED" not in words and "TRTLLM" not in words and "FLASHINFER_MLA" not in words


def test_e_several_nodes_get_the_hosts_network() -> None:
    script = docker(build(vllm("b200", Layout(tp=16))))
    assert "--network host" in script and "--publish" not in script and "/dev/infiniband" in script


def test_f_text_only_on_amd_has_no_encoder_flag() -> None:
    assert command(vllm("mi355x", Layout(tp=8))).flag("mm-encoder-tp-mode") == "data"
    made = command(vllm("mi355x", Layout(tp=8), Feature.TEXT_ONLY))
    assert made.flag("language-model-only") is True and made.flag("mm-encoder-tp-mode") is None


@pytest.mark.parametrize("hardware", ["mi300x", "mi325x"])
def test_h_mi300_is_refused_not_warned_about(hardware: str) -> None:
    assert "vllm-no-mi300" in rule_against(vllm(hardware, Layout(tp=8)))


# --- 4.1: the deployment guide's five SGLang limits, as they are in 0.5.23 ---


@pytest.mark.parametrize("draft", [Feature.DSPARK, Feature.DFLASH])
def test_1_speculation_always_says_how_many_requests(draft: Feature) -> None:
    made = command(sglang("b300", Layout(tp=8), draft, workload=replace(BF16, concurrency=7)))
    assert made.flag("max-running-requests") == 7


def test_2_3_prefill_context_parallelism_is_never_written() -> None:
    for hardware in ("b300", "h200", "mi355x"):
        version = "0.5.19" if hardware == "mi355x" else "0.5.23"
        choice = published("sglang", hardware, Serving.UNIFIED, Goal.BALANCED)
        names = set(command(replace(choice, version=version)).values())
        assert not names & {"enable-prefill-cp", "attn-cp-size", "cp-strategy"}


def test_4_dspark_with_stages_only_in_prefill() -> None:
    assert "sglang-dspark-stages" in rule_against(sglang("b200", Layout(tp=8, pp=2), Feature.DSPARK))
    pair = published("sglang", "b200", Serving.DISAGGREGATED, Goal.LOW_LATENCY, Feature.DSPARK)
    prefill = command(pair, 0)
    assert prefill.flag("pp-size") == 16 and prefill.flag("speculative-algorithm") == "DSPARK"


def test_5_dflash_is_there_where_it_works() -> None:
    assert command(sglang("b300", Layout(tp=8), Feature.DFLASH)).flag("speculative-draft-model-path") == (
        "modal-labs/Kimi-K3-DFlash"
    )
    assert rule_against(sglang("h200", Layout(tp=16, ep=True), Feature.DFLASH)) == {"sglang-dflash"}


# --- 4.2: further constraints of SGLang ---


def test_data_parallel_attention_with_dspark_has_its_head() -> None:
    """sglang#36844: the published GB200 decode cell with the standard draft does not start."""
    pair = published("sglang", "gb200", Serving.DISAGGREGATED, Goal.HIGH_THROUGHPUT, Feature.DSPARK)
    decode = command(pair, 1)
    assert decode.flag("enable-dp-lm-head") is True and decode.flag("attn-dp-size") == 2
    assert decode.flag("moe-a2a-backend") is None
    older = command(replace(pair, version="0.5.21"), 1)
    assert older.flag("enable-dp-attention") is True and older.flag("dp-size") == 2
    assert older.flag("attn-dp-size") is None


def test_context_parallel_decoding_leaves_hopper_alone() -> None:
    assert "sglang-dcp-hopper" in rule_against(sglang("h200", Layout(tp=16, dcp=8)))
    blackwell = command(sglang("b300", Layout(tp=8, dcp=8), Feature.DSPARK))
    assert blackwell.flag("decode-attention-backend") is None and blackwell.flag("enable-symm-mem") is None
    assert blackwell.variables()["SGLANG_RAGGED_VERIFY_MODE"] == "static"


@pytest.mark.parametrize("version", ["0.5.19"])
def test_amd_uses_the_graph_flag_of_today(version: str) -> None:
    made = command(sglang("mi355x", Layout(tp=8, dcp=8), version=version))
    assert made.flag("cuda-graph-max-bs-decode") == 256 and made.flag("cuda-graph-max-bs") is None
    assert made.flag("decode-attention-backend") == "aiter"


def test_hicache_keeps_context_parallel_decoding() -> None:
    made = command(sglang("b300", Layout(tp=8, dcp=8), Feature.HICACHE))
    assert made.flag("enable-hierarchical-cache") is True and made.flag("dcp-size") == 8
    assert refused(sglang("b300", Layout(tp=8, dcp=8), Feature.HICACHE, Feature.DFLASH))


def test_nvfp4_has_the_one_runner_it_works_with() -> None:
    for goal in Goal:
        choice = replace(published("sglang", "b200", Serving.UNIFIED, goal), scheme=Scheme.NVFP4_MIXED)
        assert command(choice).flag("moe-runner-backend") == "flashinfer_trtllm"
    assert "sglang-nvfp4-hardware" in rule_against(
        replace(published("sglang", "h200", Serving.UNIFIED, Goal.BALANCED), scheme=Scheme.NVFP4_MIXED)
    )


def test_decode_stages_match_prefill_or_are_one() -> None:
    pair = sglang("b200", Layout(tp=8, pp=2), serving=Serving.DISAGGREGATED, prefill=Layout(tp=1, pp=16))
    assert "sglang-pd-stages" in rule_against(pair)


def test_lazy_state_buffers_are_for_unified_serving() -> None:
    unified = command(published("sglang", "h200", Serving.UNIFIED, Goal.HIGH_THROUGHPUT))
    assert unified.flag("mamba-radix-cache-strategy") == "extra_buffer_lazy"
    for hardware in ("b200", "b300", "gb200", "gb300"):
        for role in (0, 1):
            made = command(published("sglang", hardware, Serving.DISAGGREGATED, Goal.HIGH_THROUGHPUT), role)
            assert made.flag("mamba-radix-cache-strategy") is None


# --- 4.3: vLLM ---


def test_context_parallel_size_divides() -> None:
    with pytest.raises(Exception, match="does not divide"):
        Layout(tp=8, dcp=3)


def test_nixl_sides_are_whole_or_fully_sharded() -> None:
    half = vllm("b300", Layout(tp=8, dcp=4), serving=Serving.DISAGGREGATED, prefill=Layout(tp=8, ep=True))
    assert "vllm-pd-dcp-sides" in rule_against(half)
    whole = replace(half, layout=Layout(tp=8, dcp=8))
    assert rule_against(whole) == {"vllm-pd-dcp-differs"}
    assert not refused(replace(whole, prefill=Layout(tp=8, ep=True, dcp=8)))
    assert "vllm-pd-dcp-hybrid" in rule_against(replace(whole, version="0.29.0"))


@pytest.mark.parametrize(("hardware", "size"), [("b200", 8), ("h200", 8)])
def test_dspark_with_stages_is_refused(hardware: str, size: int) -> None:
    assert "vllm-dspark-stages" in rule_against(vllm(hardware, Layout(tp=size, pp=2), Feature.DSPARK))


def test_dspark_with_context_parallel_decoding_needs_a_release_that_takes_it() -> None:
    choice = vllm("b300", Layout(tp=8, dcp=8), Feature.DSPARK)
    assert not refused(choice)
    assert "vllm-dcp-speculative" in rule_against(replace(choice, version="0.28.0"))


def test_dspark_has_the_runner_it_needs() -> None:
    assert command(vllm("mi355x", Layout(tp=8), Feature.DSPARK)).variables()["VLLM_USE_V2_MODEL_RUNNER"] == "1"


def test_disaggregation_never_moves_registered_memory() -> None:
    for hardware in ("b200", "b300", "gb200", "gb300"):
        for role in (0, 1):
            made = command(published("vllm", hardware, Serving.DISAGGREGATED, Goal.BALANCED), role)
            assert "PYTORCH_CUDA_ALLOC_CONF" not in made.variables()
            assert made.variables()["VLLM_SSM_CONV_STATE_LAYOUT"] == "DS"


def test_batched_tokens_are_never_below_sequences() -> None:
    choice = vllm("b300", Layout(tp=8), workload=Workload(batched_tokens=16, concurrency=64))
    with pytest.raises(NotKnownError, match="max-num-batched-tokens"):
        build(choice)


def test_mega_moe_is_for_racks() -> None:
    spread = Layout(tp=1, dp=16, ep=True)
    assert command(vllm("gb300", spread)).flag("moe-backend") == "deep_gemm_mega_moe"
    assert command(vllm("b300", spread)).flag("moe-backend") is None


# --- how commands are put together ---


def test_json_is_merged_not_replaced() -> None:
    """Upstream a later --attention-config replaces the whole earlier object."""
    made = command(vllm("b300", Layout(tp=8, dcp=8)))
    assert made.flag("attention-config") == {
        "mla_prefill_backend": "TRTLLM_RAGGED",
        "use_prefill_query_quantization": True,
    }
    config = next(flag for flag in made.flags if flag.name == "attention-config")
    assert config.reason.rule == "vllm-dcp" and [reason.rule for reason in config.also] == ["vllm-attention"]


def every_role() -> list[Deployment]:
    pairs = [("vllm", name) for name in ("b200", "b300", "gb200", "gb300", "h200")]
    pairs += [("sglang", name) for name in ("b200", "b300", "gb200", "gb300", "h200", "h100")]
    return [build(published(engine, name, Serving.UNIFIED, goal)) for engine, name in pairs for goal in Goal]


def test_no_flag_is_written_twice() -> None:
    """Upstream: overlay flags are appended without removing what they repeat."""
    for deployment in every_role():
        for role in deployment.roles:
            names = [flag.name for flag in role.command.flags]
            assert len(names) == len(set(names))


def test_a_flag_and_its_value_are_two_words() -> None:
    """vllm-project/recipes#707: "--gpu-memory-utilization 0.97" as one word."""
    for deployment in every_role():
        for role in deployment.roles:
            assert not any(word.startswith("--") and " " in word for word in role.command.words())


def test_ranks_have_commands_of_their_own() -> None:
    script = docker(build(vllm("b200", Layout(tp=16))))
    ranks = []
    for rank in (0, 1):
        ran = subprocess.run(
            ["sh", "-c", 'docker() { printf "%s\\n" "$@"; }\n' + script, "sh", "server", str(rank)],
            env={"HOME": "/h", "K3_HEAD": "10.0.0.1", "K3_ADDRESS": f"10.0.0.{rank + 1}", "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=True,
        )
        ranks.append(ran.stdout.splitlines())
    for rank, words in enumerate(ranks):
        assert words[words.index("--node-rank") + 1] == str(rank)
        assert words[words.index("--master-addr") + 1] == "10.0.0.1"
        assert f"VLLM_HOST_IP=10.0.0.{rank + 1}" in words
        assert ("--headless" in words) == (rank == 1)


def test_no_token_is_ever_written() -> None:
    for deployment in every_role():
        words = shlex.split(docker(deployment), comments=True)
        assert not any(word.startswith("HF_TOKEN=") for word in words)


# --- what vLLM's own validation of our commands showed ---


def test_rank_0_of_one_door_names_no_start_rank() -> None:
    """A start rank there makes vLLM infer hybrid balancing: the door then reaches its own replicas alone."""
    made = build(vllm("b300", Layout(tp=1, dp=16, ep=True))).roles[0]
    assert made.doors == 1 and "--data-parallel-start-rank" not in made.command.words()
    words = engine_words(made, rank=1)
    assert words[words.index("--data-parallel-start-rank") + 1] == "8" and "--headless" in words


def test_every_decode_door_names_its_start_rank() -> None:
    made = build(published("vllm", "b300", Serving.DISAGGREGATED, Goal.BALANCED)).roles[1]
    starts = [engine_words(made, rank) for rank in (0, 1)]
    assert [words[words.index("--data-parallel-start-rank") + 1] for words in starts] == ["0", "8"]


def test_no_prefix_caching_is_said() -> None:
    """vLLM keeps K3's prefixes unless it is told not to."""
    made = command(vllm("b300", Layout(tp=8), workload=Workload(prefix_caching=False)))
    assert "--no-enable-prefix-caching" in made.words()


@pytest.mark.parametrize(
    ("requests", "plain", "drafted"), [(1, 1, 16), (2, 2, 24), (4, 4, 40), (5, 8, 48), (32, 32, 288)]
)
def test_graphs_cover_every_request(requests: int, plain: int, drafted: int) -> None:
    """vLLM cuts a size that it does not capture down to the next smaller one; full batches would run bare."""
    work = Workload(concurrency=requests)
    layout = Layout(tp=16)
    assert command(vllm("b200", layout, workload=work)).flag("max-cudagraph-capture-size") == plain
    made = command(vllm("b200", layout, Feature.DSPARK, workload=work))
    assert made.flag("max-cudagraph-capture-size") == drafted


@given(st.integers(1, 2_000))
def test_a_captured_size_is_one_of_vllms_and_enough(tokens: int) -> None:
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, 2_049, 16)]
    assert captured(tokens) == next(size for size in sizes if size >= tokens)


# --- what deployers reported ---


def test_prefixes_are_found_inside_large_blocks() -> None:
    """vllm-project/recipes#861: hits at multiples of 1536 tokens only."""
    assert command(vllm("b300", Layout(tp=8))).flag("prefix-match-unit") == 128
    off = vllm("b300", Layout(tp=8), workload=Workload(prefix_caching=False))
    assert command(off).flag("prefix-match-unit") is None


def test_connections_of_clients_that_think_stay_open() -> None:
    assert command(vllm("b300", Layout(tp=8))).variables()["VLLM_HTTP_TIMEOUT_KEEP_ALIVE"] == "900"


def test_several_nodes_have_time_for_the_first_step() -> None:
    assert command(vllm("b200", Layout(tp=16))).variables()["VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"] == "1800"
    assert "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS" not in command(vllm("b300", Layout(tp=8))).variables()


@pytest.mark.parametrize("role", [0, 1])
def test_roles_name_an_address_that_the_other_reaches(role: int) -> None:
    made = command(published("sglang", "b300", Serving.DISAGGREGATED, Goal.BALANCED), role)
    assert made.variables()["SGLANG_HOST_IP"] == "{self}" and made.flag("host") == "{self}"


def test_amd_keeps_the_published_cache() -> None:
    """vLLM's ROCm command stores BF16, SGLang's FP8."""
    assert choose(Wanted(gpu("mi355x"))).workload.kv_dtype is KvDtype.BF16
    assert choose(Wanted(gpu("mi355x"), "sglang")).workload.kv_dtype is KvDtype.FP8
