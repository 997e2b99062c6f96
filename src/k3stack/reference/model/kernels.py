"""fla's KDA kernel for prefill on a CUDA device, where fla-core is installed; nothing else of the model needs it.

The kernel multiplies in BF16 (or TF32), so it is used by BF16 models only.
Source: fla-core 0.6.0, fla/ops/kda/chunk.py.
"""

from __future__ import annotations

from importlib.util import find_spec

import torch
from torch import Tensor

__all__ = ["chunked_by_kernel", "installed"]


def installed() -> bool:
    """Whether fla-core is there; it is not imported."""
    return find_spec("fla") is not None


def chunked_by_kernel(
    S: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, dtype: torch.dtype = torch.bfloat16
) -> tuple[Tensor, Tensor]:
    """The same as `kda.recurrent`: n tokens of one sequence on a CUDA device, S [H, K, V] float32.

    q comes scaled and q and k normed, as the kernel's own norm has another epsilon in some releases.
    """
    from fla.ops.kda import chunk_kda

    made, state = chunk_kda(
        q[None].to(dtype),
        k[None].to(dtype),
        v[None].to(dtype),
        g[None],
        beta[None],
        scale=1.0,
        initial_state=S[None].contiguous(),
        output_final_state=True,
        safe_gate=True,  # g lies in (-5, 0)
    )
    return made[0].to(v.dtype), state[0]
