"""Run by a Python that has vLLM 0.33.0: build its K3 class on a CPU and load every tensor of a checkpoint into it.

    PYTHON load_in_vllm.py FOLDER RENDEZVOUS_FILE

Prints one JSON object: the model's class, parameters that were not loaded or loaded too much, parameters that still
hold the NaN they were filled with, and whether one expert's bytes arrived where they belong. Kernels are not run, so
the choice of kernels, which wants a GPU, is answered for it.
"""

import json
import sys
from pathlib import Path
from typing import Any

import vllm.platforms
from vllm.platforms.cpu import CpuPlatform

vllm.platforms._current_platform = CpuPlatform()

import torch  # noqa: E402
import vllm.model_executor.kernels.linear.scaled_mm.cpu as cpu_kernels  # noqa: E402
from safetensors import safe_open  # noqa: E402
from vllm.config import set_current_vllm_config  # noqa: E402
from vllm.distributed import init_distributed_environment, initialize_model_parallel  # noqa: E402
from vllm.engine.arg_utils import EngineArgs  # noqa: E402
from vllm.model_executor.layers.fused_moe.oracle.nvfp4 import NvFp4MoeBackend  # noqa: E402
from vllm.model_executor.layers.quantization import modelopt  # noqa: E402
from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors_moe import (  # noqa: E402
    compressed_tensors_moe_w4a4_nvfp4 as compressed_tensors,
)
from vllm.model_executor.model_loader.utils import initialize_model  # noqa: E402


class _NoStream:
    def __init__(self, *_: Any, **__: Any) -> None:
        pass


def stand_in_for_a_gpu() -> None:
    """Answer what is only asked for running kernels."""
    torch.cuda.Stream = _NoStream
    for kernel in vars(cpu_kernels).values():
        if isinstance(kernel, type) and hasattr(kernel, "is_supported"):
            kernel.is_supported = classmethod(lambda cls, *_, **__: (True, None))
    for module in (modelopt, compressed_tensors):
        module.select_nvfp4_moe_backend = lambda **_: (NvFp4MoeBackend.EMULATION, None)


def tensors(folder: str) -> Any:
    """Every tensor of the folder, as a loader yields them."""
    for path in sorted(Path(folder).glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118
                yield name, file.get_tensor(name)


def expert_arrived(model: Any, folder: str) -> bool:
    """Whether gate and up of one expert lie one after the other in vLLM's fused weight, byte for byte."""
    stored = dict(tensors(folder))
    stem = "language_model.model.layers.1.block_sparse_moe.experts.2"
    suffix = "weight" if f"{stem}.w1.weight" in stored else "weight_packed"
    gate, up = stored[f"{stem}.w1.{suffix}"], stored[f"{stem}.w3.{suffix}"]
    fused = next(p for n, p in model.named_parameters() if ".layers.1." in n and n.endswith(f"w13_{suffix}"))
    here = fused[2].view(torch.uint8)
    return bool(torch.equal(here[: len(gate)], gate) and torch.equal(here[len(gate) :], up))


def main() -> None:
    """Build, fill with NaN, load, report."""
    folder = sys.argv[1]
    stand_in_for_a_gpu()
    arguments = EngineArgs(
        model=folder, skip_tokenizer_init=True, enforce_eager=True, max_model_len=1024, dtype="bfloat16"
    )
    config = arguments.create_engine_config()
    with set_current_vllm_config(config):
        init_distributed_environment(1, 0, "file:///" + sys.argv[2], 0, "gloo")
        initialize_model_parallel(1, 1)
        model = initialize_model(config)
        for parameter in model.parameters():
            parameter.data.view(torch.uint8).fill_(0xFF)  # NaN in BF16, float32 and E4M3
        loaded = model.load_weights(tensors(folder))
    parameters = dict(model.named_parameters())
    untouched = [
        name for name, value in parameters.items() if value.numel() and bool((value.view(torch.uint8) == 0xFF).all())
    ]
    found = {
        "class": type(model).__name__,
        "parameters": len(parameters),
        "missing": sorted(parameters.keys() - loaded),
        "unexpected": sorted(loaded - parameters.keys()),
        "untouched": untouched,
        "expert_arrived": expert_arrived(model, folder),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
