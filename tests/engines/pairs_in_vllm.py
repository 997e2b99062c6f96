"""What vLLM's NIXL connector says of two sides. Read JSON from stdin, write JSON to stdout.

{"hash": [[changes, changes], ...], "tp": [[tp, tp], ...], "dcp": [[dcp, dcp], ...]}; changes are factors of the hash.
Answers: whether the hashes are the same; whether the sizes are taken.
"""

import json
import sys
from types import SimpleNamespace
from typing import Any

answers, sys.stdout = sys.stdout, sys.stderr  # some releases log to stdout

import vllm.platforms  # noqa: E402
from vllm.platforms.cpu import CpuPlatform  # noqa: E402

vllm.platforms._current_platform = CpuPlatform()

from vllm.distributed.kv_transfer.kv_connector.utils import TransferTopology  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.v1.nixl import base_worker, metadata  # noqa: E402


def hashed(changes: dict[str, Any]) -> str:
    said: dict[str, Any] = {
        "model": "m",
        "cache_dtype": "auto",
        "manager_off": False,
        "backend": "A",
        "mode": "pull",
        "draft": None,
    }
    said |= {name: value for name, value in changes.items() if name != "version"}
    model = SimpleNamespace(
        model=said["model"],
        dtype="bfloat16",
        get_total_num_kv_heads=lambda: 1,
        get_head_size=lambda: 576,
        get_total_num_hidden_layers=lambda: 93,
    )
    cache = SimpleNamespace(cache_dtype=said["cache_dtype"])
    config = SimpleNamespace(
        model_config=model,
        cache_config=cache,
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=said["manager_off"]),
        speculative_config=drafted(said["draft"]),
    )
    vllm.__version__ = changes.get("version", "0")
    return str(metadata.compute_nixl_compatibility_hash(config, said["backend"], said["mode"]))


def drafted(draft: str | None) -> Any:
    if draft is None:
        return None
    model = SimpleNamespace(model=draft, revision=None, code_revision=None, hf_config=SimpleNamespace())
    return SimpleNamespace(
        use_eagle=lambda: True,
        method="dspark",
        draft_model_config=model,
        kv_cache_dtype=None,
        parallel_drafting=False,
    )


def divides(here: int, there: int) -> bool:
    try:
        TransferTopology.tp_ratio(SimpleNamespace(tp_size=here), there)
    except AssertionError:
        return False
    return True


def shakes_hands(here: int, there: int) -> bool:
    """Whether the connector goes on behind its question about the size; what it asks next finds nothing here."""
    told = SimpleNamespace(remote_tp_size=8, remote_dcp_size=there)
    worker = SimpleNamespace(
        transfer_topo=SimpleNamespace(get_engine_info=lambda engine: told), dcp_size=here, _has_mamba=True
    )
    held = [one for one in vars(base_worker).values() if isinstance(one, type)]
    classes = [one for one in held if hasattr(one, "_validate_remote_agent_handshake")]
    try:
        classes[0]._validate_remote_agent_handshake(worker, SimpleNamespace(engine_id="e"), 8, there)
    except (RuntimeError, AssertionError):
        return False
    except AttributeError:
        return True
    return True


asked = json.load(sys.stdin)
answer = {
    "hash": [hashed(one) == hashed(other) for one, other in asked["hash"]],
    "tp": [divides(*pair) for pair in asked["tp"]],
    "dcp": [shakes_hands(*pair) for pair in asked["dcp"]],
}
print(json.dumps(answer), file=answers)
