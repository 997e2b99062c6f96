"""Runs in vLLM's Python: every check that vLLM makes of a command before it touches a GPU, as on a given GPU.

Reads, a line at a time, JSON lists of {"gpu", "words", "variables"} with gpu = {"capability": [10, 3], "memory_bytes",
"multiprocessors", "per_node", "name"}; a case may have "layers": true to ask for what the other layers would take (vLLM
0.33.0). Writes, a line for each, lists of {"error", "found"}: error null where the command is taken, else found is
empty.

What is stood in for is what a machine would report: capability, memory, number and name of its GPUs. Then the real path
of `vllm serve` runs: parse, its own checks, AsyncEngineArgs, create_engine_config (model, cache, parallel, scheduler,
speculative, compilation, K3's own), and what K3's layers ask for when they are made: a kernel for MLA decode, one for
MLA prefill, one for the experts with SiTU. All cases of a process have the same capability: vLLM remembers it.
"""

from __future__ import annotations

import array
import contextlib
import importlib
import importlib.util
import json
import os
import sys
import traceback
from typing import Any
from unittest import mock

import torch  # type: ignore[import-not-found, unused-ignore]


def main() -> None:
    out = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        for line in sys.stdin:
            cases = json.loads(line)
            if not GPU:
                GPU.update(cases[0]["gpu"])
                state(GPU)
            assert GPU["capability"] == cases[0]["gpu"]["capability"]
            GPU.update(cases[0]["gpu"])
            answers = [resolve(case["words"], case["variables"], case.get("layers", False)) for case in cases]
            print(json.dumps(answers), file=out, flush=True)


GPU: dict[str, Any] = {}
"""The GPU that is stated now."""


def state(gpu: dict[str, Any]) -> None:
    """Let vLLM find this GPU, as the mapping says it is at any later time."""
    _let_arrays_be_subscripted()
    import vllm.platforms
    from vllm.platforms.cuda import NonNvmlCudaPlatform
    from vllm.platforms.interface import DeviceCapability

    class Stated(NonNvmlCudaPlatform):  # type: ignore[misc, unused-ignore]
        """CUDA as it is, on a machine that reports what we state."""

        @classmethod
        def get_device_capability(cls, device_id: int = 0) -> DeviceCapability:
            return DeviceCapability(*gpu["capability"])

        @classmethod
        def get_device_name(cls, device_id: int = 0) -> str:
            return str(gpu["name"])

        @classmethod
        def get_device_total_memory(cls, device_id: int = 0) -> int:
            return int(gpu["memory_bytes"])

        @classmethod
        def device_count(cls) -> int:
            return int(gpu["per_node"])

        @classmethod
        def num_compute_units(cls, device_id: int = 0) -> int:
            return int(gpu["multiprocessors"])

    vllm.platforms._current_platform = Stated()
    _import_without_memory("vllm.v1.attention.backends.mla.cutlass_mla")


def _let_arrays_be_subscripted() -> None:
    """Python 3.12's `array.array[int]`, which FlashInfer of vLLM 0.27.1 writes in a signature, for an older Python."""
    if not hasattr(array.array, "__class_getitem__"):

        class Array(array.array):  # type: ignore[type-arg, misc, unused-ignore]
            def __class_getitem__(cls, item: Any) -> type:
                return cls

        array.array = Array  # type: ignore[misc, unused-ignore]


def _import_without_memory(module: str) -> None:
    """Import a module that takes its workspace on the GPU while it is imported."""
    real = torch.empty
    with mock.patch.object(torch, "empty", lambda *sizes, **more: real(*sizes, **{**more, "device": "meta"})):
        importlib.import_module(module)


