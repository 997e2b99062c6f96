"""Cache and state under vLLM: what a token and what a sequence cost, and the block arithmetic, exact.

    MLA cache    one latent of 576 elements per token and MLA layer, the same on every tensor-parallel rank;
                 decode-context parallelism spreads its tokens
    KDA state    per sequence and KDA layer: recurrent [heads, 128, 128] and the last 3 inputs of the three
                 convolutions in BF16; cut by heads over the ranks

    block        tokens: a multiple of 128 whose MLA page holds one KDA layer's state; the state is padded up to it
    group        layers that share a block table; all groups draw from one pool. K3: 24 MLA layers, 3 x 23 KDA layers
    physical     one page for each layer of the widest group on the stage (TP8: 24 x 884,736 bytes)
    request      ceil(context / (block x dcp)) MLA blocks, and per KDA group one state (prefix caching: 2, and one more
                 for FlashKDA's checkpoints; plus one per proposed token without ReplaySSM)
    printed      "GPU KV cache size" = int(blocks / blocks per request x max_model_len): derived, not a capacity

Source: vLLM 0.33.0 (vllm/models/kimi_k3/nvidia/kda.py, mla.py; platforms/interface.py _align_hybrid_block_size;
v1/core/kv_cache_planning.py _get_kv_cache_groups_uniform_page_size, get_kv_cache_configs; v1/core/kv_cache_utils.py
get_max_concurrency_for_kv_cache_config; v1/kv_cache_interface.py MambaSpec).
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache

from k3stack.plan.draft import DSPARK_LAYERS
from k3stack.plan.layout import KvDtype, Layout, StateDtype, Workload
from k3stack.plan.releases import Release
from k3stack.plan.same import Same
from k3stack.plan.stages import Stage
from k3stack.spec.model import Attention, ModelSpec

__all__ = ["VllmBlocks", "kda_state_bytes", "kda_state_bytes_per_layer", "kv_bytes_per_token", "vllm_blocks"]

_BLOCK_STEP = 128


def kv_bytes_per_token(spec: ModelSpec, kv_dtype: KvDtype) -> int:
    """Bytes that one token adds to the MLA cache, all layers (K3: 27,648 in BF16, 13,824 in FP8)."""
    return len(spec.layers_of(Attention.MLA)) * kv_dtype.row_bytes(spec.mla.cache_width)


def kda_state_bytes(spec: ModelSpec, state_dtype: StateDtype = StateDtype.FP32) -> int:
    """Bytes of one sequence's KDA state in all layers, summed over the ranks (K3: 449,372,160; BF16 232,316,928)."""
    return len(spec.layers_of(Attention.KDA)) * kda_state_bytes_per_layer(spec, state_dtype)


def kda_state_bytes_per_layer(
    spec: ModelSpec, state_dtype: StateDtype = StateDtype.FP32, speculative_tokens: int = 0
) -> int:
    """Bytes of one sequence's state in one layer, summed over the ranks; a draft lengthens the convolution's window."""
    kda = spec.kda
    recurrent = kda.heads * kda.head_dim * kda.head_dim * state_dtype.size_bytes
    convolution = 3 * kda.width * (kda.conv_kernel - 1 + speculative_tokens) * 2
    return recurrent + convolution


