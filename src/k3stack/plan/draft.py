"""The DSpark draft model as published by Inferact: what it adds to weights and cache.

Five dense MLA layers, hidden 7168, sharing the target's embedding and head. Its projections of the target's hidden
states are whole on every rank, the rest is cut.

Sources: config of Inferact/Kimi-K3-DSpark; vLLM 0.33.0 vllm/models/kimi_k3/nvidia/dspark_mla.py (context_proj
ReplicatedLinear, context_kv_proj disable_tp). Drafts of another shape (RedHatAI's, RadixArk's) are not covered.
"""

from __future__ import annotations

from k3stack.plan.layout import KvDtype

__all__ = ["DSPARK_LAYERS", "DSPARK_PARAMETERS", "dspark_kv_bytes_per_token", "dspark_rank_bytes"]

DSPARK_LAYERS = 5
DSPARK_PARAMETERS = 2_387_907_841
_HIDDEN, _CAPTURED, _LATENT = 7_168, 5, 576
_WHOLE_PARAMETERS = _HIDDEN * _CAPTURED * _HIDDEN + DSPARK_LAYERS * _LATENT * _HIDDEN


def dspark_rank_bytes(tp: int) -> int:
    """Bytes of the draft's own weights (BF16) on one rank of the last stage."""
    return 2 * (_WHOLE_PARAMETERS + -(-(DSPARK_PARAMETERS - _WHOLE_PARAMETERS) // tp))


def dspark_kv_bytes_per_token(kv_dtype: KvDtype) -> int:
    """Bytes that one token adds to the draft's own cache (5,760 in BF16, 2,880 in FP8)."""
    return DSPARK_LAYERS * kv_dtype.row_bytes(_LATENT)