def resolve(words: list[str], variables: dict[str, str], layers: bool) -> dict[str, Any]:
    """One command's answer."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        return {"error": None, "found": checked(words, layers)}
    except (SystemExit, Exception) as error:
        print("".join(traceback.format_exception(error)), file=sys.stderr)
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{place.filename.rpartition('site-packages/')[2]}:{place.lineno}"
        return {"error": f"{type(error).__name__}: {error} ({where})", "found": {}}
    finally:
        os.environ.clear()
        os.environ.update(before)


def checked(words: list[str], layers: bool) -> dict[str, Any]:
    """What vLLM makes of a command; raises what it holds against it."""
    from vllm.config import set_current_vllm_config
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    cli = importlib.import_module(
        first_module(
            "vllm.entrypoints.common.cli_args",
            "vllm.entrypoints.launchers.cli_args",
            "vllm.entrypoints.openai.cli_args",
        )
    )
    arguments = cli.make_arg_parser(FlexibleArgumentParser()).parse_args(words)
    arguments.model = arguments.model_tag
    cli.validate_parsed_serve_args(arguments)
    headless = bool(arguments.headless)
    made = AsyncEngineArgs.from_cli_args(arguments)
    config = made.create_engine_config(headless=headless)
    if headless and made.data_parallel_hybrid_lb:  # as in vllm/entrypoints/cli/serve.py, run_headless
        raise ValueError("data_parallel_hybrid_lb is not applicable in headless mode")
    with set_current_vllm_config(config):
        kernels = {"decode": decode_kernel(config), "prefill": prefill_kernel(config), "experts": expert_kernel(config)}
        if layers:
            kernels |= other_kernels(config)
    parallel, cache = config.parallel_config, config.cache_config
    return {
        **kernels,
        "architecture": config.model_config.architecture,
        "quantization": config.model_config.quantization,
        "multimodal": config.model_config.is_multimodal_model
        and not config.model_config.multimodal_config.language_model_only,
        "v2_runner": config.use_v2_model_runner,
        "prefix_caching": cache.enable_prefix_caching,
        "cache_dtype": cache.cache_dtype,
        "state_dtype": cache.mamba_ssm_cache_dtype,
        "context": config.model_config.max_model_len,
        "graphs": config.compilation_config.max_cudagraph_capture_size,
        "draft": config.speculative_config.num_speculative_tokens if config.speculative_config else 0,
        "hybrid_lb": parallel.data_parallel_hybrid_lb,
        "external_lb": parallel.data_parallel_external_lb,
        "rank": parallel.data_parallel_rank,
        "dp": parallel.data_parallel_size,
    }


def first_module(*names: str) -> str:
    """The first of these modules that this release has."""
    for name in names:
        with contextlib.suppress(ModuleNotFoundError):
            if importlib.util.find_spec(name) is not None:
                return name
    raise ModuleNotFoundError(f"none of {', '.join(names)}")


def decode_kernel(config: Any) -> str:
    """The kernel that K3's MLA layers would decode with (vllm/models/kimi_k3/nvidia/mla.py)."""
    from vllm.v1.attention.selector import get_attn_backend

    text, parallel = config.model_config.hf_text_config, config.parallel_config
    backend = get_attn_backend(
        text.kv_lora_rank + text.qk_rope_head_dim,
        config.model_config.dtype,
        config.cache_config.cache_dtype,
        use_mla=True,
        num_heads=text.num_attention_heads // parallel.tensor_parallel_size,
    )
    return str(backend.get_name())


def prefill_kernel(config: Any) -> str:
    """The kernel that they would read prompts with."""
    from vllm.v1.attention.backends.mla.prefill.selector import get_mla_prefill_backend

    return str(get_mla_prefill_backend(config).__name__)


def other_kernels(config: Any) -> dict[str, str]:
    """What KDA, the pictures, the draft and block-FP8 projections would compute with (vLLM 0.33.0)."""
    from vllm.models.kimi_k3.nvidia import kda
    from vllm.platforms import current_platform

    dtype, text = config.model_config.dtype, config.model_config.hf_text_config
    linear = text.linear_attn_config
    state, bound = torch.float32, linear["gate_lower_bound"]
    found = {"kda_prefill": kda.resolve_kda_prefill_backend("auto", linear["head_dim"], dtype, state, bound)}
    heads = linear["num_heads"] // config.parallel_config.tensor_parallel_size
    drafted = config.speculative_config.num_speculative_tokens if config.speculative_config else 0
    of_layer = (heads, linear["head_dim"], linear["short_conv_kernel_size"], drafted, dtype, dtype, state)
    found["kda_decode"] = kda.resolve_kda_decode_backend("auto", *of_layer)
    found["kda_verify"] = kda.resolve_kda_spec_decode_backend("auto", *of_layer, bound, False)
    vision = config.model_config.hf_config.vision_config
    size = vision.qkv_hidden_size // vision.num_attention_heads
    found["pictures"] = current_platform.get_vit_attn_backend(size, dtype).name
    if drafted:
        found["draft_kernel"] = draft_kernel(config)
    if config.model_config.quantization == "modelopt_mixed":
        found["linear"] = block_fp8_kernel(config)
    return found


