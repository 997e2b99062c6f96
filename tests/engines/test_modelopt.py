"""Our conversion beside the real nvidia-modelopt 0.47.0: equal bit for bit where it should be, else never worse."""

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from k3stack.checkpoint.convert.attention import AttentionScale, quantize_attention
from k3stack.checkpoint.convert.experts import recode, scale_2, shared_top
from k3stack.formats import bf16, mxfp4, nvfp4
from tests.engines.venvs import engine_python
from tests.paths import ROOT

pytestmark = pytest.mark.engines
PEER = ROOT / "benchmarks" / "peers" / "modelopt_quantize.py"


@pytest.fixture(scope="module")
def modelopt() -> Path:
    return engine_python("nvidia-modelopt", "0.47.0")


def theirs(python: Path, folder: Path, **given: Any) -> Any:
    np.savez(folder / "given.npz", **given)
    subprocess.run([python, PEER, folder / "given.npz", folder / "made.npz", "1"], check=True)
    return np.load(folder / "made.npz")


def matrix(seed: int, lowest: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    packed = random.integers(0, 256, (256, 128), np.uint8)
    return packed, random.integers(lowest, 121, (256, 8), np.uint8)


def words(seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    values = random.standard_normal((300, 576)) * np.exp2(random.normal(-6, 3, (300, 1)))
    return bf16.encode(values.astype(np.float32))


def minus_zeros(packed: np.ndarray) -> np.ndarray:
    zeros: np.ndarray = ((packed & 0x0F) == 8) | ((packed >> 4) == 8)
    return zeros


def test_blocks_in_range_are_equal_but_for_minus_zero(modelopt: Path, tmp_path: Path) -> None:
    packed, scale = matrix(1, lowest=104)
    found = theirs(modelopt, tmp_path, packed=packed, scale=scale, top=scale, words=words(1))
    made = recode(packed, scale, shared_top(scale))
    assert made.packed is None
    assert np.array_equal(found["scales"], made.scale)
    assert found["scale_2"] == scale_2(shared_top(scale))
    other = minus_zeros(packed)
    assert other.any() and np.array_equal(found["codes"][~other], packed[~other])
    second = scale_2(shared_top(scale))
    assert np.array_equal(
        nvfp4.dequantize(found["codes"], found["scales"], second), nvfp4.dequantize(packed, made.scale, second)
    )


def test_blocks_out_of_range_are_no_worse(modelopt: Path, tmp_path: Path) -> None:
    packed, scale = matrix(2, lowest=80)
    found = theirs(modelopt, tmp_path, packed=packed, scale=scale, top=scale, words=words(2))
    made = recode(packed, scale, shared_top(scale))
    assert made.packed is not None and made.blocks.moved > 100
    exact = mxfp4.dequantize(packed, scale).astype(np.float64)
    second = scale_2(shared_top(scale))
    ours = np.abs(nvfp4.dequantize(made.packed, made.scale, second) - exact)
    peer = np.abs(nvfp4.dequantize(found["codes"], found["scales"], second) - exact)
    assert (ours <= peer).all()


def test_gate_and_up_with_a_shared_maximum(modelopt: Path, tmp_path: Path) -> None:
    packed, scale = matrix(3, lowest=100)
    mate = scale + np.uint8(5)
    found = theirs(modelopt, tmp_path, packed=packed, scale=scale, top=np.stack([scale, mate]), words=words(3))
    top = shared_top(scale, mate)
    assert found["scale_2"] == scale_2(top)
    made = recode(packed, scale, top)
    codes = packed if made.packed is None else made.packed
    ours = nvfp4.dequantize(codes, made.scale, scale_2(top))
    assert np.array_equal(ours, nvfp4.dequantize(found["codes"], found["scales"], scale_2(top)))


def test_attention_scales_of_nvidia_are_bit_exact(modelopt: Path, tmp_path: Path) -> None:
    packed, scale = matrix(4, lowest=110)
    for seed in (4, 5, 6):
        attention = words(seed)
        found = theirs(modelopt, tmp_path, packed=packed, scale=scale, top=scale, words=attention)
        made = quantize_attention(attention, AttentionScale.NVIDIA)
        assert found["fp8"].tobytes() == made.weight.tobytes()
        assert found["fp8_scale"].reshape(made.scale.shape).tobytes() == made.scale.tobytes()


def test_a_tile_of_zeros_is_nan_there_and_zero_here(modelopt: Path, tmp_path: Path) -> None:
    packed, scale = matrix(7, lowest=110)
    attention = words(7)
    attention[:128, :128] = 0
    found = theirs(modelopt, tmp_path, packed=packed, scale=scale, top=scale, words=attention)
    made = quantize_attention(attention, AttentionScale.NVIDIA)
    assert ((found["fp8"][:128, :128] & 0x7F) == 0x7F).all()
    assert (made.weight[:128, :128] == 0).all()
    rest = np.ones(attention.shape, bool)
    rest[:128, :128] = False
    assert np.array_equal(found["fp8"][rest], made.weight[rest])
