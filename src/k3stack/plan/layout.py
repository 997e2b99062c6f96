"""How a model is spread over GPUs, and what it is asked to do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from k3stack.errors import UsageError

__all__ = ["KvDtype", "Layout", "Workload"]


class KvDtype(StrEnum):
    """How the MLA cache is stored. Moonshot's checkpoint has no cache scales, so fp8 uses scale 1.0."""

    BF16 = "bf16"
    FP8 = "fp8"

    @property
    def size_bytes(self) -> int:
        """Bytes of one cached element."""
        return 2 if self is KvDtype.BF16 else 1


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


@dataclass(frozen=True, slots=True)
class Workload:
    """What the endpoint must be able to do.

    Attributes:
        context: longest request, prompt and answer together, in tokens.
        concurrency: requests in flight at once (the engine's max-num-seqs).
        batched_tokens: tokens computed in one step; long prompts are cut into chunks of this.
        utilization: share of each GPU's memory that the engine may use.
    """

    context: int = 196_608
    concurrency: int = 32
    kv_dtype: KvDtype = KvDtype.FP8
    prefix_caching: bool = True
    batched_tokens: int = 8_192
    utilization: float = 0.90

    def __post_init__(self) -> None:
        for name in ("context", "concurrency", "batched_tokens"):
            if getattr(self, name) < 1:
                raise UsageError(f"must be at least 1, not {getattr(self, name):,}", where=name)
        if not 0 < self.utilization <= 1:
            raise UsageError(f"must be above 0 and at most 1, not {self.utilization}", where="utilization")
