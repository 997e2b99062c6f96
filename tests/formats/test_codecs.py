"""Element formats: every byte value, ties, NaN and infinity, each against ml_dtypes, an independent implementation."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from k3stack.errors import FormatError
from k3stack.formats import bf16, e2m1, e4m3, e8m0

ALL_BYTES = np.arange(256, dtype=np.uint8)
any_float32 = arrays.arrays(np.float32, st.integers(1, 64), elements=st.floats(width=32, allow_nan=True))
near_e4m3 = arrays.arrays(np.float32, st.integers(1, 64), elements=st.floats(-600, 600, width=32))


def same_bits(left: np.ndarray, right: np.ndarray) -> bool:
    return left.tobytes() == right.tobytes()


def test_e4m3_decodes_all_256_bytes() -> None:
    expected = ALL_BYTES.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    assert np.array_equal(e4m3.decode(ALL_BYTES), expected, equal_nan=True)
    assert list(np.flatnonzero(np.isnan(e4m3.decode(ALL_BYTES)))) == list(e4m3.NANS)


def test_e4m3_round_trips_every_byte() -> None:
    assert same_bits(e4m3.encode(e4m3.decode(ALL_BYTES)), ALL_BYTES)


def test_e4m3_rounds_every_midpoint_to_even() -> None:
    values = e4m3.decode(np.arange(0x7F, dtype=np.uint8))
    midpoints = ((values[1:] + values[:-1]) / 2).astype(np.float32)
    codes = e4m3.encode(midpoints)
    lower = np.arange(0x7E, dtype=np.uint8)
    assert same_bits(codes, lower + (lower % 2))
    for away, step in ((np.inf, 1), (-np.inf, 0)):
        beside = np.nextafter(midpoints, np.float32(away), dtype=np.float32)
        assert same_bits(e4m3.encode(beside), lower + np.uint8(step))


@given(any_float32)
def test_e4m3_agrees_with_ml_dtypes_on_any_float(values: np.ndarray) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        expected = values.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    got = e4m3.encode(values)
    nan = np.isnan(e4m3.decode(expected))
    assert np.array_equal(got[~nan], expected[~nan])
    assert np.isnan(e4m3.decode(got[nan])).all()


@given(near_e4m3)
def test_e4m3_agrees_with_ml_dtypes_around_its_range(values: np.ndarray) -> None:
    expected = values.astype(ml_dtypes.float8_e4m3fn)
    assert np.array_equal(e4m3.decode(e4m3.encode(values)), expected.astype(np.float32), equal_nan=True)


def test_e4m3_overflow_is_nan_or_saturates() -> None:
    values = np.array([464, np.nextafter(np.float32(464), np.float32(465)), np.inf, -np.inf, np.nan], dtype=np.float32)
    assert np.array_equal(e4m3.decode(e4m3.encode(values)), [448, np.nan, np.nan, np.nan, np.nan], equal_nan=True)
    saturated = e4m3.decode(e4m3.encode(values, saturate=True))
    assert np.array_equal(saturated, [448, 448, 448, -448, np.nan], equal_nan=True)


def test_e2m1_decodes_all_codes_and_all_packed_bytes() -> None:
    codes = np.arange(16, dtype=np.uint8)
    expected = codes.view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    assert same_bits(e2m1.decode(codes), expected)
    pairs = e2m1.decode_packed(ALL_BYTES[:, None])
    assert same_bits(pairs, e2m1.decode(e2m1.unpack(ALL_BYTES[:, None])))
    assert pairs[0x2C].tolist() == [-2.0, 1.0]  # the low nibble comes first


def test_e2m1_round_trips_every_byte_and_keeps_minus_zero() -> None:
    assert same_bits(e2m1.pack(e2m1.encode(e2m1.decode_packed(ALL_BYTES[:, None]))), ALL_BYTES[:, None])


@given(arrays.arrays(np.float32, st.integers(1, 64), elements=st.floats(-8, 8, width=32)))
def test_e2m1_agrees_with_ml_dtypes(values: np.ndarray) -> None:
    assert same_bits(e2m1.decode(e2m1.encode(values)), values.astype(ml_dtypes.float4_e2m1fn).astype(np.float32))


def test_e2m1_ties_saturation_and_nan() -> None:
    values = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 7, np.inf, -np.inf], dtype=np.float32)
    assert e2m1.decode(e2m1.encode(values)).tolist() == [0, 1, 1, 2, 2, 4, 4, 6, 6, -6]
    with pytest.raises(FormatError, match="NaN"):
        e2m1.encode(np.array([np.nan], dtype=np.float32))
    with pytest.raises(FormatError, match="above 15"):
        e2m1.decode(np.array([16], dtype=np.uint8))
    with pytest.raises(FormatError, match="odd"):
        e2m1.pack(np.zeros(3, dtype=np.uint8))


def test_e8m0_decodes_and_round_trips_every_byte() -> None:
    expected = ALL_BYTES.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    assert np.array_equal(e8m0.decode(ALL_BYTES), expected, equal_nan=True)
    assert same_bits(e8m0.encode(e8m0.decode(ALL_BYTES)), ALL_BYTES)


@pytest.mark.parametrize("value", [0.0, -1.0, 3.0, np.inf, 2.0**-128])
def test_e8m0_refuses_what_it_cannot_hold(value: float) -> None:
    with pytest.raises(FormatError, match="powers of two"):
        e8m0.encode(np.array([value], dtype=np.float32))


def test_bf16_round_trips_every_word() -> None:
    words = np.arange(65536, dtype=np.uint16)
    values = bf16.decode(words)
    nan = np.isnan(values)
    assert same_bits(bf16.encode(values)[~nan], words[~nan])
    assert np.isnan(bf16.decode(bf16.encode(values[nan]))).all()


@given(any_float32)
def test_bf16_agrees_with_ml_dtypes(values: np.ndarray) -> None:
    with np.errstate(over="ignore"):
        expected = values.astype(ml_dtypes.bfloat16).astype(np.float32)
    assert np.array_equal(bf16.decode(bf16.encode(values)), expected, equal_nan=True)
