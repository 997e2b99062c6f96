"""Cache and state: what a token and what a sequence cost.

    MLA cache    one latent of 576 elements per token and MLA layer, the same on every tensor-parallel rank;
                 decode-context parallelism spreads its tokens
    KDA state    per sequence and KDA layer: recurrent [heads, 128, 128] in float32 and the last 3 inputs of the
                 three convolutions in BF16; cut by heads over the ranks

Source: vLLM 0.33.0 (vllm/models/kimi_k3/nvidia/kda.py, mla.py; Platform._align_hybrid_block_size,
_get_kv_cache_groups_uniform_page_size).
"""

from __future__ import annotations

from dataclasses import dataclass

from k3stack.plan.layout import KvDtype, Layout
from k3stack.spec.model import Attention, ModelSpec

__all__ = ["VllmBlocks", "kda_state_bytes", "kv_bytes_per_token", "vllm_blocks"]

_BLOCK_STEP = 128


def kv_bytes_per_token(spec: ModelSpec, kv_dtype: KvDtype) -> int:
    """Bytes that one token adds to the MLA cache, all layers (K3: 27,648 in BF16, 13,824 in FP8)."""
    return len(spec.layers_of(Attention.MLA)) * spec.mla.cache_width * kv_dtype.size_bytes


def kda_state_bytes(spec: ModelSpec) -> int:
    """Bytes of one sequence's KDA state in all layers, summed over the ranks (K3: 449,372,160)."""
    return len(spec.layers_of(Attention.KDA)) * _kda_state_bytes_per_layer(spec)


def _kda_state_bytes_per_layer(spec: ModelSpec) -> int:
    kda = spec.kda
    recurrent = kda.heads * kda.head_dim * kda.head_dim * 4
    convolution = 3 * kda.width * (kda.conv_kernel - 1) * 2
    return recurrent + convolution


@dataclass(frozen=True, slots=True)
class VllmBlocks:
    """vLLM's unified blocks: one physical block holds a page for every layer of the widest group.

    Attributes:
        tokens: tokens of one MLA block.
        page_bytes: bytes of one layer's page.
        layers: pages in a physical block.
        state_groups: groups of KDA layers; a sequence holds states in each.
    """

    tokens: int
    page_bytes: int
    layers: int
    state_groups: int

    @property
    def block_bytes(self) -> int:
        """Bytes of one physical block on one GPU."""
        return self.page_bytes * self.layers

    def state_blocks(self, prefix_caching: bool) -> int:
        """Blocks of one sequence's KDA state: one a group, or three with prefix caching (align mode, FlashKDA)."""
        return self.state_groups * (3 if prefix_caching else 1)

    def token_blocks(self, tokens: int, dcp: int = 1) -> int:
        """Blocks that one sequence's MLA cache takes on one GPU."""
        return -(-tokens // (self.tokens * dcp))


def vllm_blocks(spec: ModelSpec, layout: Layout, kv_dtype: KvDtype) -> VllmBlocks:
    """vLLM's block and page sizes: the MLA block grows until its page holds a KDA layer's state."""
    state = -(-_kda_state_bytes_per_layer(spec) // layout.tp)
    token_bytes = spec.mla.cache_width * kv_dtype.size_bytes
    tokens = _BLOCK_STEP * -(-state // (_BLOCK_STEP * token_bytes))
    # The fullest pipeline stage: layers are dealt out evenly, so both kinds are taken to be.
    mla = -(-len(spec.layers_of(Attention.MLA)) // layout.pp)
    kda = -(-len(spec.layers_of(Attention.KDA)) // layout.pp)
    return VllmBlocks(tokens=tokens, page_bytes=tokens * token_bytes, layers=mla, state_groups=-(-kda // mla))
