"""Patch 1: with FP8 prefill attention, an MXFP8 kv_b_proj is given FP8 latents that it wants in BF16.

Context prefill up-projects cached latents through kv_b_proj. vLLM casts them to the weight's dtype first, which is
right for FP8 weights with one scale per tensor. An MXFP8 method quantises its own input, in blocks of 32.

nvidia/Kimi-K3-NVFP4 has no MXFP8 layers, so this patch only matters for other conversions of the model.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

from .edits import Edits, find, require_parameters
from .patch import CannotApplyError, Finding, Patch, Pull, Span, State

__all__ = ["Mxfp8KvB"]

MODELOPT = "vllm.model_executor.layers.quantization.modelopt"
MLA_ATTENTION = "vllm.model_executor.layers.attention.mla_attention"


class Mxfp8KvB(Patch):
    """MXFP8 kv_b_proj takes the model's dtype."""

    number: ClassVar[int] = 1
    switch: ClassVar[str] = "KIMI_K3_MXFP8_KV_B_INPUT"
    title: ClassVar[str] = "MXFP8 kv_b_proj input"
    line: ClassVar[str] = "Kimi-K3 runtime patch: restored MXFP8 kv_b_proj input to the model dtype"
    knowledge: ClassVar[tuple[Span, ...]] = (
        Span("0.27.0", "0.33.0", State.APPLIED, "matters for MXFP8 checkpoints only"),
    )
    upstream: ClassVar[tuple[Pull, ...]] = ()
    retires: ClassVar[str] = "when vLLM asks the MXFP8 method for its input dtype, as it does for FP8_PB_WO"

    def needed(self) -> Finding:
        """Hand a latent to a real MXFP8 method the way FP8 prefill does, and see what reaches its kernel."""
        import torch

        method, kernel_field = _mxfp8_method()
        seen: list[Any] = []

        def kernel(layer: Any, x: Any, bias: Any = None) -> Any:
            seen.append(x.dtype)
            return x.to(torch.bfloat16)

        spy = SimpleNamespace(apply_weights=lambda layer, x, bias=None: kernel(layer, x, bias), apply=kernel)
        setattr(method, kernel_field, spy)
        weight = torch.zeros(32, 32, dtype=torch.float8_e4m3fn)
        scale = torch.zeros(32, 1, dtype=torch.uint8)
        layer = SimpleNamespace(
            weight=weight,
            weight_scale=scale,
            params_dtype=torch.bfloat16,
            orig_dtype=torch.bfloat16,
            quant_method=method,
            output_size_per_partition=32,
            input_size_per_partition=32,
        )
        dtype = weight.dtype  # 0.27 casts to it in place, inside a function too large to call here
        attention = find(MLA_ATTENTION)
        if hasattr(attention, "_get_kv_b_proj_input_dtype"):
            dtype = attention._get_kv_b_proj_input_dtype(layer, True)
        latent = torch.zeros(1, 32, dtype=torch.bfloat16)
        method.apply(layer, latent if dtype is None else latent.to(dtype))
        if not seen:
            raise CannotApplyError("the MXFP8 method did not call the kernel that the probe gave it")
        if seen[-1] == torch.float8_e4m3fn:
            return Finding(True, "the MXFP8 kernel gets FP8 latents")
        return Finding(False, "the MXFP8 kernel gets the model dtype")

    def apply(self, edits: Edits) -> None:
        """Ask for the model's dtype where vLLM asks, and cast what still comes as FP8 in the method itself."""
        cls = _method_class()
        require_parameters(cls.apply, "layer", "x", "bias")
        original = cls.apply

        def apply_in_model_dtype(self: Any, layer: Any, x: Any, bias: Any = None) -> Any:
            if _is_mxfp8(self) and x.dtype.itemsize == 1:
                x = x.to(getattr(layer, "params_dtype", None) or self.out_dtype)
            return original(self, layer, x, bias)

        edits.replace(cls, "apply", apply_in_model_dtype)
        if hasattr(find(MLA_ATTENTION), "_get_kv_b_proj_input_dtype"):
            edits.replace_function(MLA_ATTENTION, "_get_kv_b_proj_input_dtype", _asking_the_method)


def _asking_the_method(original: Callable[..., Any]) -> Callable[..., Any]:
    require_parameters(original, "kv_b_proj", "use_fp8_prefill")

    def input_dtype(kv_b_proj: Any, use_fp8_prefill: bool) -> Any:
        if _is_mxfp8(getattr(kv_b_proj, "quant_method", None)):
            return kv_b_proj.params_dtype
        return original(kv_b_proj, use_fp8_prefill)

    return input_dtype


def _method_class() -> Any:
    """The class whose `apply` MXFP8 layers call: their own up to 0.29, ModelOpt's generic one later."""
    modelopt = find(MODELOPT)
    if hasattr(modelopt, "ModelOptMxFp8LinearMethod"):
        return modelopt.ModelOptMxFp8LinearMethod
    return find(MODELOPT, "ModelOptLinearMethod")


def _is_mxfp8(method: Any) -> bool:
    cls = _method_class()
    if not isinstance(method, cls):
        return False
    spec = getattr(method, "spec", None)
    return spec is None or spec.weight == find(MODELOPT, "kMxfp8Static")


def _mxfp8_method() -> tuple[Any, str]:
    """A real MXFP8 method, and the name of the field that holds its kernel."""
    cls = _method_class()
    if hasattr(find(MODELOPT), "ModelOptMxFp8LinearMethod"):
        method = object.__new__(cls)
        import torch

        method.out_dtype = torch.bfloat16
        for field in ("kernel", "mxfp8_linear_op", "mxfp8_linear", "mxfp8_linear_kernel"):
            if field in cls.__init__.__code__.co_names + cls.create_weights.__code__.co_names:
                return method, field
        raise CannotApplyError(f"{cls.__name__} keeps its kernel in no field that the probe knows")
    spec, ctx, scheme = find(MODELOPT, "resolve")("MXFP8", None, "probe")
    return cls(spec, ctx, scheme), "kernel"
