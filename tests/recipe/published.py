"""Commands for Kimi-K3 that vendors and benchmarkers published in 2026, as facts, and how to ask k3stack for the same.

Written from the sources' data (flags and variables), not copied text. "recipe" is vllm-project/recipes @8959cf64 of
2026-08-21 as its own rules put it together; "panel" SGLang's deploy panel of 2026-09-16 or later, with its standard
draft; "card" nvidia/Kimi-K3-NVFP4 of 2026-08-14.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import Any

from k3stack.engines.reading import read
from k3stack.engines.releases import release
from k3stack.hardware.table import gpu
from k3stack.recipe.asking import engine_variables, engine_words
from k3stack.recipe.build import build
from k3stack.recipe.choice import CARD, Feature, Goal, Serving
from k3stack.recipe.fit import Fit
from k3stack.recipe.wanted import Wanted, fitting
from k3stack.spec.schemes import Scheme

__all__ = ["PUBLISHED", "Difference", "Published", "differences"]


@dataclass(frozen=True)
class Published:
    """One published command.

    Attributes:
        wanted: what to ask for, beside engine and GPU.
        role: which of the deployment's commands it is.
    """

    name: str
    source: str
    engine: str
    hardware: str
    flags: str
    variables: dict[str, str] = field(default_factory=dict)
    wanted: dict[str, Any] = field(default_factory=dict)
    role: str = "server"

    def ask(self) -> Fit:
        """Our answer to the same selection."""
        return fitting(Wanted(gpu(self.hardware), self.engine, **self.wanted))


@dataclass(frozen=True)
class Difference:
    """A setting that the published command and ours do not share; None where it is left to the engine."""

    where: str
    setting: str
    theirs: Any
    ours: Any


def differences(published: Published) -> list[Difference]:
    """Flag by flag and variable by variable, in canonical names."""
    found = published.ask()
    role = next(role for role in build(found.choice).roles if role.name == published.role)
    taken = release(published.engine, found.choice.snapshot)
    given = read(taken, ["model", *shlex.split(_as_rank_1(published.flags))])
    assert not [problem for problem in given.problems if problem.stops], given.problems
    theirs, ours = given.values(), read(taken, engine_words(role)).values()
    settings = [(name, theirs.get(name), ours.get(name)) for name in sorted({*theirs, *ours})]
    variables = engine_variables(role)
    names = sorted({*published.variables, *variables})
    settings += [(name, published.variables.get(name), variables.get(name)) for name in names]
    return [Difference(published.name, *setting) for setting in settings if not _same(*setting[1:])]


def _same(one: Any, other: Any) -> bool:
    """Whether two values say the same; a flag that is off is as one that is not there."""
    return bool(_plain(one) == _plain(other))


def _plain(value: Any) -> Any:
    if value is False:
        return None
    try:
        return float(value) if not isinstance(value, bool) else value
    except (TypeError, ValueError):
        return value


def _as_rank_1(text: str) -> str:
    for place, value in (("{rank}", "1"), ("{head}", "10.0.0.1"), ("{dp_start}", "8")):
        text = text.replace(place, value)
    return text


_VLLM = "--trust-remote-code --enable-auto-tool-choice --tool-call-parser kimi_k3 --reasoning-parser kimi_k3"
_BLACKWELL = f"""{_VLLM} --gpu-memory-utilization 0.95 --load-format fastsafetensors --no-enable-flashinfer-autotune
--max-model-len 1048576 --kv-cache-dtype fp8 --enable-prefix-caching
--attention-config '{{"use_prefill_query_quantization":true}}'"""
_BLACKWELL_ENV = {
    "VLLM_ENGINE_READY_TIMEOUT_S": "3600",
    "VLLM_ALLREDUCE_USE_FLASHINFER": "1",
    "VLLM_USE_V2_MODEL_RUNNER": "1",
    "VLLM_USE_RUST_FRONTEND": "1",
}
_HOPPER = f"""{_VLLM} --gpu-memory-utilization 0.97 --load-format fastsafetensors --max-num-seqs 5 --max-model-len 32768
--max-num-batched-tokens 4096 --moe-backend marlin --disable-custom-all-reduce --no-enable-flashinfer-autotune
--attention-backend FLASHMLA"""
_HOPPER_ENV = {
    "VLLM_ENGINE_READY_TIMEOUT_S": "3600",
    "VLLM_USE_V2_MODEL_RUNNER": "1",
    "VLLM_USE_RUST_FRONTEND": "1",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
}
_NODES = "--nnodes 2 --node-rank {rank} --master-addr {head} --headless"
_DSPARK = """--speculative-config '{"model":"RedHatAI/Kimi-K3-speculator.dspark","num_speculative_tokens":8,
"method":"dspark","draft_sample_method":"probabilistic","rejection_sample_method":"block"}'"""
_SGLANG = "--trust-remote-code --reasoning-parser kimi_k3 --tool-call-parser kimi_k3 --host 0.0.0.0"
_PANEL_DRAFT = """--speculative-algorithm DSPARK --speculative-draft-model-path RadixArk/Kimi-K3-DSpark
--speculative-dspark-block-size 7"""
_PANEL = f"{_SGLANG} --port 30000 {_PANEL_DRAFT} --enable-linear-replayssm-spec"
_TRAY_ENV = {"SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK": "0"}

