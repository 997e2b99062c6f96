"""Patch 5: ModelOpt's FP8_PB_WO attention weights do not load, or load wrongly (vLLM 0.27 and 0.28).

FP8_PB_WO is E4M3 with one float32 scale per 128 x 128 block. Releases up to 0.28 know the format as a whole-model
scheme only, and not for projections whose rows are no multiple of 128. Six parts, applied together or not at all:

1. dispatch: the mixed-precision configuration gives such layers their method instead of none;
2. kv_b input: FP8 latents go back to the model's dtype, because the method quantises its own input;
3. post-load hook: the kernel's own weight preparation runs, without which DeepGEMM reads the wrong layout;
4. padding: fused projections get zero rows up to a multiple of 128, and their output is trimmed;
5. shared scale: b_proj has 96 rows and so one scale row, which every tensor-parallel rank needs;
6. kv_b cache: MLA decode absorbs kv_b_proj, dequantised before the kernel repacks it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from .edits import Edits, find, require_parameters
from .patch import CannotApplyError, Finding, Patch, Pull, Span, State
from .projections import SMALL, Geometry, fused_names

__all__ = ["Fp8PbWo"]

LINEAR = "vllm.model_executor.layers.linear"
MODELOPT = "vllm.model_executor.layers.quantization.modelopt"
METHOD = "ModelOptFp8PbWoLinearMethod"
MLA_ATTENTION = "vllm.model_executor.layers.attention.mla_attention"
QUANT_UTILS = "vllm.model_executor.layers.quantization.utils.quant_utils"
PARAMETER = "vllm.model_executor.parameter"
KDA = "vllm.models.kimi_k3.nvidia.kda"
BLOCK = 128
CACHE = "_k3_exact_weight"


class Fp8PbWo(Patch):
    """Block-FP8 attention weights in mixed-precision checkpoints."""

    number: ClassVar[int] = 5
    switch: ClassVar[str] = "KIMI_K3_FP8_PB"
    title: ClassVar[str] = "FP8_PB_WO attention weights"
    line: ClassVar[str] = (
        "Kimi-K3 runtime patch: enabled mixed FP8_PB_WO dispatch, FP8 kv_b_proj input restoration, "
        "and 128-row padding for fused KDA/MLA projections"
    )
    knowledge: ClassVar[tuple[Span, ...]] = (
        Span("0.27.0", "0.28.0", State.APPLIED, "no FP8_PB_WO in mixed precision"),
        Span("0.29.0", "0.33.0", State.NOT_NEEDED, "upstream since 0.29.0"),
    )
    upstream: ClassVar[tuple[Pull, ...]] = (
        Pull("vllm#53132", "merged"),
        Pull("vllm#55242", "merged"),
        Pull("vllm#52405", "open"),
        Pull("vllm#52406", "open"),
        Pull("vllm#50617", "open"),
    )
    retires: ClassVar[str] = "when 0.28 is no longer served"

    def needed(self) -> Finding:
        """Load small block-FP8 projections through vLLM's loaders, and call kv_b_proj as FP8 prefill does."""
        return self.compare(SMALL, (1, 2, 4))

    def compare(self, size: Geometry, degrees: tuple[int, ...]) -> Finding:
        """The finding at a geometry, for the last rank of each tensor-parallel degree."""
        from .bench import bench

        for tp in degrees:
            with bench(tp, tp - 1):
                problem = _first_problem(size, tp)
            if problem:
                return Finding(True, f"TP {tp}: {problem}")
        return Finding(False, "FP8_PB_WO projections load exactly")

    def verify(self) -> Finding:
        """The probe, and part 6: the absorbed weight is the checkpoint's even after the kernel repacked."""
        from .bench import bench
        from .projections import kv_b

        finding = self.needed()
        if finding.needed:
            return finding
        with bench(2, 1, repacks=True):
            layer, expected = kv_b(SMALL, 2, 1)
            absorbed = find(QUANT_UTILS, "get_and_maybe_dequant_weights")(layer, out_dtype=expected.dtype)
        if not bool((absorbed == expected).all()):
            return Finding(True, "the absorbed kv_b_proj is not the checkpoint's")
        return finding

    def apply(self, edits: Edits) -> None:
        """All six parts."""
        method = find(MODELOPT, METHOD)
        _dispatch(edits, method)
        _restore_kv_b_input(edits, method)
        _load_run_and_trim(edits, method)
        _share_single_scale_rows(edits)
        _absorb_exact_weight(edits)


