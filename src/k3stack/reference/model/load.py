"""From a folder to a model."""

from __future__ import annotations

from pathlib import Path

import torch

from k3stack.errors import ConfigError, UnavailableError, UsageError
from k3stack.reference.model.arithmetic import Arithmetic
from k3stack.reference.model.draft import Draft
from k3stack.reference.model.k3 import K3
from k3stack.reference.model.kernels import installed
from k3stack.reference.model.store import Store
from k3stack.spec.config import read_config
from k3stack.spec.draft import DraftSpec, draft_families, shared_families
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
    low_rank_epsilon: float | None = None,
) -> K3:
    """Read a checkpoint in any scheme.

    Args:
        folder: config.json and the safetensors files.
        dtype: what to compute in; norms, gates, routing and states are float32 always.
        keep_quantised: quantised weights stay as stored and are decoded at every use (less memory, slower).
        device: where to put it, such as cpu or cuda. There a BF16 model that is not steady uses fla's KDA kernel for
            prefill, if fla-core is installed.
        draft: the folder of a DSpark draft, or None.
        steady: a sequence's numbers do not depend on the rest of the batch, nor on where its prompt is cut; prefill
            is slower (see `Arithmetic`).
        low_rank_epsilon: of the norms inside MLA; by default config.json's, as engines do (Moonshot's code: 1e-6).

    Raises:
        ConfigError: config.json is not one of a K3.
        CheckpointError: the files are broken, or hold other tensors than config.json says.
        UsageError: a dtype that the model cannot compute in.
        UnavailableError: the device is not there.
    """
    folder = Path(folder)
    if dtype not in (torch.float32, torch.bfloat16, torch.float64):
        raise UsageError(f"cannot compute in {dtype}", where="dtype", hint="Choose float32 or bfloat16.")
    _require(device)
    spec = ModelSpec.from_config(folder)
    config = read_config(folder / "config.json")
    on_gpu = torch.device(device).type == "cuda"
    kernels = not steady and on_gpu and dtype is torch.bfloat16 and installed()
    arithmetic = Arithmetic(dtype, steady, kernels, low_rank_epsilon)
    with torch.no_grad():
        store = Store(folder, families(spec), arithmetic, device, keep_quantised)
        model = K3(spec, config, store)
        store.finish()
        if draft is not None:
            model.draft = _draft(Path(draft), model, device)
    return model


def _require(device: str) -> None:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        what = f"the device {device} is not there ({str(error).splitlines()[0][:200]})"
        hint = "Give cpu, or a GPU that `k3 hardware` shows, as in cuda or cuda:1."
        raise UnavailableError(what, where="--device", hint=hint) from None


def _draft(folder: Path, model: K3, device: str) -> Draft:
    """Read a draft and see that it fits the target."""
    spec = DraftSpec.from_config(folder)
    target = model.spec
    for field, its, ours in (
        ("vocab_size", spec.vocab, target.vocab),
        ("target_hidden_size", spec.target_hidden, target.hidden),
        ("hidden_size", spec.hidden, target.hidden),
    ):
        if its != ours:
            raise ConfigError(f"is {its}, but the target has {ours}", where=f"{folder / 'config.json'}: {field}")
    if spec.captures[-1] >= len(target.layers):
        where = f"{folder / 'config.json'}: target_layer_ids"
        raise ConfigError(f"names layer {spec.captures[-1]}, but the target has {len(target.layers)}", where=where)
    store = Store(folder, draft_families(spec), model.arithmetic, device, False, optional=shared_families(spec))
    made = Draft(spec, store, model.embedding, model.head)
    store.finish()
    return made
