"""Run inside SGLang's own environment: its pool arithmetic for cases read from stdin, as JSON on stdout.

`KVCacheConfigurator._handle_max_mamba_cache` and `DefaultPoolConfigurator.calculate_pool_sizes` are the real ones; the
server's settings are stood in for, because they would want a GPU.
"""

import json
import sys
from types import SimpleNamespace
from typing import Any

import sglang.srt.mem_cache.kv_cache_configurator as configurator  # type: ignore[import-not-found, unused-ignore]
import torch  # type: ignore[import-not-found, unused-ignore]
from sglang.srt.configs.mamba_utils import (  # type: ignore[import-not-found, unused-ignore]
    KimiLinearCacheParams,
    KimiLinearStateShape,
    Mamba2StateDType,
)
from sglang.srt.distributed.utils import get_pp_indices  # type: ignore[import-not-found, unused-ignore]
from sglang.srt.model_executor.pool_configurator import (  # type: ignore[import-not-found, unused-ignore]
    DefaultPoolConfigurator,
)

LAYERS = 93
MLA = {*range(3, 92, 4), 92}
PAGE, GIB = 64, 2**30


def answer(case: dict[str, Any]) -> dict[str, Any]:
    """Slots, running requests and tokens of one stage."""
    schedule = SimpleNamespace(
        mamba_full_memory_ratio=case["ratio"],
        max_mamba_cache_size=None,
        max_running_requests=case["requests"],
        disable_overlap_schedule=False,
    )
    mamba = SimpleNamespace(
        enable_linear_replayssm_spec=case["replay"],
        linear_replayssm_cache_len=16,
        enable_mamba_extra_buffer=case["slots"] > 3,
        enable_mamba_extra_buffer_lazy=case["slots"] == 4,
    )
    stand_ins = {
        "get_schedule": schedule,
        "get_memory": SimpleNamespace(disable_radix_cache=False),
        "get_exec": SimpleNamespace(mamba=mamba),
        "get_spec": SimpleNamespace(speculative_num_draft_tokens=case["draft"] + 1),
        "get_context": SimpleNamespace(override=lambda _, **fields: schedule.__dict__.update(fields)),
        "_pd_prefill_skips_mamba_spec_state": False,
    }
    for name, value in stand_ins.items():
        setattr(configurator, name, lambda value=value: value)
    params = KimiLinearCacheParams(
        shape=KimiLinearStateShape.create(
            tp_world_size=case["tp"], num_heads=96, head_dim=128, num_k_heads=96, head_k_dim=128, conv_kernel_size=4
        ),
        dtype=Mamba2StateDType(conv=torch.bfloat16, temporal=torch.float32),
        layers=[index for index in range(LAYERS) if index not in MLA],
    )
    server = SimpleNamespace(
        mambaish_config=SimpleNamespace(mamba2_cache_params=params),
        pp_size=case["pp"],
        model_config=SimpleNamespace(num_hidden_layers=LAYERS),
        fused_entry_bytes=lambda _: None,
        spec_algorithm=SimpleNamespace(is_none=lambda: case["draft"] == 0),
        hybrid_gdn_config=None,
        hybrid_kda_config=object(),
        attn_dp_size=1,
        extra_mamba_cache_bytes_per_req=0,
    )
    real = configurator.KVCacheConfigurator
    server._calculate_mamba_ratio = lambda: real._calculate_mamba_ratio(server)
    try:
        rest = real._handle_max_mamba_cache(server, case["memory"] / GIB)
    except RuntimeError:  # "Not enough GPU memory for hybrid state cache"
        return {"slots": 0, "requests": 0, "tokens": 0}
    start, end = get_pp_indices(LAYERS, case["stage"], case["pp"])
    mla = sum(start <= index < end for index in MLA)
    pool = SimpleNamespace(_fixed_overhead_bytes=0, _cell_size=mla * 576 * case["element_bytes"], _zero_kv_max_tokens=0)
    sized = DefaultPoolConfigurator.calculate_pool_sizes(pool, int(rest * GIB), PAGE)
    return {
        "state_bytes": int(params.mamba_cache_per_req),
        "slots": schedule.max_mamba_cache_size,
        "requests": schedule.max_mamba_cache_size // server._calculate_mamba_ratio(),
        "tokens": sized.max_total_num_tokens,
    }


if __name__ == "__main__":
    answers = [answer(case) for case in json.load(sys.stdin)]
    sys.stdout.write("\n" + json.dumps(answers) + "\n")