def _first_problem(size: Geometry, tp: int) -> str:
    """What is wrong with block-FP8 layers on the last rank, or nothing."""
    import torch

    from .projections import kda, kv_b, latents

    rank = tp - 1
    try:
        layer, expected = kv_b(size, tp, rank)
        if layer.weight.dtype != torch.float8_e4m3fn:
            return "kv_b_proj is not loaded as FP8"
        kernel = _kernel_of(layer.quant_method)
        if kernel.hooks_run == 0:
            return "the kernel's post-load hook does not run"
        absorbed = find(QUANT_UTILS, "get_and_maybe_dequant_weights")(layer, out_dtype=torch.bfloat16)
        if not torch.equal(absorbed, expected):
            return "kv_b_proj differs from the checkpoint"
        if _prefill_input_dtype(layer, kernel) == torch.float8_e4m3fn:
            return "kv_b_proj gets FP8 latents, which it would quantise again"
        wrong = kda(size, tp, rank)
        if not wrong and any(name == "fused_qkv_a_proj" for name in fused_names()):
            wrong = latents(size)
    except CannotApplyError:
        raise
    except Exception as error:  # an engine that cannot even build the layer is what this patch is for
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
    return str(wrong[0]) if wrong else ""


def _kernel_of(method: Any) -> Any:
    return method.kernel if hasattr(method, "kernel") else method.w8a8_block_fp8_linear


def _prefill_input_dtype(layer: Any, kernel: Any) -> Any:
    """The dtype that reaches kv_b_proj's kernel when FP8 prefill attention up-projects cached latents."""
    import torch

    attention = find(MLA_ATTENTION)
    if hasattr(attention, "_get_kv_b_proj_input_dtype"):
        dtype = attention._get_kv_b_proj_input_dtype(layer, True)
    else:
        dtype = layer.weight.dtype  # 0.27 casts to it in place, inside a function too large to call here
    latent = torch.zeros(1, layer.weight.shape[1], dtype=torch.bfloat16)
    layer(latent if dtype is None else latent.to(dtype))
    return kernel.input_dtypes[-1]


def _dispatch(edits: Edits, method: Any) -> None:
    config = find(MODELOPT, "ModelOptMixedPrecisionConfig")
    linear = find(LINEAR, "LinearBase")
    require_parameters(config.get_quant_method, "layer", "prefix")
    for name in ("is_layer_excluded", "_resolve_quant_algo"):
        require_parameters(getattr(config, name, _gone(config, name)), "prefix")
    original = config.get_quant_method

    def get_quant_method(self: Any, layer: Any, prefix: str) -> Any:
        ours = isinstance(layer, linear) and not self.is_layer_excluded(prefix)
        if ours and self._resolve_quant_algo(prefix) == "FP8_PB_WO":
            return method(self.fp8_config)
        return original(self, layer, prefix)

    edits.replace(config, "get_quant_method", get_quant_method)


def _gone(owner: Any, name: str) -> Callable[[], None]:
    def gone() -> None:
        """Stands for a method that is not there, so that the signature check names it."""

    gone.__module__, gone.__qualname__ = owner.__module__, f"{owner.__qualname__}.{name}"
    return gone


def _restore_kv_b_input(edits: Edits, method: Any) -> None:
    """Ask for latents in the model's dtype where vLLM asks (0.28); `_load_run_and_trim` casts FP8 ones back."""
    if not hasattr(find(MLA_ATTENTION), "_get_kv_b_proj_input_dtype"):
        return

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        require_parameters(original, "kv_b_proj", "use_fp8_prefill")

        def input_dtype(kv_b_proj: Any, use_fp8_prefill: bool) -> Any:
            own = getattr(kv_b_proj, "quant_method", None)
            return own.input_dtype if isinstance(own, method) else original(kv_b_proj, use_fp8_prefill)

        return input_dtype

    edits.replace_function(MLA_ATTENTION, "_get_kv_b_proj_input_dtype", wrap)