def draft_kernel(config: Any) -> str:
    """The kernel of the draft's windowed attention; it looks ahead inside a block."""
    import dataclasses

    from vllm.config import set_current_vllm_config
    from vllm.v1.attention.selector import get_attn_backend

    attention = dataclasses.replace(config.attention_config, use_non_causal=True, backend=None)
    draft = config.speculative_config.draft_model_config
    with mock.patch.object(config, "attention_config", attention), set_current_vllm_config(config):
        backend = get_attn_backend(
            draft.get_head_size(), draft.dtype, config.cache_config.cache_dtype, has_sliding_window=True
        )
    return str(backend.get_name())


def block_fp8_kernel(config: Any) -> str:
    """The kernel of a projection stored as block FP8, at the true size of K3's first query projection."""
    from vllm.model_executor.kernels.linear import init_fp8_linear_kernel
    from vllm.model_executor.layers.quantization.utils import quant_utils as keys

    dtype, text = config.model_config.dtype, config.model_config.hf_text_config
    shape = (text.q_lora_rank, text.hidden_size)
    kernel = init_fp8_linear_kernel(keys.kFp8Dynamic128Sym, keys.kFp8Static128BlockSym, dtype, dtype, shape)
    return type(kernel).__name__


def expert_kernel(config: Any) -> str:
    """The kernel for K3's routed experts, in the latent width, with the SiTU activation."""
    from vllm.model_executor.layers.fused_moe import config as moe
    from vllm.model_executor.layers.fused_moe.activation import MoEActivation
    from vllm.model_executor.layers.fused_moe.oracle import mxfp4, nvfp4
    from vllm.model_executor.layers.quantization.utils import quant_utils as keys

    text, parallel = config.model_config.hf_text_config, config.parallel_config
    backend = config.kernel_config.moe_backend
    if backend == "deep_gemm_mega_moe":
        if not parallel.enable_expert_parallel:  # as in vllm/models/kimi_k3/nvidia/model.py
            raise ValueError("Kimi K3 MegaMoE requires expert parallel.")
        return "deep_gemm_mega_moe"
    ranks = parallel.tensor_parallel_size * parallel.data_parallel_size
    with contextlib.ExitStack() as stack:
        for name in ("get_tensor_model_parallel_rank", "get_dp_group", "get_pcp_group"):
            if hasattr(moe, name):
                group = mock.Mock(rank_in_group=0)
                stack.enter_context(mock.patch.object(moe, name, return_value=0 if "rank" in name else group))
        spread = moe.FusedMoEParallelConfig.make(
            parallel.tensor_parallel_size, 1, parallel.data_parallel_size, 1, parallel
        )
        experts = text.num_experts
        layer = moe.FusedMoEConfig(
            num_experts=experts,
            experts_per_token=text.num_experts_per_token,
            hidden_dim=text.latent_size if hasattr(text, "latent_size") else text.routed_expert_hidden_size,
            intermediate_size=text.moe_intermediate_size,
            num_local_experts=experts // ranks if spread.use_ep else experts,
            num_logical_experts=experts,
            activation=MoEActivation.from_str(text.hidden_act),
            device="cuda",
            routing_method=moe.RoutingMethodType.DeepSeekV3,
            moe_parallel_config=spread,
            in_dtype=config.model_config.dtype,
            moe_backend=backend,
            activation_situ_beta=text.activation_situ_beta,
            activation_situ_linear_beta=text.activation_situ_linear_beta,
        )
    if config.model_config.quantization == "mxfp4":
        chosen, _ = mxfp4.select_mxfp4_moe_backend(layer)
    else:
        chosen, _ = nvfp4.select_nvfp4_moe_backend(layer, keys.kNvfp4Static, keys.kNvfp4Dynamic)
    return str(chosen.value)


if __name__ == "__main__":
    main()
