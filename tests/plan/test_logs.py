"""Start-up logs: every quantity found or named absent, predicted beside reported, reserves kept, bad files."""

import json
from pathlib import Path

import pytest

from k3stack.checkpoint.tiny import tiny_config
from k3stack.errors import InputError
from k3stack.hardware.table import gpu
from k3stack.plan import Layout, Workload, make_plan, site
from k3stack.plan.compare import compare, run_of
from k3stack.plan.logs import parse_log, read_log
from k3stack.plan.reserves import Reserves
from k3stack.spec.model import ModelSpec
from k3stack.spec.schemes import Scheme
from k3stack.values import GIB, Origin
from tests.paths import ROOT, SHARED
from tests.plan.common import K3

LOGS = SHARED / "data" / "logs"
needs_logs = pytest.mark.skipif(not LOGS.is_dir(), reason="the public start-up logs are not beside this checkout")

# Written for this test after the phrases of vLLM 0.33.0; the numbers are those of TP8 on a 268 GB GPU.
VLLM_LOG = """\
(APIServer pid=1) INFO [api_utils.py:273] non-default args: {'model': 'moonshotai/Kimi-K3', 'max_num_seqs': 32, \
'gpu_memory_utilization': 0.9, 'max_num_batched_tokens': 8192, 'kv_cache_dtype': 'fp8'}
(EngineCore pid=2) INFO [core.py:116] Initializing a V1 LLM engine (v0.33.0) with config: model='moonshotai/Kimi-K3', \
max_seq_len=196608, tensor_parallel_size=8, pipeline_parallel_size=1, data_parallel_size=1, \
decode_context_parallel_size=1, kv_cache_dtype=fp8, enable_prefix_caching=True
(Worker_TP0 pid=3) INFO Model loading took 191.82 GiB and 300.1 seconds(Worker_TP1 pid=4) INFO Model loading took \
191.82 GiB and 301.2 seconds
(Worker_TP0 pid=3) INFO Setting attention block size to 1536 tokens to ensure that attention page size is >= mamba
(Worker_TP0 pid=3) INFO [gpu_worker.py:547] Available KV cache memory: 26.50 GiB
(EngineCore pid=2) INFO GPU KV cache size: 1,923,027 tokens, Maximum concurrency for 196,608 tokens per request: 9.78x
"""

# Written for this test after the phrases of SGLang 0.5.23; TP8 on 268 GB, ratio 0.9.
SGLANG_LOG = """\
[2026-11-01] server_args=ServerArgs(model_path='moonshotai/Kimi-K3', tp_size=8, pp_size=1, dp_size=1, ep_size=1, \
mem_fraction_static=0.85, chunked_prefill_size=8192, kv_cache_dtype='fp8_e4m3', mamba_full_memory_ratio=0.9, \
mamba_radix_cache_strategy='extra_buffer', disable_radix_cache=False) sglang
[TP0] Load weight begin. avail mem=248.00 GB
[TP0] Load weight end. elapsed=200.00 s, type=KimiK3ForConditionalGeneration, avail mem=55.00 GB, mem usage=191.81 GB.
[TP0] Mamba Cache is allocated. max_mamba_cache_size: {slots}, conv_state size: 0.29GB, ssm_state size: {ssm:.2f}GB
[TP0] KV Cache is allocated. dtype: torch.float8_e4m3fn, #tokens: {tokens}, KV size: {kv:.2f} GB
[TP0] Memory pool end. avail mem=36.00 GB
[TP0] Capture cuda graph end. Time elapsed: 30 s. mem usage=1.50 GB. avail mem=33.00 GB.
[TP0] max_total_num_tokens={tokens}, chunked_prefill_size=8192, max_prefill_tokens=16384, \
max_running_requests={running}, context_len=1048576, available_gpu_mem=33.00 GB
"""


