"""Norm, activation, AttnRes and products against what their equations say."""

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from k3stack.reference.model.arithmetic import Arithmetic
from k3stack.reference.model.functions import mix, rms_norm, situ
from tests.reference.model.strategies import Numbers, assert_close, dtypes, seeds


@settings(max_examples=30)
@given(seeds, dtypes, st.integers(1, 5), st.integers(1, 9), st.integers(1, 40))
def test_attnres_is_a_softmax_over_the_sources(seed: int, dtype: torch.dtype, T: int, J: int, d: int) -> None:
    numbers, epsilon = Numbers(seed, dtype), 1e-5
    sources = [numbers.normal(T, d) * 10 ** (j % 3) for j in range(J)]
    norm, proj = numbers.normal(d), numbers.normal(d)
    expected = torch.zeros(T, d, dtype=torch.float64)
    for t in range(T):
        rows = [source[t].double() for source in sources]
        scores = []
        for row in rows:
            normed = row / math.sqrt(float((row * row).mean()) + epsilon) * norm.double()
            scores.append(float((normed * proj.double()).sum()))
        odds = [math.exp(score - max(scores)) for score in scores]
        for row, odd in zip(rows, odds, strict=True):
            expected[t] += odd / sum(odds) * row
    assert_close(mix(sources, norm * proj, epsilon, dtype), expected, dtype)


@settings(max_examples=30)
@given(seeds, dtypes, st.integers(1, 5), st.integers(1, 40), st.sampled_from([1e-5, 1e-6]))
def test_rms_norm(seed: int, dtype: torch.dtype, T: int, d: int, epsilon: float) -> None:
    numbers = Numbers(seed, dtype)
    x, weight = numbers.normal(T, d), numbers.normal(d)
    wide = x.double()
    expected = wide / (wide.pow(2).mean(-1, keepdim=True) + epsilon).sqrt() * weight.double()
    assert_close(rms_norm(x, weight, epsilon, dtype), expected, dtype)


@given(seeds, dtypes, st.sampled_from([0.1, 1.0, 100.0]))
def test_situ_is_bounded(seed: int, dtype: torch.dtype, size: float) -> None:
    numbers = Numbers(seed, dtype)
    gate, up = size * numbers.normal(50), size * numbers.normal(50)
    made = situ(gate, up, 4.0, 25.0, dtype)
    expected = [
        4 * math.tanh(g / 4) / (1 + math.exp(-g)) * 25 * math.tanh(u / 25)
        for g, u in zip(gate.double().tolist(), up.double().tolist(), strict=True)
    ]
    assert_close(made, torch.tensor(expected, dtype=torch.float64), dtype)
    assert made.abs().max() <= 100


@settings(max_examples=30)
@given(seeds, st.integers(1, 40), st.integers(1, 70), st.integers(1, 70))
def test_steady_products_give_a_row_the_same_bits_everywhere(seed: int, n: int, a: int, b: int) -> None:
    numbers, steady = Numbers(seed, torch.float32), Arithmetic()
    x, weight = numbers.normal(n, a), numbers.normal(b, a)
    whole = steady.linear(x, weight)
    assert_close(whole, x.double() @ weight.double().T, torch.float32)
    for row in range(n):
        assert torch.equal(steady.linear(x[row : row + 1], weight)[0], whole[row])


@settings(max_examples=20)
@given(seeds, st.integers(1, 20), st.integers(1, 40), st.integers(8, 40))
def test_steady_products_by_head_do_too(seed: int, n: int, a: int, b: int) -> None:
    numbers, steady = Numbers(seed, torch.float32), Arithmetic()
    x, weight = numbers.normal(n, 2, a), numbers.normal(2, a, b)
    whole = steady.per_head(x, weight)
    assert_close(whole, torch.einsum("nha,hab->nhb", x.double(), weight.double()), torch.float32)
    for row in range(n):
        assert torch.equal(steady.per_head(x[row : row + 1], weight)[0], whole[row])
