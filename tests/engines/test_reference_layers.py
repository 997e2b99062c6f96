"""The reference model's layers against the engines' own code, where that runs without a GPU.

Compared: vLLM's SiTU, routing, RMSNorm, YaRN rotation, AttnRes kernel (in Triton's interpreter), vision tower with
projector, and image sizes; fla's PyTorch forms of KDA and of its gate. Not compared here, for want of a form that runs
on a CPU: vLLM's MLA, MoE and KDA kernels. (fla's KDA kernel is compared on a GPU: tests/reference/model/test_cuda.py.)
"""

import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from k3stack.checkpoint.tiny import TinyShape, write_tiny
from k3stack.reference.model import load_model
from k3stack.reference.model.draft import inverse_frequencies
from k3stack.reference.model.functions import mix, rms_norm, sigmoid, situ
from k3stack.reference.model.kda import chunked, recurrent
from k3stack.reference.model.moe import Routing, route
from k3stack.reference.model.vision import Patches, image_size, rotated
from k3stack.spec import Scheme
from k3stack.spec.draft import Yarn
from tests.engines.venvs import engine_python
from tests.reference.model.strategies import Numbers, assert_close
from tests.reference.model.test_kda import case

pytestmark = pytest.mark.engines
SCRIPTS = Path(__file__).parent / "scripts"
F32 = torch.float32


def run(python: Path, script: str, folder: Path, given: dict[str, Tensor], *more: str) -> dict[str, Tensor]:
    arrays: Any = {name: value.numpy() for name, value in given.items()}
    np.savez(folder / "in.npz", **arrays)
    environment = {**os.environ, "VLLM_PLUGINS": "", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    arguments = [str(folder / "in.npz"), str(folder / "out.npz"), *more]
    ran = subprocess.run(
        [python, SCRIPTS / script, *arguments], env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    return {name: torch.from_numpy(value) for name, value in np.load(folder / "out.npz").items()}


def test_kda_is_flas(tmp_path: Path) -> None:
    """At the head sizes of K3, over more than one of fla's chunks of 64."""
    numbers = Numbers(1, F32)
    S, q, k, v, g, beta = case(2, F32, 128, 2, 128, 128)
    z, A_log, dt_bias = numbers.normal(5, 2, 128), numbers.uniform(2), numbers.normal(256)
    given = {"S": S, "q": q, "k": k, "v": v, "g": g, "beta": beta, "z": z, "A_log": A_log, "dt_bias": dt_bias}
    made = run(engine_python("fla-core", "0.6.0"), "kda_in_fla.py", tmp_path, given)
    for outputs, state in (recurrent(S, q, k, v, g, beta), chunked(S, q, k, v, g, beta)):
        assert_close(outputs, made["recurrent_outputs"], F32)
        assert_close(state, made["recurrent_state"], F32)
        assert_close(outputs, made["chunk_outputs"], F32)
    gate = -5 * sigmoid(A_log.exp()[:, None] * (z + dt_bias.view(2, 128)))
    assert_close(gate, made["gate"], F32)


def test_layers_are_vllms(tmp_path: Path) -> None:
    numbers = Numbers(3, F32)
    folder = tmp_path / "tiny"
    write_tiny(folder, Scheme.BF16, shape=TinyShape(experts=4))
    model = load_model(folder)
    assert model.vision is not None and model.spec.vision is not None
    grids = [(4, 6), (16, 16), (2, 18)]
    images = [numbers.normal(rows * columns, 3, 14, 14) for rows, columns in grids]
    generator = torch.Generator().manual_seed(4)
    given = {
        "gate": 30 * numbers.normal(7, 64),
        "up": 30 * numbers.normal(7, 64),
        "router_logits": numbers.normal(20, 16),
        "router_bias": 0.3 * numbers.normal(16),
        "x": numbers.normal(5, 64),
        "norm_weight": numbers.normal(64),
        "positions": torch.randint(0, 20_000, (9,), generator=generator),
        "query": numbers.normal(9, 3, 64),
        "sources": numbers.normal(6, 5, 64),
        "mix_norm": numbers.normal(64),
        "mix_proj": numbers.normal(64),
        "patches": torch.cat(images),
        "grids": torch.tensor([[1, *grid] for grid in grids]),
        "heads": torch.tensor(model.spec.vision.heads),
        "images": torch.randint(1, 9000, (200, 2), generator=generator),
        **{f"w:{name}": weight for name, weight in vision_weights(folder).items()},
    }
    made = run(engine_python("vllm", "0.33.0"), "layers_in_vllm.py", tmp_path, given, str(tmp_path / "rendezvous"))
    assert_close(situ(given["gate"], given["up"], 4.0, 25.0, F32), made["situ"], F32)
    assert_close(rms_norm(given["x"], given["norm_weight"], 1e-5, F32), made["norm"], F32)
    experts, weights = route(given["router_logits"], given["router_bias"], 4, Routing(True, 1.0))
    expected = torch.zeros(20, 16).scatter(1, made["router_experts"].long(), made["router_weights"])
    assert_close(torch.zeros(20, 16).scatter(1, experts, weights), expected, F32)
    sources = list(given["sources"].unbind(1))
    assert_close(mix(sources, given["mix_norm"] * given["mix_proj"], 1e-5, F32), made["mix"], F32)
    frequencies = inverse_frequencies(Yarn(50_000.0, 32.0, 1024, mscale_all_dim=1.0), 64)
    angles = given["positions"].float()[:, None] * frequencies
    assert_close(rotated(given["query"], angles), made["rotation"], F32)
    for place, ((rows, columns), values) in enumerate(zip(grids, images, strict=True)):
        (vectors,) = model.embed_images([Patches(values, rows, columns)])
        assert_close(vectors, made[f"image{place}"], F32)
    for (width, height), (new_width, new_height, pad_width, pad_height, tokens) in zip(
        given["images"].tolist(), made["sizes"].tolist(), strict=True
    ):
        size = image_size(width, height, model.spec.vision)
        assert (size.width, size.height, size.tokens) == (new_width, new_height, tokens)
        assert (size.columns * 14, size.rows * 14) == (new_width + pad_width, new_height + pad_height)


def vision_weights(folder: Path) -> dict[str, Tensor]:
    """The tensors of tower and projector, as they are named on disk."""
    from safetensors.torch import load_file

    found: dict[str, Tensor] = {}
    for path in folder.glob("*.safetensors"):
        found |= {k: v.float() for k, v in load_file(path).items() if k.startswith(("vision_tower", "mm_projector"))}
    return found
