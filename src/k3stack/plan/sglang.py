"""Cache and state under SGLang: two static pools, a KDA slot pool and an MLA token pool, exact.

    pools      mem-fraction-static x free memory at start, less weights and what else is resident
    ratio      r = mamba-full-memory-ratio: the slot pool gets r / (1 + r), the token pool the rest
    slot       one KDA state of all layers on the stage, cut by heads; the pool has one padding slot more
    per        a running request holds S slots: 1 without radix cache, 3 no_buffer, 4 extra_buffer_lazy, 5 extra_buffer
    request    with overlap. running requests = slots // S
    draft      without ReplaySSM: (running + 1) x verified tokens states more, out of the slot pool; with it a ring each
    token      24 layers x 576 elements, the same on every rank; decode-context parallelism spreads tokens

Activations and CUDA graphs come out of the other part, 1 - mem-fraction-static.

Source: SGLang 0.5.23 (sglang/srt/mem_cache/kv_cache_configurator.py _handle_max_mamba_cache, _calculate_mamba_ratio,
_profile_available_bytes; model_executor/pool_configurator.py; configs/mamba_utils.py). Check: ssm_state size 15.67 GB
logged on 8 x B300 (github.com/whn09/kimi-k3-sglang) is 310 slots x 69 layers x 786,432 bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from k3stack.plan.cache import kda_state_bytes_per_layer
from k3stack.plan.draft import dspark_kv_bytes_per_token
from k3stack.plan.layout import Layout, Workload
from k3stack.plan.stages import Stage
from k3stack.spec.model import Attention, ModelSpec

__all__ = ["DEFAULT_RATIO", "SglangPools", "sglang_pools"]

DEFAULT_RATIO = 0.9
"""SGLang's own mamba-full-memory-ratio."""

PAGE_TOKENS = 64
UNLIMITED = 2**40
"""Tokens that a pipeline stage without MLA layers holds: they cost it nothing."""

RING_LENGTH = 16
"""Default of --linear-replayssm-cache-len."""


@dataclass(frozen=True, slots=True)
class SglangPools:
    """What slots and tokens cost on one GPU of a stage.

    Attributes:
        slot_bytes: one slot: a KDA state, and the ReplaySSM ring with it.
        state_bytes: the KDA state alone.
        slots_per_request: S.
        token_bytes: one token's latents on one rank, already divided by dcp.
        verified_tokens: tokens verified per step whose states are kept; 0 without a draft or with ReplaySSM.
        dcp: over how many ranks tokens are spread.
        most_requests: max-running-requests, which caps the states kept for verification.
    """

    slot_bytes: int
    state_bytes: int
    slots_per_request: int
    token_bytes: float
    verified_tokens: int
    dcp: int
    most_requests: int

    def states_for(self, requests: int) -> int:
        """Bytes of the slot pool for this many running requests, padding slot and kept states included."""
        slots = (requests * self.slots_per_request + 1) * self.slot_bytes
        return slots + self.state_bytes * (requests + 1) * self.verified_tokens if self.verified_tokens else slots

    def tokens_for(self, tokens: int) -> int:
        """Bytes of the token pool for this many tokens, whole pages."""
        page = PAGE_TOKENS * self.dcp
        return round(-(-tokens // page) * page * self.token_bytes)

    def slots_in(self, pool_bytes: int, ratio: float) -> int:
        """Slots that a ratio gives (max_mamba_cache_size)."""
        budget = pool_bytes * ratio / (1 + ratio)
        kept = self.state_bytes * self.verified_tokens
        per_slot = self.slot_bytes + kept / self.slots_per_request
        return max(int((budget - self.slot_bytes - kept) // per_slot), 0)

    def requests_in(self, pool_bytes: int, ratio: float) -> int:
        """Running requests that a ratio gives (max_running_requests, if nothing else caps it)."""
        return self.slots_in(pool_bytes, ratio) // self.slots_per_request

    def tokens_in(self, pool_bytes: int, ratio: float) -> int:
        """Tokens that a ratio leaves (max_total_num_tokens), whole pages."""
        slots = self.slots_in(pool_bytes, ratio)
        running = min(slots // self.slots_per_request, self.most_requests)
        kept = self.state_bytes * (running + 1) * self.verified_tokens
        left = pool_bytes - (slots + 1) * self.slot_bytes - kept
        if not self.token_bytes:
            return UNLIMITED if left >= 0 else 0
        page = PAGE_TOKENS * self.dcp
        return max(int(left / self.token_bytes), 0) // page * page

    def balance(self, tokens_per_request: float) -> float:
        """The ratio at which both pools run out together when requests hold this many tokens on average.

        Per request S slots (and the states kept for verification) against its tokens.
        """
        states = self.slots_per_request * self.slot_bytes + self.verified_tokens * self.state_bytes
        return states / (tokens_per_request * self.token_bytes)


def sglang_pools(
    spec: ModelSpec, layout: Layout, workload: Workload, found: tuple[Stage, ...], stage: Stage
) -> SglangPools:
    """What a slot and a token cost on one GPU of `stage`; every stage counts slots of the KDA-richest one."""
    kda_layers = max(each.layers_of(spec, Attention.KDA) for each in found)
    state = kda_layers * (kda_state_bytes_per_layer(spec, workload.state_dtype) // layout.tp)
    proposed = workload.speculative_tokens
    replayed = bool(proposed) and workload.replay_ssm
    row = stage.layers_of(spec, Attention.MLA) * workload.kv_dtype.row_bytes(spec.mla.cache_width)
    if proposed and stage.last:
        row += dspark_kv_bytes_per_token(workload.kv_dtype)
    return SglangPools(
        slot_bytes=state + (kda_layers * _ring_bytes(spec, layout) if replayed else 0),
        state_bytes=state,
        slots_per_request=workload.state_slots or (5 if workload.prefix_caching else 1),
        token_bytes=row / layout.dcp,
        verified_tokens=proposed + 1 if proposed and workload.verifies and not replayed else 0,
        dcp=layout.dcp,
        most_requests=workload.per_replica(layout),
    )


def _ring_bytes(spec: ModelSpec, layout: Layout) -> int:
    """ReplaySSM's ring of one slot in one layer: raw v and k, beta, gate, d and k of the last steps."""
    heads, wide = spec.kda.heads // layout.tp, spec.kda.head_dim
    return heads * RING_LENGTH * (4 * wide * 2 + 4 + wide * 4)