def sglang_log() -> str:
    pool = int((55.0 - 248.0 * (1 - 0.85)) * GIB)
    slots = int(pool * 0.9 / 1.9 // 56_171_520) - 1
    tokens = (pool - (slots + 1) * 56_171_520) // 13_824 // 64 * 64
    ssm, kv = (slots + 1) * 69 * 786_432 / GIB, tokens * 13_824 / GIB
    return SGLANG_LOG.format(slots=slots, tokens=tokens, running=slots // 5, ssm=ssm, kv=kv)


def test_a_vllm_log_is_predicted() -> None:
    seen = parse_log(VLLM_LOG, "vllm.log")
    assert (seen.engine, seen.version) == ("vllm", "0.33.0")
    figure = seen.figure("model load memory")
    assert figure is not None and figure.values == (191.82, 191.82)  # two workers run together on one line
    found = {one.quantity: one for one in compare(seen, K3)}
    assert found["model load memory"].agrees
    assert found["block size"].agrees
    tokens = found["GPU KV cache size"]
    assert tokens.low is not None and tokens.high is not None and tokens.low <= 1_923_027 <= tokens.high
    assert tokens.agrees and found["maximum concurrency"].agrees
    assert "CUDA graphs" in seen.absent and "padding layers" in seen.absent


def test_a_wrong_number_is_called_so_and_explained() -> None:
    seen = parse_log(VLLM_LOG.replace("1,923,027", "1,623,028").replace("191.82 GiB", "120.00 GiB"), "vllm.log")
    found = {one.quantity: one for one in compare(seen, K3)}
    assert found["GPU KV cache size"].agrees is False
    assert found["model load memory"].agrees is False
    assert "% off" in found["model load memory"].why


def test_a_development_build_is_counted_like_the_release_it_agrees_with() -> None:
    """Images built from a branch print 0.1.devN whatever their age; this one has three states per group."""
    seen = parse_log(VLLM_LOG.replace("v0.33.0", "v0.1.dev99999+gabc"), "vllm.log")
    found = {one.quantity: one for one in compare(seen, K3)}
    assert found["GPU KV cache size"].agrees
    assert "counted like vLLM 0.33.0" in found["GPU KV cache size"].why


def test_an_sglang_log_is_predicted() -> None:
    seen = parse_log(sglang_log(), "sglang.log")
    assert seen.engine == "sglang"
    run = run_of(seen, K3)
    assert (run.layout, run.workload.state_slots, run.workload.state_ratio) == (Layout(tp=8), 5, 0.9)
    found = {one.quantity: one for one in compare(seen, K3)}
    for name in (
        "model load memory",
        "state slots",
        "KV tokens",
        "running requests",
        "recurrent state",
        "cache memory",
    ):
        assert found[name].agrees, found[name]
    assert "kept states for drafts" in seen.absent


@needs_logs
@pytest.mark.parametrize("name", ["vllm-tp16", "vllm-pp2-rank1", "vllm-dp2", "vllm-pp2-offload-crash"])
def test_public_logs(name: str) -> None:
    seen = read_log(LOGS / f"{name}.log")
    from k3stack.plan.logs import _VLLM

    assert {figure.name for figure in seen.figures} | set(seen.absent) == set(_VLLM)
    assert seen.setting("tp") and seen.number("context") and seen.number("tokens")
    for one in compare(seen, K3):
        if one.origin is not Origin.ESTIMATED:
            assert one.agrees is not False, one


@needs_logs
def test_a_headless_node_tells_its_layout_by_its_workers() -> None:
    seen = read_log(LOGS / "vllm-pp2-rank1.log")
    run = run_of(seen, K3)
    assert run.layout == Layout(tp=8, pp=2)
    assert run.stage.index == 1
    assert "GPU KV cache size" in seen.absent


@needs_logs
def test_quoted_refusals_are_found_without_any_setting() -> None:
    seen = read_log(LOGS / "vllm-refusals-quoted.txt")
    assert len(seen.errors) == 4
    assert {figure.name: figure.values for figure in seen.figures} == {
        "needed cache memory": (0.18,),
        "longest context offered": (3072.0,),
        "requests offered": (7.0,),
    }
    with pytest.raises(InputError, match="tensor-parallel"):
        compare(seen, K3)


@needs_logs
def test_reserves_of_a_log_replace_estimates(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    seen = read_log(LOGS / "vllm-tp16.log")
    run = run_of(seen, K3)
    assert site.gpu_of(seen) == "h200"
    site.save("vllm", "h200", site.reserves_of(seen, run))
    known = site.saved("vllm", "h200")
    assert known is not None and site.saved("sglang", "h200") is None
    assert known.other_bytes == pytest.approx(1.99 * GIB, rel=0.001)
    workload = Workload(8_192, 5, prefix_caching=False, batched_tokens=4_096, utilization=0.97)
    plan = make_plan(K3, "m", gpu("h200"), Layout(tp=16), workload, version="0.27.1", reserves=known)
    measured = {line.what for line in plan.ledger.lines if line.origin is Origin.MEASURED}
    assert {"activations", "NCCL, CUDA context, workspaces"} <= measured
    # Rank 0 of that run had 1.68 GiB for its cache.
    assert plan.capacity.cache_bytes == pytest.approx(1.68 * GIB, rel=0.05)


def test_what_a_tiny_kimi_k3_reports_on_an_h200_is_as_predicted() -> None:
    """vLLM 0.33.0's own log of a tiny checkpoint with a BF16 cache: everything that is computed agrees."""
    seen = read_log(ROOT / "tests/launch/logs/good-vllm-h200.log")
    spec = ModelSpec.from_config(tiny_config(Scheme.MXFP4))
    compared = {one.quantity: one for one in compare(seen, spec) if one.reported is not None}
    computed = {name: one for name, one in compared.items() if one.origin is Origin.COMPUTED}
    assert {"block size", "state padding", "padding layers", "GPU KV cache size", "maximum concurrency"} <= set(
        computed
    )
    assert all(one.agrees for one in computed.values()), computed
    assert compared["GPU KV cache size"].reported == 33_300_772
    assert site.gpu_of(seen) == "h200"


def test_what_two_h200_report_is_as_predicted() -> None:
    """The same with NVFP4 experts, FP8 attention and TP 2, the cache's bytes set by hand: to the token."""
    seen = read_log(ROOT / "tests/launch/logs/good-vllm-h200-tp2.log")
    compared = compare(seen, ModelSpec.from_config(tiny_config(Scheme.NVFP4_MIXED)))
    computed = {one.quantity: one for one in compared if one.reported is not None and one.origin is Origin.COMPUTED}
    assert {"model load memory", "block size", "padding layers", "maximum concurrency"} <= set(computed)
    assert all(one.agrees for one in computed.values()), computed
    assert computed["GPU KV cache size"].reported == computed["GPU KV cache size"].predicted == 157_696


def test_saving_keeps_other_entries_and_survives_no_damage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    one, two = Reserves(1, 2, 3, 4, "one"), Reserves(5, 6, 7, 8, "two")
    site.save("vllm", "b300", one)
    path = site.save("sglang", "b300", two)
    assert (site.saved("vllm", "b300"), site.saved("sglang", "b300")) == (one, two)
    path.write_text("{")
    with pytest.raises(InputError, match="cannot be read"):
        site.save("vllm", "b300", two)
    assert path.read_text() == "{"  # left as it was
    path.write_text(json.dumps({"vllm/b300": {"other_bytes": "x"}}))
    with pytest.raises(InputError, match="Reserves"):
        site.saved("vllm", "b300")


def test_an_incomplete_log_saves_nothing() -> None:
    seen = parse_log(VLLM_LOG, "vllm.log")
    with pytest.raises(InputError, match="consumed before cache"):
        site.reserves_of(seen, run_of(seen, K3))


@pytest.mark.parametrize("text", ["", "hello\n", "root:x:0:0\n" * 1000])
def test_what_is_no_log_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="no start-up log"):
        parse_log(text, "x.log")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_log(tmp_path / "none.log")
    with pytest.raises(InputError, match="cannot be read"):
        read_log(tmp_path)


def test_bytes_that_are_no_text_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(b"vLLM \xff\xfe Model loading took 1.00 GiB and 2 seconds\n")
    assert read_log(path).figure("model load memory") is not None
