"""Reading checkpoints: decoding is the formats room's, and what is missing, left over or misshaped is refused."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from k3stack.errors import CheckpointError, ConfigError, K3Error
from k3stack.formats import fp8_block, mxfp4, nvfp4
from k3stack.formats.arrays import Bytes
from k3stack.reference.model import load_model
from k3stack.reference.model.matrices import decode
from k3stack.spec.schemes import Encoding
from tests.reference.model.strategies import Numbers

Folder = Callable[[str], Path]
SHARD = "model-00002-of-000008.safetensors"
EXPERT = "language_model.model.layers.1.block_sparse_moe.experts.3"
GATE = "language_model.model.layers.1.block_sparse_moe.gate.weight"


def random_bytes(*shape: int) -> Bytes:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def test_torch_decodes_every_byte_as_the_formats_room_does() -> None:
    packed, e8m0 = random_bytes(64, 64), random_bytes(64, 4)
    with np.errstate(invalid="ignore"):
        expected = mxfp4.dequantize(packed, e8m0)
    found = decode(Encoding.MXFP4, {"weight_packed": torch.from_numpy(packed), "weight_scale": torch.from_numpy(e8m0)})
    np.testing.assert_array_equal(found.numpy(), expected)
    scale = random_bytes(64, 8) & np.uint8(0x7E)
    parts = {"weight": torch.from_numpy(packed), "weight_scale": torch.from_numpy(scale).view(torch.float8_e4m3fn)}
    found = decode(Encoding.NVFP4_MODELOPT, {**parts, "weight_scale_2": torch.tensor(0.37)})
    np.testing.assert_array_equal(found.numpy(), nvfp4.dequantize(packed, scale, np.float32(0.37)))
    found = decode(
        Encoding.NVFP4_CT,
        {
            "weight_packed": parts["weight"],
            "weight_scale": parts["weight_scale"],
            "weight_global_scale": torch.tensor([4.0]),
        },
    )
    np.testing.assert_array_equal(found.numpy(), nvfp4.dequantize(packed, scale, 0.25))
    weight, tiles = random_bytes(200, 300) & np.uint8(0x7E), Numbers(1, torch.float32).uniform(2, 3)
    for shape in ((2, 3), (2, 1, 3, 1)):
        stored = {"weight": torch.from_numpy(weight).view(torch.float8_e4m3fn), "weight_scale": tiles.reshape(shape)}
        found = decode(Encoding.FP8_BLOCK_MODELOPT, stored)
        np.testing.assert_array_equal(found.numpy(), fp8_block.dequantize(weight, tiles.numpy()))


def test_a_bank_decodes_as_its_experts_do() -> None:
    packed, scale = torch.from_numpy(random_bytes(3, 4, 16)), torch.from_numpy(random_bytes(3, 4, 2) & np.uint8(0x7E))
    second = torch.tensor([0.5, 0.25, 2.0])
    bank = {"weight": packed, "weight_scale": scale.view(torch.float8_e4m3fn), "weight_scale_2": second}
    whole = decode(Encoding.NVFP4_MODELOPT, bank)
    for expert in range(3):
        one = {name: part[expert] for name, part in bank.items()}
        assert torch.equal(whole[expert], decode(Encoding.NVFP4_MODELOPT, one))


Edit = Callable[[dict[str, torch.Tensor]], None]


def edited(folder: Path, target: Path, edit: Edit, shard: str = SHARD) -> Path:
    shutil.copytree(folder, target)
    tensors = load_file(target / shard)
    edit(tensors)
    save_file(tensors, target / shard)
    return target


def drop(tensors: dict[str, torch.Tensor]) -> None:
    del tensors[f"{EXPERT}.w1.weight_scale"]


def add(tensors: dict[str, torch.Tensor]) -> None:
    tensors["language_model.model.layers.1.surprise"] = torch.zeros(3)


def reshape(tensors: dict[str, torch.Tensor]) -> None:
    tensors[GATE] = tensors[GATE][:-1].contiguous()


def retype(tensors: dict[str, torch.Tensor]) -> None:
    tensors[GATE] = tensors[GATE].float()


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (drop, rf"{EXPERT}.w1.weight_scale is missing"),
        (add, rf"{SHARD}: tensor .*surprise is no tensor of this model \(1 such"),
        (reshape, rf"{SHARD}: tensor {GATE} is BF16 \[7, 256\], but config.json makes it BF16 \[8, 256\]"),
        (retype, rf"{SHARD}: tensor {GATE} is F32"),
    ],
)
def test_tensors_that_do_not_fit_are_named(folder: Folder, tmp_path: Path, edit: Edit, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        load_model(edited(folder("mxfp4"), tmp_path / "x", edit))


def test_a_tensor_in_two_files_is_refused(folder: Folder, tmp_path: Path) -> None:
    path = shutil.copytree(folder("mxfp4"), tmp_path / "x")
    shutil.copy(path / SHARD, path / "copy.safetensors")
    with pytest.raises(
        CheckpointError, match=r"is in copy\.safetensors too|is in model-00002-of-000008\.safetensors too"
    ):
        load_model(path)


def test_a_cut_file_and_an_empty_folder_are_refused(folder: Folder, tmp_path: Path) -> None:
    path = shutil.copytree(folder("mxfp4"), tmp_path / "x")
    shard = path / SHARD
    shard.write_bytes(shard.read_bytes()[:-10])
    with pytest.raises(K3Error, match="bytes"):
        load_model(path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="is not there"):
        load_model(tmp_path / "empty")
