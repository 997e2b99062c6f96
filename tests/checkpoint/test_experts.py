"""Expert recoding: what is in range keeps codes and values, what is not is rounded to the nearest, both exactly."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from k3stack.checkpoint.convert.experts import WINDOW, recode, scale_2, shared_top
from k3stack.errors import FormatError
from k3stack.formats import e2m1, e4m3, mxfp4, nvfp4

packed_bytes = arrays.arrays(np.uint8, (4, 32), elements=st.integers(0, 255))


def scales(lowest: int, highest: int) -> st.SearchStrategy[np.ndarray]:
    return arrays.arrays(np.uint8, (4, 2), elements=st.integers(lowest, highest))


@given(packed_bytes, scales(100, 100 + WINDOW))
def test_blocks_in_range_keep_their_codes_and_values(packed: np.ndarray, scale: np.ndarray) -> None:
    top = shared_top(scale)
    made = recode(packed, scale, top)
    assert made.packed is None
    assert made.blocks.lossless == made.blocks.total == 8
    assert np.array_equal(nvfp4.dequantize(packed, made.scale, scale_2(top)), mxfp4.dequantize(packed, scale))


@given(packed_bytes, scales(60, 120))
def test_every_value_is_the_nearest_that_can_be_held(packed: np.ndarray, scale: np.ndarray) -> None:
    top = shared_top(scale)
    made = recode(packed, scale, top)
    codes = packed if made.packed is None else made.packed
    before = mxfp4.dequantize(packed, scale).astype(np.float64)
    after = nvfp4.dequantize(codes, made.scale, scale_2(top)).astype(np.float64)
    step = e4m3.decode(made.scale).astype(np.float64).repeat(16, axis=-1) * float(scale_2(top))
    held = step[..., None] * np.unique(np.abs(e2m1.VALUES.astype(np.float64)))
    nearest = np.abs(held - np.abs(before)[..., None]).min(axis=-1)
    assert np.array_equal(np.abs(after - before), nearest)
    assert np.array_equal(np.signbit(after), np.signbit(before))
    same = (after == before).reshape(4, 2, 32).all(axis=-1)
    assert made.blocks.lossless == int(same.sum())
    assert made.blocks.moved == int((top - scale.astype(int) > WINDOW).sum())


def test_the_edge_of_the_window() -> None:
    packed = np.full((1, 32), 0x71, np.uint8)  # 0.5 and 6 in turn
    for gap, moved in ((17, 0), (18, 1)):
        scale = np.array([[120, 120 - gap]], np.uint8)
        made = recode(packed, scale, 120)
        assert made.blocks.moved == moved
        assert made.scale.tolist() == [[0x78, 0x78, 0x01, 0x01]]  # 2^7... of E4M3: 256 and 2^-9
    assert made.packed is not None
    assert e2m1.decode_packed(made.packed)[0, 32:34].tolist() == [0.0, 3.0]  # 0.25 is a tie and goes to 0, 3 is exact


def test_minus_zero_survives() -> None:
    packed = np.full((1, 32), 0x88, np.uint8)
    made = recode(packed, np.array([[120, 60]], np.uint8), 120)
    assert made.packed is not None and made.packed.tobytes() == packed.tobytes()
    assert made.blocks.lossless == 2


def test_gate_and_up_share_the_larger_maximum() -> None:
    assert shared_top(np.array([[100]], np.uint8), np.array([[110]], np.uint8)) == 110
    assert scale_2(110) == np.float32(2.0 ** (110 - 127 - 8))


def test_all_zero_scales_and_nan_scales() -> None:
    zero = np.zeros((2, 2), np.uint8)
    assert shared_top(zero) == 127
    made = recode(np.zeros((2, 32), np.uint8), zero, 127)
    assert made.blocks.lossless == 4
    assert not np.isnan(e4m3.decode(made.scale)).any()
    with pytest.raises(FormatError, match="NaN"):
        shared_top(np.array([[255]], np.uint8))
    with pytest.raises(FormatError, match="above the shared maximum"):
        recode(np.zeros((1, 16), np.uint8), np.array([[121]], np.uint8), 120)
