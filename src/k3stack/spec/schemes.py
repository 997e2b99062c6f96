"""Schemes: how a checkpoint stores each kind of weight matrix, and how config.json declares it.

    scheme         routed experts   attention      shared experts, dense layer, latent projections   rest
    mxfp4          MXFP4 (CT)       BF16           BF16                                              as is
    nvfp4-mixed    NVFP4 (ModelOpt) FP8 128x128    BF16                                              as is
    nvfp4-experts  NVFP4 (CT)       BF16           BF16                                              as is
    fp8-block      FP8 128x128 (CT) BF16           FP8 128x128 (CT)                                  as is
    bf16           BF16             BF16           BF16                                              as is

CT is compressed-tensors' naming, ModelOpt NVIDIA Model Optimizer's. "As is" means the dtype of the BF16 model: norms,
router, embeddings, vision in BF16, convolutions and a few vectors in F32.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from k3stack.spec.dtypes import DType

__all__ = ["Encoding", "Part", "Scheme"]


@dataclass(frozen=True, slots=True)
class Part:
    """One stored tensor of a weight matrix, relative to the matrix's module."""

    suffix: str
    shape: tuple[int, ...]
    dtype: DType


class Encoding(StrEnum):
    """How one weight matrix [out, in] becomes stored tensors."""

    BF16 = "bf16"
    MXFP4 = "mxfp4"
    NVFP4_MODELOPT = "nvfp4-modelopt"
    NVFP4_CT = "nvfp4-compressed-tensors"
    FP8_BLOCK_MODELOPT = "fp8-128x128-modelopt"
    FP8_BLOCK_CT = "fp8-128x128-compressed-tensors"

    def parts(self, out: int, into: int) -> Iterator[Part]:
        """The tensors that hold a matrix of shape [out, into]; packed ones hold two elements a byte."""
        rows, columns = -(-out // 128), -(-into // 128)
        match self:
            case Encoding.BF16:
                yield Part("weight", (out, into), DType.BF16)
            case Encoding.MXFP4:  # groups of 32 along `into`, E8M0 scales kept as bytes
                yield Part("weight_packed", (out, into // 2), DType.U8)
                yield Part("weight_scale", (out, into // 32), DType.U8)
            case Encoding.NVFP4_MODELOPT:  # groups of 16, two levels of scale, a constant activation scale
                yield Part("weight", (out, into // 2), DType.U8)
                yield Part("weight_scale", (out, into // 16), DType.F8_E4M3)
                yield Part("weight_scale_2", (), DType.F32)
                yield Part("input_scale", (), DType.F32)
            case Encoding.NVFP4_CT:
                yield Part("weight_packed", (out, into // 2), DType.U8)
                yield Part("weight_scale", (out, into // 16), DType.F8_E4M3)
                yield Part("weight_global_scale", (1,), DType.F32)
                yield Part("input_global_scale", (1,), DType.F32)
            case Encoding.FP8_BLOCK_MODELOPT:  # edge tiles are padded to 128 for the scale, the weight is not
                yield Part("weight", (out, into), DType.F8_E4M3)
                yield Part("weight_scale", (rows, 1, columns, 1), DType.F32)
            case Encoding.FP8_BLOCK_CT:
                yield Part("weight", (out, into), DType.F8_E4M3)
                yield Part("weight_scale", (rows, columns), DType.BF16)


class Scheme(StrEnum):
    """A way to store the whole model; see the table at the top of this file."""

    MXFP4 = "mxfp4"
    NVFP4_MIXED = "nvfp4-mixed"
    NVFP4_EXPERTS = "nvfp4-experts"
    FP8_BLOCK = "fp8-block"
    BF16 = "bf16"

    @property
    def expert(self) -> Encoding:
        """How w1, w2 and w3 of every routed expert are stored."""
        return _EXPERT[self]

    @property
    def attention(self) -> Encoding:
        """How the projections of KDA and MLA are stored."""
        return Encoding.FP8_BLOCK_MODELOPT if self is Scheme.NVFP4_MIXED else Encoding.BF16

    @property
    def other_linear(self) -> Encoding:
        """How shared experts, the dense layer's MLP and the latent projections are stored."""
        return Encoding.FP8_BLOCK_CT if self is Scheme.FP8_BLOCK else Encoding.BF16


_EXPERT = {
    Scheme.MXFP4: Encoding.MXFP4,
    Scheme.NVFP4_MIXED: Encoding.NVFP4_MODELOPT,
    Scheme.NVFP4_EXPERTS: Encoding.NVFP4_CT,
    Scheme.FP8_BLOCK: Encoding.FP8_BLOCK_CT,
    Scheme.BF16: Encoding.BF16,
}
