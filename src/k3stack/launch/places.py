"""From where an error was raised to the part of the engine that failed: what can be said of a failure nobody knows."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Part", "part_of"]


@dataclass(frozen=True, slots=True)
class Part:
    """A part of an engine.

    Attributes:
        name: as it stands behind "in".
        advice: what to try when it fails and nothing more is known; a sentence.
    """

    name: str
    advice: str


_PARTS = (
    (
        r"(?:^|/)aiter/|_aiter_ops",
        "AITER, AMD's kernels",
        "Start once with VLLM_ROCM_USE_AITER=0 (SGLang, SGLANG_USE_AITER=0) to see whether the rest works.",
    ),
    (
        r"deep_?gemm",
        "DeepGEMM, kernels compiled at the start",
        "Start once with VLLM_USE_DEEP_GEMM=0 (SGLang, SGLANG_ENABLE_JIT_DEEPGEMM=0) to see whether the rest works.",
    ),
    (
        r"deep_?ep\b|deep_ep/|all2all|token_dispatcher",
        "the sending of tokens to experts on other GPUs",
        "Take another --all2all-backend (SGLang, --moe-a2a-backend none), and the same image on every node.",
    ),
    (
        r"(?:^|/)(?:nixl|mooncake|lmcache)\w*/|kv_transfer/|srt/disaggregation/|kv_offload/|hicache|srt/mem_cache/storage",
        "the code that sends the cache to other servers or to the host",
        "Start once without --kv-transfer-config (SGLang, --disaggregation-mode, --enable-hierarchical-cache).",
    ),
    (
        r"spec_decode/|srt/speculative/",
        "speculative decoding",
        "Start once without the draft to see whether the rest works.",
    ),
    (
        r"tool_parsers?/|function_call/|vllm/reasoning/|srt/parser/|vllm/parser/",
        "the parser of tool calls or reasoning",
        "Compare --tool-call-parser and --reasoning-parser with those that `k3 recipe` writes.",
    ),
    (
        r"structured_output/|xgrammar/|llguidance|outlines|srt/constrained/",
        "structured output",
        "Try the same request without a schema, then another grammar backend.",
    ),
    (
        r"flashinfer",
        "FlashInfer's kernels",
        "Take another --attention-backend or --moe-backend; the packages flashinfer-python, -cubin and -jit-cache must "
        "be of one version, and ~/.cache/flashinfer may be deleted.",
    ),
    (
        r"fused_moe|/moe/|moe_runner",
        "the experts' kernels",
        "Take the --moe-backend (SGLang, --moe-runner-backend) that `k3 recipe` writes for this GPU and scheme.",
    ),
    (
        r"model_loader/|in load_weights$|weight_utils|weight_loader$|safetensors",
        "the loading of the weights",
        "Run `k3 inspect` on the checkpoint; if it is sound, take a release that `k3 recipe` names for this scheme.",
    ),
    (
        r"quantization/|compressed_tensors|modelopt",
        "the code of the quantisation",
        "Compare --quantization and the release with those that `k3 recipe` writes for this scheme.",
    ),
    (
        r"attention/|attention_registry|flash_attn|flash_mla|/mla\.py|/kda|/fla/",
        "the attention's kernels",
        "Take the --attention-backend and --kv-cache-dtype that `k3 recipe` writes for this GPU.",
    ),
    (
        r"torch/_inductor/|torch/_dynamo/|vllm/compilation/|torch/_functorch/|torch/fx/",
        "the compilation of the model",
        "Start once with --enforce-eager (SGLang, without --enable-torch-compile); delete torch_compile_cache in "
        "VLLM_CACHE_ROOT.",
    ),
    (r"(?:^|/)triton/", "a Triton kernel", "Take the newest image; delete TRITON_CACHE_DIR (~/.triton)."),
    (
        r"torch/distributed/|pynccl|parallel_state|device_communicators/|custom_all_reduce|symm_mem",
        "the talk between the ranks",
        "Start again with NCCL_DEBUG=INFO, and run `k3 preflight` on every node.",
    ),
    (r"(?:^|/)ray/|ray_\w*executor", "Ray", "See `ray status` on every node; or start without Ray (`k3 recipe`)."),
    (
        r"huggingface_hub/|transformers/|transformers_utils/|transformers_modules/|tokeniz",
        "the reading of the model's small files",
        "Run `k3 doctor` on the checkpoint's folder; the version of transformers must be the one of the engine's image.",
    ),
    (
        r"multimodal/|multimodal_gen|/processing\.py|image_process|video",
        "the reading of pictures",
        "Try the same request without pictures; start once with --language-model-only to see whether the rest works.",
    ),
    (
        r"vllm/config/|arg_utils|server_args|arg_groups|srt/configs/",
        "the checking of the settings",
        "Take the settings that `k3 recipe` writes for this release.",
    ),
    (
        r"cuda_?graph|in capture",
        "the capture of CUDA graphs",
        "Start once with --enforce-eager (SGLang, --disable-cuda-graph) to see whether the rest works.",
    ),
    (
        r"mem_cache/|kv_cache|block_pool|radix_cache",
        "the management of the cache",
        "Start once with --no-enable-prefix-caching (SGLang, --disable-radix-cache) to see whether the rest works.",
    ),
    (r"sample/|sampler|sampling", "the sampler", "Try the same request at temperature 0 without top_k and penalties."),
    (
        r"(?:vllm|srt)/entrypoints/|fastapi/|starlette/|uvicorn/",
        "the handling of a request",
        "Send the same request alone (`k3 verify`): the server goes on after such an error.",
    ),
    (
        r"(?:vllm|srt|model_executor)/models/\w",
        "the model's own code",
        "Take a release that `k3 recipe` names for this checkpoint, with its settings.",
    ),
)

_COMPILED = tuple((re.compile(path), Part(name, advice)) for path, name, advice in _PARTS)


def part_of(places: Iterable[str]) -> Part | None:
    """The part that an error lies in.

    Args:
        places: "FILE in FUNCTION" of its traceback, the innermost first; the first that belongs to a part decides.
    """
    for place in places:
        for pattern, part in _COMPILED:
            if pattern.search(place):
                return part
    return None
