"""Runs in vLLM's Python: how much shared memory its MLA decode kernel needs on a GPU, without one.

Reads a JSON list of {"architecture": 120, "cache": "bf16"}; writes a list of bytes. The kernel is compiled by Triton
for that architecture with the sizes and options vLLM itself launches it with, for K3's latent of 512 and 64.
"""

from __future__ import annotations

import contextlib
import json
import sys
from typing import Any
from unittest import mock

import torch  # type: ignore[import-not-found, unused-ignore]

CACHES = {"bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn}
NAMES = {torch.bfloat16: "bf16", torch.float32: "fp32", torch.int32: "i32", torch.float8_e4m3fn: "fp8e4nv"}


class Recorder:
    """Stands for the kernel, and keeps what it would have been launched with."""

    launched: tuple[tuple[Any, ...], dict[str, Any]]

    def __getitem__(self, grid: Any) -> Any:
        def launch(*given: Any, **named: Any) -> None:
            self.launched = given, named

        return launch


def main() -> None:
    out = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        answers = [shared_bytes(**case) for case in json.load(sys.stdin)]
    json.dump(answers, out)


def shared_bytes(architecture: int, cache: str) -> int:
    """The kernel's shared memory; a block may have 101,376 bytes on compute capability 12."""
    import vllm.platforms
    from vllm.platforms.cuda import NonNvmlCudaPlatform

    vllm.platforms._current_platform = NonNvmlCudaPlatform()
    import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]
    from triton.backends.compiler import GPUTarget  # type: ignore[import-not-found, import-untyped, unused-ignore]
    from triton.compiler import ASTSource  # type: ignore[import-not-found, import-untyped, unused-ignore]
    from vllm.v1.attention.ops import triton_decode_attention as decode

    kernel, recorder = decode._fwd_grouped_kernel_stage1, Recorder()
    with mock.patch.object(decode, "_fwd_grouped_kernel_stage1", recorder):
        launch(decode, CACHES[cache])
    given, named = recorder.launched
    values = dict(zip(kernel.arg_names, given, strict=False)) | named
    options = {name: values.pop(name) for name in ("num_warps", "num_stages")}
    fixed = {one.name for one in kernel.params if one.is_constexpr}
    signature = {name: "constexpr" if name in fixed else kind(values[name]) for name in kernel.arg_names}
    aligned = {
        (place,): [["tt.divisibility", 16]]
        for place, name in enumerate(kernel.arg_names)
        if name not in fixed and (isinstance(values[name], torch.Tensor) or values[name] % 16 == 0)
    }
    source = ASTSource(kernel, signature, {name: values[name] for name in fixed}, aligned)
    return int(triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=options).metadata.shared)


def launch(decode: Any, cache: torch.dtype, heads: int = 12, page: int = 128) -> None:
    """Ask for one step over four requests, as the MLA layers do."""
    latents = torch.empty(4, page, 1, 576, dtype=cache, device="meta")
    decode._decode_grouped_att_m_fwd(
        torch.empty(4, heads, 576, dtype=torch.bfloat16, device="meta"),
        latents,
        latents[..., :512],
        torch.empty(4, heads, 4, 513, dtype=torch.float32, device="meta"),
        torch.empty(4, 8, dtype=torch.int32, device="meta"),
        torch.empty(4, dtype=torch.int32, device="meta"),
        4,
        0.1,
        page,
        0.0,
        torch.ones(1, device="meta"),
        torch.ones(1, device="meta"),
        is_mla=True,
    )


def kind(value: Any) -> str:
    """A value's type in a kernel's signature."""
    if isinstance(value, torch.Tensor):
        return "*" + NAMES[value.dtype]
    return "i32" if isinstance(value, int) else "fp32"


if __name__ == "__main__":
    main()
