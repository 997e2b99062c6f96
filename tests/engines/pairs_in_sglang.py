"""What SGLang's decode side says of a prefill. Read JSON from stdin, write JSON to stdout: whether each pair is taken.

{"info": [[prefill, decode], ...], "dcp": [[dcp, dcp], ...], "pp": [[pp, pp], ...]}
"""

import json
import sys
from types import SimpleNamespace
from typing import Any
from unittest import mock

from sglang.srt.disaggregation.common import conn

Manager = conn.CommonKVManager


def taken(prefill: dict[str, Any], decode: dict[str, Any]) -> bool:
    """Whether decode goes on to match ranks after it has asked prefill what it is."""
    info = SimpleNamespace(
        page_size=prefill.get("page", 64), kv_cache_dtype=prefill.get("cache", "auto"), kv_layout=None,
        dsv41_spec_layout=None, attn_tp_size=8, attn_cp_size=1, enable_kv_cache_sharding=False,
    )  # fmt: skip
    manager = SimpleNamespace(
        prefill_info_table={}, kv_args=SimpleNamespace(page_size=decode.get("page", 64), state_types=[]),
        kv_cache_dtype_str=decode.get("cache", "auto"), kv_layout=None, dsv41_spec_layout=None, attn_tp_size=8,
        attn_cp_size=1, is_mla_backend=False, is_hybrid_mla_backend=True, dcp_size=1,
        _resolve_rank_mapping=lambda info: None,
    )  # fmt: skip
    answer = SimpleNamespace(status_code=200, json=dict)
    asking = mock.patch.object(conn, "requests", SimpleNamespace(get=lambda *a, **k: answer))
    with asking, mock.patch.object(conn, "PrefillServerInfo", lambda **said: info):
        try:
            return bool(Manager.try_ensure_parallel_info(manager, "a:1"))
        except RuntimeError:
            return False


def relays(here: int, there: int) -> bool:
    manager = SimpleNamespace(dcp_size=here, dcp_rank=0, is_mla_backend=False, is_hybrid_mla_backend=True)
    try:
        Manager.requires_dcp_relayout(manager, there, 0)
    except RuntimeError:
        return False
    return True


def matches(here: int, there: int) -> bool:
    info = SimpleNamespace(
        attn_tp_size=8, attn_cp_size=1, pp_size=here, enable_kv_cache_sharding=False, enable_dsa_cache_layer_split=False
    )
    manager = SimpleNamespace(
        attn_tp_size=8, attn_cp_size=1, attn_cp_rank=0, pp_size=there, pp_rank=0, is_mla_backend=False,
        is_hybrid_mla_backend=True, kv_args=SimpleNamespace(engine_rank=0), enable_all_cp_ranks_for_transfer=False,
    )  # fmt: skip
    try:
        Manager._resolve_rank_mapping(manager, info)
    except AssertionError:
        return False
    return True


asked = json.load(sys.stdin)
answer = {
    "info": [taken(*pair) for pair in asked["info"]],
    "dcp": [relays(*pair) for pair in asked["dcp"]],
    "pp": [matches(*pair) for pair in asked["pp"]],
}
print(json.dumps(answer))