PUBLISHED = [
    Published(
        "NVFP4, 8 x B300",
        "card",
        "vllm",
        "b300",
        f"""{_VLLM} --served-model-name kimi-k3-nvfp4 --host 0.0.0.0 --port 8000 --quantization modelopt_mixed
        --load-format fastsafetensors --tensor-parallel-size 8 --moe-backend flashinfer_trtllm
        --gpu-memory-utilization 0.90 --max-model-len 196608 --max-num-batched-tokens 8192 --max-num-seqs 32
        --kv-cache-dtype fp8 --attention-backend FLASHINFER_MLA --enable-prefix-caching --enable-chunked-prefill
        --attention-config '{{"mla_prefill_backend":"TRTLLM_RAGGED","use_prefill_query_quantization":true}}'
        --max-cudagraph-capture-size 32""",
        {
            "KIMI_K3_FIX_MM_PROMPT_UPDATES": "1",
            "KIMI_K3_NVFP4_SITU_G1_SCALE": "1",
            "KIMI_K3_FP8_PB": "1",
            "VLLM_USE_DEEP_GEMM": "0",
            "VLLM_USE_V2_MODEL_RUNNER": "1",
            "VLLM_USE_RUST_FRONTEND": "0",
        },
        {"scheme": Scheme.NVFP4_MIXED, "version": CARD},
    ),
    Published(
        "TP8, B300", "recipe, single_node_tp", "vllm", "b300", f"{_BLACKWELL} --tensor-parallel-size 8", _BLACKWELL_ENV
    ),
    Published(
        "TP16, B200",
        "recipe, multi_node_tp",
        "vllm",
        "b200",
        f"{_BLACKWELL} --tensor-parallel-size 16 {_NODES}",
        _BLACKWELL_ENV,
    ),
    Published(
        "TP16, H200",
        "recipe, multi_node_tp",
        "vllm",
        "h200",
        f"{_HOPPER} --tensor-parallel-size 16 {_NODES}",
        _HOPPER_ENV,
    ),
    Published(
        "TEP16, H200",
        "recipe, multi_node_tep",
        "vllm",
        "h200",
        f"{_HOPPER} --tensor-parallel-size 16 --enable-expert-parallel {_NODES}",
        _HOPPER_ENV,
        {"goal": Goal.HIGH_THROUGHPUT},
    ),
    Published(
        "DEP16, GB300",
        "recipe, multi_node_dep",
        "vllm",
        "gb300",
        f"""{_BLACKWELL} --tensor-parallel-size 1 --data-parallel-size 16 --enable-expert-parallel
        --data-parallel-size-local 4 --data-parallel-address {{head}} --data-parallel-start-rank {{dp_start}}
        --data-parallel-hybrid-lb --moe-backend deep_gemm_mega_moe""",
        _BLACKWELL_ENV,
        {"goal": Goal.HIGH_THROUGHPUT},
    ),
    Published(
        "TP8 x PP2, B200",
        "recipe, multi_node_tp_pp",
        "vllm",
        "b200",
        f"""{_BLACKWELL.replace("0.95", "0.90")} --tensor-parallel-size 8 --pipeline-parallel-size 2
        --max-num-batched-tokens 8192 {_NODES}""",
        _BLACKWELL_ENV,
        {"tp": 8, "pp": 2},
    ),
    Published(
        "DCP8, B300",
        "recipe, decode_context_parallelism",
        "vllm",
        "b300",
        f"""{_BLACKWELL.replace('"use_prefill_query_quantization":true', '"mla_prefill_backend":"TRTLLM_RAGGED"')}
        --tensor-parallel-size 8 --decode-context-parallel-size 8 --dcp-comm-backend a2a
        --attention-backend TOKENSPEED_MLA""",
        _BLACKWELL_ENV,
        {"tp": 8, "dcp": 8},
    ),
    Published(
        "DSpark, B300",
        "recipe, spec_decoding",
        "vllm",
        "b300",
        f"{_BLACKWELL} --tensor-parallel-size 8 {_DSPARK}",
        _BLACKWELL_ENV,
        {"features": (Feature.DSPARK,)},
    ),
    Published(
        "text only, B300",
        "recipe, text_only",
        "vllm",
        "b300",
        f"{_BLACKWELL} --tensor-parallel-size 8 --language-model-only",
        _BLACKWELL_ENV,
        {"features": (Feature.TEXT_ONLY,)},
    ),
    Published(
        "TP8, MI355X",
        "recipe, hardware_overrides amd",
        "vllm",
        "mi355x",
        f"""{_VLLM} --gpu-memory-utilization 0.95 --tensor-parallel-size 8 --load-format auto --mm-encoder-tp-mode data
        --max-num-seqs 128 --max-num-batched-tokens 4096
        --compilation-config '{{"cudagraph_mode":"FULL_DECODE_ONLY"}}'""",
        {
            "VLLM_ROCM_USE_AITER": "1",
            "SAFETENSORS_FAST_GPU": "1",
            "AITER_BF16_FP8_MOE_BOUND": "0",
            "VLLM_USE_BREAKABLE_CUDAGRAPH": "0",
            "VLLM_ENGINE_READY_TIMEOUT_S": "3600",
        },
    ),
    Published(
        "prefill, B300",
        "recipe, pd_cluster",
        "vllm",
        "b300",
        f"""{_VLLM} --gpu-memory-utilization 0.95 --tensor-parallel-size 8 --enable-expert-parallel --port 8001
        --max-num-batched-tokens 16384 --no-disable-hybrid-kv-cache-manager --no-enable-flashinfer-autotune
        --kv-transfer-config '{{"kv_connector":"NixlConnector","kv_role":"kv_producer"}}'""",
        {
            "VLLM_SSM_CONV_STATE_LAYOUT": "DS",
            "NCCL_CUMEM_ENABLE": "1",
            "NCCL_NVLS_ENABLE": "0",
            "UCX_TLS": "rc,cuda_copy",
            "VLLM_NIXL_SIDE_CHANNEL_PORT": "5557",
        },
        {"serving": Serving.DISAGGREGATED},
        "prefill",
    ),
    Published(
        "decode, B300",
        "recipe, pd_cluster",
        "vllm",
        "b300",
        f"""{_VLLM} --gpu-memory-utilization 0.95 --tensor-parallel-size 1 --data-parallel-size 16 --port 8002
        --enable-expert-parallel --data-parallel-size-local 8 --data-parallel-address {{head}}
        --data-parallel-start-rank {{dp_start}} --data-parallel-hybrid-lb --no-enable-prefix-caching
        --max-num-seqs 8 --max-num-batched-tokens 32 --compilation-config '{{"cudagraph_mode":"FULL_DECODE_ONLY"}}'
        --kv-transfer-config '{{"kv_connector":"NixlConnector","kv_role":"kv_consumer"}}'""",
        {
            "VLLM_SSM_CONV_STATE_LAYOUT": "DS",
            "NCCL_CUMEM_ENABLE": "1",
            "NCCL_NVLS_ENABLE": "0",
            "UCX_TLS": "rc,cuda_copy",
            "VLLM_NIXL_SIDE_CHANNEL_PORT": "5558",
        },
        {"serving": Serving.DISAGGREGATED},
        "decode",
    ),
    Published(
        "DEP16, GB200",
        "NVIDIA/srt-slurm-recipes, agg-gb200-dep16-throughput-agentic",
        "vllm",
        "gb200",
        """--trust-remote-code --reasoning-parser kimi_k3 --tensor-parallel-size 4 --data-parallel-size 4
        --enable-expert-parallel --load-format fastsafetensors --kv-cache-dtype fp8
        --attention-backend FLASHINFER_MLA --moe-backend deep_gemm_mega_moe --enable-prefix-caching
        --attention-config '{"mla_prefill_backend":"TRTLLM_RAGGED","use_prefill_query_quantization":true}'
        --all2all-backend flashinfer_nvlink_one_sided --gpu-memory-utilization 0.92 --max-num-seqs 128
        --max-num-batched-tokens 16384 --block-size 64 --language-model-only --disable-custom-all-reduce
        --no-enable-flashinfer-autotune --kda-prefill-backend flashkda""",
        {
            "VLLM_ENGINE_READY_TIMEOUT_S": "7200",
            "VLLM_ALLREDUCE_USE_FLASHINFER": "1",
            "NCCL_CUMEM_ENABLE": "1",
            "NCCL_MNNVL_ENABLE": "1",
        },
        {"goal": Goal.HIGH_THROUGHPUT, "features": (Feature.TEXT_ONLY,)},
    ),
    Published(
        "NVFP4, 8 x B300, SGLang",
        "card",
        "sglang",
        "b300",
        f"""{_PANEL} --tp-size 8 --dcp-size 8 --mem-fraction-static 0.85 --moe-runner-backend flashinfer_trtllm""",
        {},
        {"scheme": Scheme.NVFP4_MIXED, "features": (Feature.DSPARK,)},
    ),
    Published(
        "low latency, B300",
        "panel",
        "sglang",
        "b300",
        f"{_PANEL} --tp-size 8 --mem-fraction-static 0.85",
        {},
        {"goal": Goal.LOW_LATENCY, "features": (Feature.DSPARK,)},
    ),
    Published(
        "balanced, B300",
        "panel",
        "sglang",
        "b300",
        f"{_PANEL} --tp-size 8 --dcp-size 8 --mem-fraction-static 0.85",
        {},
        {"features": (Feature.DSPARK,)},
    ),
    Published(
        "balanced, B200",
        "panel",
        "sglang",
        "b200",
        f"""{_PANEL} --tp-size 16 --dcp-size 16 --ep-size 16 --moe-runner-backend flashinfer_mxfp4
        --decode-attention-backend cutedsl_mla --chunked-prefill-size 8192 --disable-flashinfer-autotune
        --watchdog-timeout 3600 --model-loader-extra-config '{{"enable_multithread_load":true}}'
        --nnodes 2 --node-rank {{rank}} --dist-init-addr {{head}}:20000""",
        {},
        {"features": (Feature.DSPARK,)},
    ),
    Published(
        "balanced, GB200",
        "panel",
        "sglang",
        "gb200",
        f"{_PANEL} --tp-size 16 --dcp-size 16 --nnodes 4 --node-rank {{rank}} --dist-init-addr {{head}}:20000",
        _TRAY_ENV,
        {"features": (Feature.DSPARK,)},
    ),
    Published(
        "balanced, H200",
        "panel",
        "sglang",
        "h200",
        f"""{_PANEL} --tp-size 16 --ep-size 16 --moe-runner-backend marlin --decode-attention-backend flashmla
        --enable-symm-mem --mem-fraction-static 0.85
        --nnodes 2 --node-rank {{rank}} --dist-init-addr {{head}}:20000""",
        {"NCCL_MNNVL_ENABLE": "1", "NCCL_CUMEM_ENABLE": "1", **_TRAY_ENV},
        {"features": (Feature.DSPARK,)},
    ),
    Published(
        "high throughput, H200",
        "panel",
        "sglang",
        "h200",
        f"""{_PANEL} --tp-size 32 --ep-size 32 --moe-runner-backend marlin --decode-attention-backend flashmla
        --mem-fraction-static 0.90 --dist-timeout 3600 --mamba-radix-cache-strategy extra_buffer_lazy
        --nnodes 4 --node-rank {{rank}} --dist-init-addr {{head}}:20000""",
        {"NCCL_CUMEM_ENABLE": "1", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", **_TRAY_ENV},
        {"goal": Goal.HIGH_THROUGHPUT, "features": (Feature.DSPARK,)},
    ),
    Published(
        "balanced, H100",
        "panel",
        "sglang",
        "h100",
        f"""{_PANEL} --tp-size 32 --ep-size 32 --moe-runner-backend marlin --decode-attention-backend flashmla
        --mem-fraction-static 0.85 --dist-timeout 3600
        --nnodes 4 --node-rank {{rank}} --dist-init-addr {{head}}:20000""",
        {"NCCL_CUMEM_ENABLE": "1", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", **_TRAY_ENV},
        {"features": (Feature.DSPARK,)},
    ),
    Published(
        "balanced, MI355X",
        "panel",
        "sglang",
        "mi355x",
        f"""{_SGLANG} --port 30000 --tp-size 8 --dcp-size 8 --dcp-comm-backend a2a --prefill-attention-backend aiter
        --decode-attention-backend aiter --kv-cache-dtype fp8_e4m3 --mamba-ssm-dtype bfloat16
        --mem-fraction-static 0.85 --cuda-graph-max-bs-decode 256""",
        {
            "SGLANG_USE_AITER": "1",
            "SGLANG_AITER_K3_OPT": "1",
            "AITER_FLYDSL_FORCE": "1",
            "AITER_SITUV2_A8W4": "1",
            "SGLANG_MLA_DECODE_TUNE": "1",
        },
    ),
    Published(
        "prefill, B300, SGLang",
        "panel",
        "sglang",
        "b300",
        f"""{_SGLANG} --port 30000 {_PANEL_DRAFT} --tp-size 8 --mem-fraction-static 0.85 --disable-custom-all-reduce
        --enable-symm-mem --disaggregation-mode prefill --disaggregation-transfer-backend nixl
        --disaggregation-bootstrap-port 8998 --chunked-prefill-size 16384 --max-prefill-tokens 16384""",
        {},
        {"serving": Serving.DISAGGREGATED, "features": (Feature.DSPARK,)},
        "prefill",
    ),
    Published(
        "decode, B300, SGLang",
        "panel",
        "sglang",
        "b300",
        f"""{_SGLANG} --port 30100 {_PANEL_DRAFT} --enable-linear-replayssm-spec --tp-size 8 --dcp-size 8
        --mem-fraction-static 0.85 --disable-custom-all-reduce --disaggregation-mode decode
        --disaggregation-transfer-backend nixl --disaggregation-decode-extra-slots 16""",
        {},
        {"serving": Serving.DISAGGREGATED, "features": (Feature.DSPARK,)},
        "decode",
    ),
    Published(
        "decode, GB200, SGLang",
        "panel",
        "sglang",
        "gb200",
        f"""{_SGLANG} --port 30100 {_PANEL_DRAFT} --enable-linear-replayssm-spec --tp-size 16 --dcp-size 8 --dp-size 2
        --enable-dp-attention --ep-size 16 --mem-fraction-static 0.85 --disaggregation-mode decode
        --disaggregation-transfer-backend nixl --disaggregation-decode-extra-slots 16
        --nnodes 4 --node-rank {{rank}} --dist-init-addr {{head}}:20000""",
        _TRAY_ENV,
        {"serving": Serving.DISAGGREGATED, "goal": Goal.HIGH_THROUGHPUT, "features": (Feature.DSPARK,)},
        "decode",
    ),
]