def _load_run_and_trim(edits: Edits, method: Any) -> None:
    import torch

    merged = find(LINEAR, "MergedColumnParallelLinear")
    create, process, apply = method.create_weights, method.process_weights_after_loading, method.apply
    require_parameters(create, "layer", "input_size_per_partition", "output_partition_sizes")
    require_parameters(apply, "layer", "x", "bias")

    def create_weights(
        self: Any,
        layer: Any,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        *args: Any,
        **kwargs: Any,
    ) -> None:
        rows = sum(output_partition_sizes)
        padding = -rows % BLOCK if isinstance(layer, merged) else 0
        sizes = [*output_partition_sizes[:-1], output_partition_sizes[-1] + padding]
        create(self, layer, input_size_per_partition, sizes, *args, **kwargs)
        if padding:
            layer.weight.data[rows:].zero_()
            layer.logical_widths, layer.output_size_per_partition = output_partition_sizes, rows
        self.live_rows = rows if padding else None

    def process_weights_after_loading(self: Any, layer: Any) -> None:
        process(self, layer)
        if str(getattr(layer, "prefix", "")).endswith("kv_b_proj"):
            dequantise = find(QUANT_UTILS, "scaled_dequantize")
            group = find(QUANT_UTILS, "GroupShape")(BLOCK, BLOCK)
            exact = dequantise(layer.weight.data, layer.weight_scale.data, group, torch.bfloat16)
            setattr(layer, CACHE, exact)
        if not hasattr(self, "fp8_linear"):  # with this attribute the original has run the hook itself
            self.w8a8_block_fp8_linear.process_weights_after_loading(layer)

    def apply_and_trim(self: Any, layer: Any, x: Any, bias: Any = None) -> Any:
        if x.dtype == torch.float8_e4m3fn:
            x = x.to(self.input_dtype)
        if self.live_rows is None:
            return apply(self, layer, x, bias)
        output = apply(self, layer, x, None)[..., : self.live_rows].contiguous()
        return output if bias is None else output.add_(bias)

    edits.replace(method, "create_weights", create_weights)
    edits.replace(method, "process_weights_after_loading", process_weights_after_loading)
    edits.replace(method, "apply", apply_and_trim)


def _share_single_scale_rows(edits: Edits) -> None:
    cls = find(KDA, "_KimiGDNMergedColumnParallelLinear")
    block_scale = find(PARAMETER, "BlockQuantScaleParameter")

    def sharing(original: Callable[..., Any]) -> Callable[..., Any]:
        require_parameters(original, "param", "loaded_weight", "loaded_shard_id")

        def load(self: Any, param: Any, loaded_weight: Any, loaded_shard_id: Any = None) -> None:
            if not isinstance(param, block_scale) or loaded_weight.shape[param.output_dim] != 1:
                original(self, param, loaded_weight, loaded_shard_id)
                return
            ranks = self.tp_rank, param.tp_rank
            self.tp_rank = param.tp_rank = 0
            try:
                original(self, param, loaded_weight, loaded_shard_id)
            finally:
                self.tp_rank, param.tp_rank = ranks

        return load

    for name in ("weight_loader", "weight_loader_v2"):
        edits.replace(cls, name, sharing(find(KDA, f"{cls.__name__}.{name}")))


def _absorb_exact_weight(edits: Edits) -> None:
    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        require_parameters(original, "layer", "out_dtype")

        def dequantised(layer: Any, *args: Any, **kwargs: Any) -> Any:
            exact = getattr(layer, CACHE, None)
            if exact is None:
                return original(layer, *args, **kwargs)
            delattr(layer, CACHE)  # asked for once, after loading; kept, it would cost a BF16 copy of each layer
            dtype = args[0] if args else kwargs.get("out_dtype")
            return exact if dtype is None else exact.to(dtype)

        return dequantised

    edits.replace_function(QUANT_UTILS, "get_and_maybe_dequant_weights", wrap)
