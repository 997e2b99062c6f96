"""Run by a Python that has nvidia-modelopt: quantise one expert and one attention matrix as its K3 converter does.

    PYTHON modelopt_quantize.py IN.npz OUT.npz TURNS

IN holds MXFP4 `packed` [out, in/2] and `scale` [out, in/32] bytes, `top` (the scale bytes' maximum that is shared by
gate and up), and BF16 `words` of an attention matrix. OUT gets `codes`, `scales` (E4M3 bytes), `scale_2`, `fp8`,
`fp8_scale`, and the seconds of each turn.
"""

import sys
import time
from typing import Any

import numpy as np
import torch
from modelopt.torch.quantization.qtensor.fp8_tensor import FP8QTensor
from modelopt.torch.quantization.qtensor.mxfp4_tensor import MXFP4QTensor
from modelopt.torch.quantization.qtensor.nvfp4_tensor import NVFP4QTensor, _cast_per_block_scale_to_fp8
from modelopt.torch.quantization.utils.numeric_utils import (
    mxfp4_to_nvfp4_global_amax,
    mxfp4_to_nvfp4_per_block_amax,
)


def expert(packed: Any, scale: Any, top: Any) -> tuple[Any, Any, Any]:
    """MXFP4 to NVFP4: decode to BF16, scales from exponents, search the codes again."""
    out, half = packed.shape
    source = MXFP4QTensor(torch.Size((out, half * 2)), torch.bfloat16, packed)
    weight = source.dequantize(scale=scale, block_sizes={-1: 32}, dtype=torch.bfloat16)
    largest, _ = mxfp4_to_nvfp4_global_amax(top)
    block_max = mxfp4_to_nvfp4_per_block_amax(packed.view(out, -1, 16), scale)
    block_scale = block_max / 6
    block_scale[block_scale == 0] = 1.0
    second = torch.tensor(largest, dtype=torch.float32) / (6 * 448)
    first = _cast_per_block_scale_to_fp8(block_scale, torch.tensor(largest, dtype=torch.float32) / 6)
    made, first, second = NVFP4QTensor.quantize(weight, 16, first, second)
    return made._quantized_data, first, second


def attention(words: Any) -> tuple[Any, Any]:
    """BF16 to FP8 with one scale per 128 x 128 tile."""
    made, scale = FP8QTensor.quantize(words, block_sizes={-1: 128, -2: 128})
    return made._quantized_data, scale.to(torch.float32)


def timed(call: Any, turns: int) -> tuple[list[float], Any]:
    """Seconds of each turn, and the last result."""
    taken = []
    for _ in range(turns):
        begin = time.perf_counter()
        result = call()
        taken.append(time.perf_counter() - begin)
    return taken, result


def main() -> None:
    """Read, quantise, write."""
    torch.set_num_threads(2)
    given = np.load(sys.argv[1])
    packed, scale, top = (torch.from_numpy(given[name]) for name in ("packed", "scale", "top"))
    words = torch.from_numpy(given["words"].view(np.int16)).view(torch.bfloat16)
    turns = int(sys.argv[3])
    expert_seconds, (codes, scales, scale_2) = timed(lambda: expert(packed, scale, top), turns)
    attention_seconds, (fp8, fp8_scale) = timed(lambda: attention(words), turns)
    np.savez(
        sys.argv[2],
        codes=codes.numpy(),
        scales=scales.view(torch.uint8).numpy(),
        scale_2=scale_2.numpy(),
        fp8=fp8.view(torch.uint8).numpy(),
        fp8_scale=fp8_scale.numpy(),
        expert_seconds=expert_seconds,
        attention_seconds=attention_seconds,
    )


if __name__ == "__main__":
    main()
