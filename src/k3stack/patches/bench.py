"""A test bench for vLLM's linear layers: real classes, real loaders, any tensor-parallel rank, no GPU.

Inside `bench(tp, rank)` this process looks to vLLM's layers like rank `rank` of `tp`, and block-FP8 layers get
`ReferenceKernel` instead of a GPU kernel. Everything else is the engine's own code: which method a layer gets, how
parameters are allocated, where each loader puts its shard, what happens after loading and how the output is cut.

The probes run on this in a serving process too, with small shapes, so all that it changes it puts back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from .edits import Edits, find

__all__ = ["BLOCK", "ReferenceKernel", "bench", "block_fp8_config", "load", "product_with_identity"]

BLOCK = 128
"""Rows and columns of one FP8_PB_WO scale block."""

LINEAR = "vllm.model_executor.layers.linear"
PARAMETER = "vllm.model_executor.parameter"
MODELOPT = "vllm.model_executor.layers.quantization.modelopt"


class ReferenceKernel:
    """The contract that all of vLLM's block-FP8 kernels share: weight row n is scaled by scale row n // 128.

    `apply_weights` answers what the kernel would answer for the identity matrix, so a layer's output is its
    effective weight, transposed. `repacks` makes the post-load hook hide the scales in a layout of its own and
    round the weights once more, which is what DeepGEMM does on Blackwell.
    """

    supports_pre_processed_weights = False

    def __init__(self, repacks: bool = False) -> None:
        self.repacks = repacks
        self.hooks_run = 0
        self.input_dtypes: list[Any] = []
        self._packed: Any = None

    def input_quant_key(self) -> None:
        """The kernel quantises its own input."""
        return

    def process_weights_after_loading(self, layer: Any) -> None:
        """The post-load hook."""
        import torch

        self.hooks_run += 1
        if self.repacks:
            self._packed = self._dequantised(layer) * (1 + 2**-5)
            opaque = torch.zeros(layer.weight.shape[0], 1, dtype=torch.int32)
            layer.weight_scale = torch.nn.Parameter(opaque, requires_grad=False)

    def apply_weights(self, layer: Any, x: Any, bias: Any = None) -> Any:
        """[columns, rows]: the product of the identity with the layer's weight, as this kernel reads it."""
        self.input_dtypes.append(x.dtype)
        product = (self._dequantised(layer) if self._packed is None else self._packed).T
        return product if bias is None else product + bias

    def _dequantised(self, layer: Any) -> Any:
        import torch

        rows, columns = layer.weight.shape
        scale = layer.weight_scale.reshape(-1, columns // BLOCK)
        if scale.shape[0] * BLOCK < rows:
            raise RuntimeError(f"{scale.shape[0]} scale rows for {rows} weight rows")
        # Powers of two times E4M3 are exact in BF16, which halves the memory at K3's true sizes.
        wide = scale.to(torch.bfloat16).repeat_interleave(BLOCK, 0)[:rows].repeat_interleave(BLOCK, 1)
        return layer.weight.to(torch.bfloat16).mul_(wide)


@contextmanager
def bench(tp: int, rank: int, repacks: bool = False) -> Iterator[None]:
    """Make vLLM's linear layers build and load as rank `rank` of `tp`, on the CPU, with reference kernels."""
    import torch

    edits = Edits()
    try:
        for name in (LINEAR, PARAMETER):
            module = find(name)
            edits.replace(module, "get_tensor_model_parallel_world_size", lambda: tp)
            edits.replace(module, "get_tensor_model_parallel_rank", lambda: rank)
        modelopt = find(MODELOPT)
        edits.replace(modelopt, "init_fp8_linear_kernel", lambda **_: ReferenceKernel(repacks))
        # Releases up to 0.29 read the model's dtype from the current configuration; a probe has none.
        if hasattr(modelopt, "get_current_vllm_config"):
            model = SimpleNamespace(dtype=torch.bfloat16)
            edits.replace(modelopt, "get_current_vllm_config", lambda: SimpleNamespace(model_config=model))
        yield
    finally:
        edits.undo()


def block_fp8_config(modules: Mapping[str, str], fused: Mapping[str, list[str]]) -> Any:
    """vLLM's own mixed-precision configuration, as it reads it from a checkpoint.

    Args:
        modules: checkpoint module name -> ModelOpt algorithm, for example {"layer.q_proj": "FP8_PB_WO"}.
        fused: the model class's `packed_modules_mapping`.
    """
    config = find(MODELOPT, "ModelOptMixedPrecisionConfig").from_config(
        {
            "quant_method": "modelopt_mixed",
            "quant_algo": "MIXED_PRECISION",
            "producer": {"name": "modelopt", "version": "0.45.0"},
            "quantized_layers": {name: {"quant_algo": algorithm} for name, algorithm in modules.items()},
            "ignore": [],
        }
    )
    config.packed_modules_mapping = dict(fused)
    return config


def load(layer: Any, shard: int | None, weight: Any, scale: Any) -> None:
    """Load one checkpoint tensor and its scales through the layer's real loaders, as `load_weights` does.

    Raises:
        RuntimeError: the layer was built without block scales, so the checkpoint's have no place to go.
    """
    if not hasattr(layer, "weight_scale"):
        raise RuntimeError(f"{type(layer).__name__} is built without block scales")
    for parameter, tensor in ((layer.weight, weight), (layer.weight_scale, scale)):
        if shard is None:
            parameter.weight_loader(parameter, tensor)
        else:
            parameter.weight_loader(parameter, tensor, shard)


def product_with_identity(layer: Any) -> Any:
    """[rows, columns]: the layer's effective weight, what its output is made of."""
    import torch

    output, _ = layer(torch.eye(layer.weight.shape[1], dtype=torch.bfloat16))
    return output.T
