"""How a model is spread over GPUs, and what it is asked to do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from k3stack.errors import UsageError

__all__ = ["KvDtype", "Layout", "StateDtype", "Workload"]

PACKED_ROW_BYTES = 656
"""vLLM's fp8_ds_mla stores a 576-wide latent in this: 512 in FP8, 16 bytes of scales, 64 in BF16."""


class KvDtype(StrEnum):
    """How the MLA cache is stored. Moonshot's checkpoint has no cache scales, so fp8 uses scale 1.0."""

    BF16 = "bf16"
    FP8 = "fp8"
    FP8_DS_MLA = "fp8_ds_mla"

    @property
    def size_bytes(self) -> int:
        """Bytes of one cached element, as an engine counts them when it chooses a block size."""
        return 2 if self is KvDtype.BF16 else 1

    def row_bytes(self, width: int) -> int:
        """Bytes of one token's latent in one layer, as stored."""
        return PACKED_ROW_BYTES if self is KvDtype.FP8_DS_MLA else width * self.size_bytes


class StateDtype(StrEnum):
    """How the recurrent KDA state is stored; the convolution's inputs are always BF16."""

    FP32 = "float32"
    BF16 = "bfloat16"

    @property
    def size_bytes(self) -> int:
        """Bytes of one element."""
        return 4 if self is StateDtype.FP32 else 2


@dataclass(frozen=True, slots=True)
class Layout:
    """Tensor, pipeline, data, expert and decode-context parallelism.

    Attributes:
        ep: whether routed experts are spread whole over the ranks instead of being cut.
        dcp: over how many of the tensor-parallel ranks the MLA cache's tokens are spread.
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: bool = False
    dcp: int = 1

    def __post_init__(self) -> None:
        for name in ("tp", "pp", "dp", "dcp"):
            if getattr(self, name) < 1:
                raise UsageError(f"must be at least 1, not {getattr(self, name)}", where=name)
        if self.tp % self.dcp:
            raise UsageError(f"{self.dcp} does not divide the tensor-parallel size {self.tp}", where="dcp")

    @property
    def gpus(self) -> int:
        """GPUs in use."""
        return self.tp * self.pp * self.dp

    @property
    def expert_ranks(self) -> int:
        """Ranks of one stage that share the routed experts: data-parallel replicas share them too."""
        return self.tp * self.dp

    def describe(self) -> str:
        """The layout in a few characters, as people write it: TP8 x PP2, TP16 + EP, TP8 + DCP8."""
        sizes = [f"TP{self.tp}"]
        sizes += [f"{name}{size}" for name, size in (("PP", self.pp), ("DP", self.dp)) if size > 1]
        more = (["EP"] if self.ep else []) + ([f"DCP{self.dcp}"] if self.dcp > 1 else [])
        return " + ".join([" x ".join(sizes), *more])


@dataclass(frozen=True, slots=True)
class Workload:
    """What the endpoint must be able to do, and the engine's settings that cost memory.

    Attributes:
        context: longest request, prompt and answer together, in tokens.
        concurrency: requests in flight at once, over all data-parallel replicas (the engine's max-num-seqs).
        batched_tokens: tokens computed in one step; long prompts are cut into chunks of this.
        utilization: share of each GPU's memory that the engine may use (SGLang: mem-fraction-static).
        speculative_tokens: tokens a DSpark draft proposes per step; 0 is no draft.
        replay_ssm: verify drafts from one KDA state instead of one per proposed token.
        verifies: whether drafts are verified here; SGLang's prefill role loads a draft and keeps no states for it.
        vision: whether the vision tower is loaded.
        state_slots: SGLang's KDA state slots per running request; by default 5 with prefix caching (extra_buffer),
            1 without. no_buffer is 3, extra_buffer_lazy 4.
        state_ratio: SGLang's mamba-full-memory-ratio; by default the one that balances the pools for this workload.
    """

    context: int = 196_608
    concurrency: int = 32
    kv_dtype: KvDtype = KvDtype.FP8
    prefix_caching: bool = True
    batched_tokens: int = 8_192
    utilization: float = 0.90
    state_dtype: StateDtype = StateDtype.FP32
    speculative_tokens: int = 0
    replay_ssm: bool = False
    vision: bool = True
    state_slots: int | None = None
    state_ratio: float | None = None
    verifies: bool = True

    def __post_init__(self) -> None:
        for name in ("context", "concurrency", "batched_tokens"):
            if getattr(self, name) < 1:
                raise UsageError(f"must be at least 1, not {getattr(self, name):,}", where=name)
        if not 0 < self.utilization <= 1:
            raise UsageError(f"must be above 0 and at most 1, not {self.utilization}", where="utilization")
        if self.speculative_tokens < 0:
            raise UsageError(f"must be at least 0, not {self.speculative_tokens}", where="speculative_tokens")
        if self.state_slots is not None and not 1 <= self.state_slots <= 8:
            raise UsageError(f"must be 1 to 8 slots per request, not {self.state_slots}", where="state_slots")
        if self.state_ratio is not None and not 0 < self.state_ratio < 1_000:
            raise UsageError(f"must be above 0 and under 1,000, not {self.state_ratio}", where="state_ratio")

    def per_replica(self, layout: Layout) -> int:
        """Requests that one data-parallel replica has in flight."""
        return -(-self.concurrency // layout.dp)
