"""Patch 3, optional: NVFP4 activations get one global scale per token in the TRT-LLM MoE kernel (vLLM up to 0.31).

The checkpoint ships 1.0 as the global input scale of every expert. That is fine for activations of ordinary size;
below an rms of about 0.01 their NVFP4 block scales run out of range and small tokens lose precision. The kernel
can scale each token by its own maximum; these releases have the argument and nothing that sets it.

Optional because it changes numerics that others have measured with the static scale. Only the monolithic TRT-LLM
path takes it: with expert parallelism vLLM refuses to start. From 0.32.0, set quantization_config.moe.activation
to "nvfp4_per_token" instead.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

from .edits import Edits, find, require_parameters
from .patch import Finding, Patch, Pull, Span, State

__all__ = ["PerTokenScales"]

MODELOPT = "vllm.model_executor.layers.quantization.modelopt"
ORACLE = "vllm.model_executor.layers.fused_moe.oracle.nvfp4"
MAKE = "make_nvfp4_moe_kernel"


class _Built(Exception):  # noqa: N818 - ends the construction once the probe has seen what it came for
    def __init__(self, per_token: bool) -> None:
        super().__init__("the experts were built")
        self.per_token = per_token


class PerTokenScales(Patch):
    """Per-token NVFP4 activation scales."""

    number: ClassVar[int] = 3
    switch: ClassVar[str] = "KIMI_K3_NVFP4_PER_TOKEN_ACTIVATION"
    title: ClassVar[str] = "per-token NVFP4 activation scales"
    line: ClassVar[str] = "Kimi-K3 runtime patch: enabled per-token NVFP4 activation scales for the TRTLLM MoE kernel"
    knowledge: ClassVar[tuple[Span, ...]] = (
        Span("0.27.0", "0.31.0", State.NOT_NEEDED, "optional: switch 1 turns it on"),
        Span("0.32.0", "0.33.0", State.NOT_NEEDED, "upstream since 0.32.0, as a setting"),
    )
    upstream: ClassVar[tuple[Pull, ...]] = (Pull("flashinfer#4486", "closed, NaN with 0.6.16.post4 and 0.6.17"),)
    retires: ClassVar[str] = "when 0.31 is no longer served"
    optional: ClassVar[bool] = True

    def needed(self) -> Finding:
        """Let ModelOpt's MoE method build its experts after loading, and see whether they are told to."""
        if _experts_are_per_token():
            return Finding(False, "vLLM has a setting for it")
        return Finding(True, "the experts never get per-token scales")

    def apply(self, edits: Edits) -> None:
        """Pass the argument where ModelOpt's MoE method makes its kernel; other callers keep theirs."""
        original = find(MODELOPT, MAKE)
        require_parameters(original, "per_token_activation", "backend")

        def make_kernel(*args: Any, **kwargs: Any) -> Any:
            kwargs.setdefault("per_token_activation", True)
            return original(*args, **kwargs)

        edits.replace(find(MODELOPT), MAKE, make_kernel)


def _experts_are_per_token() -> bool:
    """Run the real post-load step of ModelOpt's NVFP4 MoE method on one expert, up to the experts' constructor."""
    import torch

    cls = find(MODELOPT, "ModelOptNvFp4FusedMoE")
    oracle = find(ORACLE)
    standard = find("vllm.model_executor.layers.fused_moe.modular_kernel", "FusedMoEActivationFormat").Standard

    class Experts:
        def __init__(self, per_token_activation: bool = False, **_: Any) -> None:
            raise _Built(per_token_activation)

    method = object.__new__(cls)
    method.moe = SimpleNamespace(is_act_and_mul=True, in_dtype=torch.bfloat16)
    method.nvfp4_backend = oracle.NvFp4MoeBackend.FLASHINFER_TRTLLM
    method.experts_cls, method.use_a16, method.per_token_activation = Experts, False, True
    method.get_fused_moe_quant_config = lambda layer: None
    layer: Any = torch.nn.Module()
    for name in ("w13_weight", "w13_weight_scale", "w2_weight", "w2_weight_scale", "w13_input_scale"):
        setattr(layer, name, torch.nn.Parameter(torch.ones(1), requires_grad=False))
    layer.w13_weight_scale_2 = torch.nn.Parameter(torch.ones(1, 2), requires_grad=False)
    for name in ("w2_weight_scale_2", "w2_input_scale"):
        setattr(layer, name, torch.nn.Parameter(torch.ones(1), requires_grad=False))
    layer._expert_routing_tables = lambda: None
    stand_in = SimpleNamespace(activation_format=standard, max_num_tokens_per_rank=lambda: 1)
    edits = Edits()
    try:
        edits.replace(find(MODELOPT), "convert_to_nvfp4_moe_kernel_format", lambda **_: (torch.ones(1),) * 8)
        edits.replace(oracle, "maybe_make_prepare_finalize", lambda **_: stand_in)
        method.process_weights_after_loading(layer)
    except _Built as built:
        return built.per_token
    finally:
        edits.undo()
    raise RuntimeError("the MoE method built no experts")
