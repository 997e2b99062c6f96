"""From a folder to a model."""

from __future__ import annotations

from pathlib import Path

import torch

from k3stack.errors import UsageError
from k3stack.reference.model.arithmetic import Arithmetic
from k3stack.reference.model.k3 import K3
from k3stack.reference.model.store import Store
from k3stack.spec.config import read_config
from k3stack.spec.model import ModelSpec
from k3stack.spec.tensors import families

__all__ = ["load_model"]


def load_model(
    folder: str | Path,
    *,
    dtype: torch.dtype = torch.float32,
    keep_quantised: bool = False,
    device: str = "cpu",
    draft: Path | None = None,
    steady: bool = True,
) -> K3:
    """Read a checkpoint in any scheme.

    Args:
        folder: config.json and the safetensors files.
        dtype: what to compute in; norms, gates, routing and states are float32 always.
        keep_quantised: quantised weights stay as stored and are decoded at every use (less memory, slower).
        device: where to put it, such as cpu or cuda.
        draft: the folder of a DSpark draft, or None.
        steady: a sequence's numbers do not depend on the rest of the batch, nor on where its prompt is cut; prefill
            is slower (see `Arithmetic`).

    Raises:
        ConfigError: config.json is not one of a K3.
        CheckpointError: the files are broken, or hold other tensors than config.json says.
        UsageError: a dtype that the model cannot compute in.
    """
    folder = Path(folder)
    if dtype not in (torch.float32, torch.bfloat16, torch.float64):
        raise UsageError(f"cannot compute in {dtype}", where="dtype", hint="Choose float32 or bfloat16.")
    spec = ModelSpec.from_config(folder)
    text = read_config(folder / "config.json").text_config
    with torch.no_grad():
        store = Store(folder, families(spec), Arithmetic(dtype, steady), device, keep_quantised)
        model = K3(spec, text, store)
    return model
