"""FP8 attention: each way of choosing scales against its formula, element by element."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3stack.checkpoint.convert.attention import AttentionScale, quantize_attention
from k3stack.errors import FormatError
from k3stack.formats import bf16, e4m3, fp8_block

shapes = st.tuples(st.integers(1, 300), st.integers(1, 300))
seeds = st.integers(0, 2**32 - 1)


def weights(shape: tuple[int, int], seed: int, spread: float = 3.0) -> np.ndarray:
    """BF16 words whose tiles have very different sizes."""
    random = np.random.default_rng(seed)
    tiles = np.exp2(random.normal(-6, spread, [-(-size // 128) for size in shape])).astype(np.float32)
    return bf16.encode((random.standard_normal(shape) * fp8_block.spread(tiles, shape)).astype(np.float32))


def tiles_of(array: np.ndarray) -> list[np.ndarray]:
    return [
        array[r : r + 128, c : c + 128] for r in range(0, array.shape[0], 128) for c in range(0, array.shape[1], 128)
    ]


@given(shapes, seeds)
def test_pow2_has_the_least_error_of_all_powers_of_two(shape: tuple[int, int], seed: int) -> None:
    words = weights(shape, seed)
    made = quantize_attention(words, AttentionScale.POW2)
    exact = bf16.decode(words).astype(np.float64)
    for tile, fp8, scale in zip(tiles_of(exact), tiles_of(made.weight), made.scale.ravel(), strict=True):
        assert np.frexp(scale)[0] == 0.5
        error = np.square(e4m3.decode(fp8).astype(np.float64) * float(scale) - tile).sum()
        for shift in (-2, -1, 1, 2):
            other = float(scale) * 2.0**shift
            codes = e4m3.encode((tile / other).astype(np.float32), saturate=True)
            assert error <= np.square(e4m3.decode(codes).astype(np.float64) * other - tile).sum() * (1 + 1e-6)


@given(shapes, seeds)
def test_pow2_survives_being_rounded_up_to_a_power_of_two(shape: tuple[int, int], seed: int) -> None:
    """DeepGEMM requantises with 2^ceil(log2(amax / 448)); ours must come out unchanged."""
    made = quantize_attention(weights(shape, seed, spread=1.0), AttentionScale.POW2)
    values = fp8_block.dequantize(made.weight, made.scale)
    for tile, fp8 in zip(tiles_of(values), tiles_of(made.weight), strict=True):
        again = 2.0 ** np.ceil(np.log2(max(float(np.abs(tile).max()), 1e-4) / 448))
        back = e4m3.decode(e4m3.encode((tile / again).astype(np.float32))) * np.float32(again)
        assert np.array_equal(back, tile) or float(np.abs(tile).max()) < 1e-4, fp8


@given(shapes, seeds)
def test_fp32_is_the_plain_formula(shape: tuple[int, int], seed: int) -> None:
    words = weights(shape, seed)
    made = quantize_attention(words, AttentionScale.FP32)
    weight, scale = fp8_block.quantize(bf16.decode(words))
    assert made.scale.tobytes() == scale.tobytes()
    assert made.weight.tobytes() == weight.tobytes()


@given(shapes, seeds)
def test_nvidia_is_division_in_bf16(shape: tuple[int, int], seed: int) -> None:
    words = weights(shape, seed)
    made = quantize_attention(words, AttentionScale.NVIDIA)
    values = words.view(ml_dtypes.bfloat16)
    for tile, fp8, scale in zip(tiles_of(values), tiles_of(made.weight), made.scale.ravel(), strict=True):
        expected = (np.abs(tile).max() / ml_dtypes.bfloat16(448)).astype(np.float32)
        assert scale == expected
        quotient = (tile / ml_dtypes.bfloat16(expected)).astype(ml_dtypes.float8_e4m3fn)
        assert quotient.view(np.uint8).tobytes() == np.ascontiguousarray(fp8).tobytes()


@pytest.mark.parametrize("how", AttentionScale)
def test_zeros_stay_zeros_and_the_error_is_measured(how: AttentionScale) -> None:
    words = weights((256, 256), 1, spread=0.1)
    words[:128, 128:] = 0
    words[0, 128] = 0x8000  # -0
    made = quantize_attention(words, how)
    back = fp8_block.dequantize(made.weight, made.scale)
    assert not np.isnan(back).any()
    assert (back[:128, 128:] == 0).all() and np.signbit(back[0, 128])
    exact, back = bf16.decode(words).astype(np.float64)[:128], back[:128]  # the first of every four strips is measured
    expected = np.sqrt(np.square(back - exact).sum() / np.square(exact).sum())
    assert made.rounding.relative_rms == pytest.approx(expected, rel=1e-4)
    assert 0.025 < expected < 0.028


@pytest.mark.parametrize("bad", [0x7F80, 0xFF80, 0x7FC0])
def test_a_weight_that_is_no_number_is_refused(bad: int) -> None:
    words = weights((128, 128), 1)
    words[5, 5] = bad
    with pytest.raises(FormatError, match="NaN or infinite"):
        quantize_attention(words, AttentionScale.POW2)
