"""Run inside vLLM's own environment: its block arithmetic for cases read from stdin, as JSON on stdout.

The real functions choose block sizes, groups, pages, blocks and concurrency; only the model and its configuration are
stood in for, because they would want a GPU.
"""

import contextlib
import json
import sys
from types import SimpleNamespace
from typing import Any
from unittest import mock

import vllm.platforms  # type: ignore[import-not-found, unused-ignore]
from vllm.platforms.cpu import CpuPlatform  # type: ignore[import-not-found, unused-ignore]

vllm.platforms._current_platform = CpuPlatform()

import torch  # type: ignore[import-not-found, unused-ignore]  # noqa: E402
from vllm.distributed.utils import get_pp_indices  # type: ignore[import-not-found, unused-ignore]  # noqa: E402
from vllm.model_executor.layers.mamba.mamba_utils import (  # type: ignore[import-not-found, unused-ignore]  # noqa: E402
    MambaStateShapeCalculator,
)
from vllm.platforms.interface import Platform  # type: ignore[import-not-found, unused-ignore]  # noqa: E402
from vllm.v1.core import kv_cache_planning, kv_cache_utils  # type: ignore[import-not-found, unused-ignore]  # noqa: E402
from vllm.v1.kv_cache_interface import (  # type: ignore[import-not-found, unused-ignore]  # noqa: E402
    MambaSpec,
    MLAAttentionSpec,
)

LAYERS, LATENT, CHECKPOINT_ALIGNMENT = 93, 576, 16
MLA = {*range(3, 92, 4), 92}


def config_of(case: dict[str, Any]) -> Any:
    """What the arithmetic asks of vLLM's configuration."""
    return SimpleNamespace(
        cache_config=SimpleNamespace(
            cache_dtype=case["cache_dtype"],
            block_size=64,
            mamba_cache_mode="align" if case["prefix_caching"] else "none",
            mamba_page_size_padded=None,
            mamba_block_size=None,
            kv_cache_dtype_skip_layers=[],
            num_gpu_blocks_override=None,
        ),
        model_config=SimpleNamespace(
            dtype=torch.bfloat16,
            use_mla=True,
            max_model_len=case["context"],
            architecture="K3",
            get_num_kv_heads=lambda parallel: 1,
            get_head_size=lambda: LATENT,
        ),
        parallel_config=SimpleNamespace(decode_context_parallel_size=case["dcp"], tensor_parallel_size=case["tp"]),
    )


def states_of(case: dict[str, Any]) -> tuple[Any, Any]:
    """Shapes and dtypes of one layer's KDA state on one rank."""
    shapes = MambaStateShapeCalculator.kda_state_shape(case["tp"], 96, 128, conv_kernel_size=4, num_spec=case["draft"])
    return shapes, (torch.bfloat16, torch.float32)


def align(config: Any, case: dict[str, Any]) -> None:
    """vLLM's own choice of block size and padded page, written into the configuration."""
    shapes, dtypes = states_of(case)
    model = SimpleNamespace(
        get_mamba_state_shape_from_config=lambda _: shapes, get_mamba_state_dtype_from_config=lambda _: dtypes
    )
    backend = SimpleNamespace(get_supported_kernel_block_sizes=lambda: [64])
    with (
        mock.patch("vllm.model_executor.models.ModelRegistry.resolve_model_cls", lambda *a, **k: (model, "K3")),
        mock.patch("vllm.config.vllm.set_current_vllm_config", lambda *a, **k: contextlib.nullcontext()),
        mock.patch.object(Platform, "_find_non_ssm_backends", classmethod(lambda cls, c: [backend])),
        mock.patch(
            "vllm.model_executor.layers.mamba.abstract.get_mamba_prefill_checkpoint_alignment",
            lambda _: CHECKPOINT_ALIGNMENT,
        ),
    ):
        Platform._align_hybrid_block_size(config, backend)


def specs_of(config: Any, case: dict[str, Any]) -> dict[str, Any]:
    """The cache specification of every layer, draft layers behind the model's."""
    cache = config.cache_config
    shapes, dtypes = states_of(case)
    packed = case["cache_dtype"] == "fp8_ds_mla"
    mla = MLAAttentionSpec(
        block_size=cache.block_size,
        num_kv_heads=1,
        head_size=LATENT,
        dtype=torch.bfloat16 if case["cache_dtype"] == "auto" else torch.uint8,
        cache_dtype_str=case["cache_dtype"],
        max_tp_shards=1,
        **({"state_content_bytes": 656} if packed else {}),
    )
    kda = MambaSpec(
        block_size=cache.mamba_block_size or case["context"],
        dcp_sharded=False,
        shapes=shapes,
        dtypes=dtypes,
        page_size_padded=cache.mamba_page_size_padded,
        mamba_cache_mode=cache.mamba_cache_mode,
        num_speculative_blocks=0 if case["replay"] else case["draft"],
        num_prefill_checkpoint_blocks=1,
        prefill_checkpoint_alignment=CHECKPOINT_ALIGNMENT,
    )
    count = LAYERS + (5 if case["draft"] else 0)
    return {f"layer.{index}": mla if index in MLA or index >= LAYERS else kda for index in range(count)}


def answer(case: dict[str, Any]) -> dict[str, Any]:
    """Everything our arithmetic claims, from vLLM's functions."""
    config = config_of(case)
    align(config, case)
    specs = kv_cache_planning.unify_kv_cache_spec_page_size(specs_of(config, case))
    groups = kv_cache_planning._get_kv_cache_groups_uniform_page_size(specs)
    layout = SimpleNamespace(is_block_outermost=False)
    pages, counts = [], []
    for rank in range(case["pp"]):
        start, end = get_pp_indices(LAYERS, rank, case["pp"])
        last = rank == case["pp"] - 1
        names = [f"layer.{index}" for index in range(start, end)] + [
            name for name in specs if last and int(name[6:]) >= LAYERS
        ]
        worker = kv_cache_planning._project_kv_cache_groups_to_worker(groups, {name: specs[name] for name in names})
        size = kv_cache_planning._get_kv_cache_bytes_per_block(worker, layout)
        page = next(iter(specs.values())).page_size_bytes
        pages.append(size // page)
        counts.append(case["memory"] // size)
    planned = SimpleNamespace(kv_cache_groups=groups, num_blocks=min(counts))
    tokens, concurrency = kv_cache_utils.get_kv_cache_capacity(config, planned)
    return {
        "block_tokens": config.cache_config.block_size,
        "page_bytes": next(iter(specs.values())).page_size_bytes,
        "pages": pages,
        "blocks": min(counts),
        "printed_tokens": tokens,
        "concurrency": concurrency,
    }


if __name__ == "__main__":
    answers = [answer(case) for case in json.load(sys.stdin)]
    sys.stdout.write("\n" + json.dumps(answers) + "\n")