@dataclass(frozen=True, slots=True)
class VllmBlocks:
    """vLLM's unified blocks: one physical block holds a page for every layer of the widest group on a stage.

    Attributes:
        tokens: tokens of one MLA block on one rank.
        page_bytes: bytes of one layer's page.
        pages: pages in a physical block, per pipeline stage.
        mla_groups: groups of MLA layers; a sequence holds its tokens' blocks in each.
        state_groups: groups of KDA layers.
        states: blocks that a sequence holds in each KDA group.
        state_padding: share of a page that the KDA state leaves empty.
        dcp: over how many ranks a sequence's MLA tokens are spread.
        null_blocks: blocks that the start-up check sets aside.
    """

    tokens: int
    page_bytes: int
    pages: tuple[int, ...]
    mla_groups: int
    state_groups: int
    states: int
    state_padding: float
    dcp: int = 1
    null_blocks: int = 0

    def block_bytes(self, stage: int = 0) -> int:
        """Bytes of one physical block on one GPU of a stage."""
        return self.page_bytes * self.pages[stage]

    @property
    def state_blocks(self) -> int:
        """Blocks of one sequence's KDA state."""
        return self.state_groups * self.states

    def token_blocks(self, tokens: int) -> int:
        """Blocks that one sequence's MLA cache takes on one GPU."""
        per_rank = -(-tokens // self.dcp)
        return self.mla_groups * -(-per_rank // self.tokens)

    def request_blocks(self, context: int) -> int:
        """Blocks that one sequence of `context` tokens takes on one GPU."""
        return self.token_blocks(context) + self.state_blocks

    def count(self, cache_bytes: tuple[int, ...]) -> int:
        """Blocks in `cache_bytes` of each stage: the smallest stage decides for all."""
        return min(max(size, 0) // self.block_bytes(stage) for stage, size in enumerate(cache_bytes))

    def concurrency(self, count: int, context: int) -> float:
        """vLLM's "Maximum concurrency for `context` tokens per request"."""
        return count / self.request_blocks(context)

    def printed_tokens(self, count: int, context: int) -> int:
        """vLLM's "GPU KV cache size" for this max_model_len."""
        return int(self.concurrency(count, context) * context)

    def longest(self, count: int) -> int:
        """The longest single request that the start-up check lets through, in tokens; 0 if none."""
        blocks = (count - self.null_blocks - self.state_blocks) // self.mla_groups
        return max(blocks, 0) * self.tokens * self.dcp


def vllm_blocks(
    spec: ModelSpec, layout: Layout, workload: Workload, release: Release, found: tuple[Stage, ...], nvidia: bool = True
) -> VllmBlocks:
    """vLLM's block, page and group sizes. `nvidia`: FlashKDA prefills, which keeps checkpoints."""
    draft = workload.speculative_tokens
    state = -(-kda_state_bytes_per_layer(spec, workload.state_dtype, draft) // layout.tp)
    width, kv_dtype = spec.mla.cache_width, workload.kv_dtype
    # The block is chosen by 576 elements a token even where a row is stored wider (fp8_ds_mla).
    tokens = _BLOCK_STEP * -(-state // (_BLOCK_STEP * width * kv_dtype.size_bytes))
    page = tokens * kv_dtype.row_bytes(width)
    pages, mla_groups, kda_groups = _groups(Same(spec), bool(draft), found)
    return VllmBlocks(
        tokens=tokens,
        page_bytes=page,
        pages=pages,
        mla_groups=mla_groups,
        state_groups=kda_groups,
        states=_states(workload, release, nvidia),
        state_padding=1 - state / page,
        dcp=layout.dcp,
        null_blocks=1 if release.null_block else 0,
    )


def _states(workload: Workload, release: Release, nvidia: bool) -> int:
    """Blocks of a sequence in each KDA group (MambaSpec.max_memory_usage_bytes)."""
    proposed = 0 if workload.replay_ssm else workload.speculative_tokens
    if not workload.prefix_caching:
        return 1 + proposed
    return 2 + proposed + (1 if release.checkpoint_block and nvidia else 0)


@lru_cache(maxsize=1_024)
def _groups(model: Same, drafted: bool, found: tuple[Stage, ...]) -> tuple[tuple[int, ...], int, int]:
    """Pages of a physical block on each stage, and how many groups MLA and KDA layers are dealt into."""
    spec = model.spec
    mla = [layer.index for layer in spec.layers_of(Attention.MLA)]
    mla += [len(spec.layers)] * (DSPARK_LAYERS if drafted else 0)
    kda = [layer.index for layer in spec.layers_of(Attention.KDA)]
    size = _group_size(len(mla), len(kda))
    mla_groups, kda_groups = _dealt(mla, size), _dealt(kda, size)
    pages = tuple(max(_on_stage(group, stage) for group in (*mla_groups, *kda_groups)) for stage in found)
    return pages, len(mla_groups), len(kda_groups)


def _group_size(mla: int, kda: int) -> int:
    """Layers of a group: the rarer kind's number, unless the other kind has under 1.5 times as many."""
    fewest, most = sorted((mla, kda))
    return most if most < fewest * 1.5 else fewest


def _dealt(layers: list[int], size: int) -> list[list[int]]:
    """Layers dealt out over groups like cards, so that every stage holds its share of each group."""
    groups = -(-len(layers) // size)
    return [layers[index::groups] for index in range(groups)]


def _on_stage(group: list[int], stage: Stage) -> int:
    """Layers of a group (in order) on a stage; draft layers, numbered past the model's, sit on the last."""
    end = len(group) if stage.last else bisect_left(group, stage.end)
    return end - bisect_left(group, stage.start)
