"""MXFP4, NVFP4 and block FP8: laws of the layouts, checked element by element against the formulas."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from k3stack.errors import FormatError
from k3stack.formats import e2m1, e4m3, e8m0, fp8_block, mxfp4, nvfp4


def bytes_of(shape: tuple[int, ...], top: int = 255) -> st.SearchStrategy[np.ndarray]:
    return arrays.arrays(np.uint8, shape, elements=st.integers(0, top))


finite = st.floats(-(2.0**100), 2.0**100, width=32)


@given(bytes_of((3, 32)), bytes_of((3, 2), top=254))
def test_mxfp4_is_value_times_power_of_two(packed: np.ndarray, scale: np.ndarray) -> None:
    got = mxfp4.dequantize(packed, scale)
    for row in range(3):
        for column in range(64):
            byte = int(packed[row, column // 2])
            code = byte >> 4 if column % 2 else byte & 15
            expected = float(e2m1.VALUES[code]) * 2.0 ** (int(scale[row, column // 32]) - 127)
            assert got[row, column] == (expected if abs(expected) < 2.0**128 else np.copysign(np.inf, expected))


@given(bytes_of((4, 64)), arrays.arrays(np.uint8, (4, 4), elements=st.integers(10, 240)))
def test_mxfp4_values_survive_requantising(packed: np.ndarray, scale: np.ndarray) -> None:
    values = mxfp4.dequantize(packed, scale)
    assert np.array_equal(mxfp4.dequantize(*mxfp4.quantize(values)), values)


@given(arrays.arrays(np.float32, (2, 64), elements=finite))
def test_mxfp4_error_is_within_half_a_step(values: np.ndarray) -> None:
    packed, scale = mxfp4.quantize(values)
    step = e8m0.decode(scale).repeat(32, axis=-1)
    error = np.abs(mxfp4.dequantize(packed, scale).astype(np.float64) - values)
    assert (error <= 2.0 * step).all()  # the top step is 2 wide and values up to 8 saturate at 6


@given(bytes_of((2, 16)), bytes_of((2, 2)), st.floats(2.0**-20, 2.0**20, width=32))
def test_nvfp4_is_value_times_both_scales(packed: np.ndarray, scale: np.ndarray, second: float) -> None:
    got = nvfp4.dequantize(packed, scale, second)
    codes = e2m1.unpack(packed)
    expected = e2m1.VALUES[codes] * (e4m3.VALUES[scale] * np.float32(second)).repeat(16, axis=-1)
    assert np.array_equal(got, expected, equal_nan=True)


@given(arrays.arrays(np.float32, (2, 48), elements=st.floats(-1e4, 1e4, width=32)))
def test_nvfp4_error_is_within_a_step_of_the_group(values: np.ndarray) -> None:
    packed, scale, second = nvfp4.quantize(values)
    step = (e4m3.decode(scale).astype(np.float64) * float(second)).repeat(16, axis=-1)
    error = np.abs(nvfp4.dequantize(packed, scale, second).astype(np.float64) - values)
    # Rounding the scale to E4M3 costs 1/16 of the range, or half its smallest step where the group is tiny.
    slack = float(second) * e4m3.MIN_SUBNORMAL / 2 * 6
    assert (error <= step * (1 + 6 / 16) + slack * 1.001).all()


def test_nvfp4_zeros_stay_zeros_with_their_sign() -> None:
    values = np.zeros((1, 16), dtype=np.float32)
    values[0, 3] = -0.0
    back = nvfp4.dequantize(*nvfp4.quantize(values))
    assert not np.isnan(back).any()
    assert back.tobytes() == values.tobytes()


@given(
    arrays.arrays(np.float32, st.tuples(st.integers(1, 300), st.integers(1, 300)), elements=st.just(0.0)),
    st.integers(0, 2**32 - 1),
)
def test_block_fp8_scales_each_tile_by_its_own_maximum(zeros: np.ndarray, seed: int) -> None:
    values = zeros + np.random.default_rng(seed).standard_normal(zeros.shape).astype(np.float32)
    weight, scale = fp8_block.quantize(values)
    for row in range(scale.shape[0]):
        for column in range(scale.shape[1]):
            tile = (slice(row * 128, row * 128 + 128), slice(column * 128, column * 128 + 128))
            assert scale[row, column] == np.abs(values[tile]).max() / np.float32(448)
            expected = e4m3.decode(e4m3.encode(values[tile] / scale[row, column], saturate=True)) * scale[row, column]
            assert np.array_equal(fp8_block.dequantize(weight, scale)[tile], expected)
    flat = scale.reshape(scale.shape[0], 1, scale.shape[1], 1)
    assert np.array_equal(fp8_block.dequantize(weight, flat), fp8_block.dequantize(weight, scale))


def test_block_fp8_zero_tile_gives_zeros_never_nan() -> None:
    values = np.zeros((130, 130), dtype=np.float32)
    values[129, 129] = 3.0
    weight, scale = fp8_block.quantize(values)
    assert scale.tolist()[0] == [0.0, 0.0]
    assert np.array_equal(fp8_block.dequantize(weight, scale) != 0, values != 0)


@pytest.mark.parametrize(
    "call",
    [
        lambda: mxfp4.dequantize(np.zeros((2, 16), np.uint8), np.zeros((2, 2), np.uint8)),
        lambda: nvfp4.dequantize(np.zeros((2, 16), np.uint8), np.zeros((2, 1), np.uint8), 1.0),
        lambda: fp8_block.dequantize(np.zeros((2, 16), np.uint8), np.zeros((2, 1), np.float32)),
        lambda: mxfp4.quantize(np.zeros((2, 33), np.float32)),
        lambda: mxfp4.quantize(np.full((2, 32), np.inf, np.float32)),
        lambda: nvfp4.quantize(np.full((2, 32), np.nan, np.float32)),
        lambda: nvfp4.quantize(np.zeros((2, 32), np.float32), scale_2=0.0),
        lambda: fp8_block.quantize(np.zeros(4, np.float32)),
    ],
)
def test_bad_shapes_and_values_are_format_errors(call: object) -> None:
    with pytest.raises(FormatError):
        call()  # type: ignore[operator]
