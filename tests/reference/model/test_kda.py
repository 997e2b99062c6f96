"""Kimi Delta Attention: its three forms agree, and with a loop written from the equations."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from k3stack.reference.model.kda import chunked, recurrent, short_convolution
from tests.reference.model.strategies import Numbers, assert_close, dtypes, seeds

Case = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def case(seed: int, dtype: torch.dtype, n: int, H: int, K: int, V: int) -> Case:
    """A state and n tokens as the model makes them: unit keys, decays down to -5, betas in (0, 1)."""
    numbers = Numbers(seed, dtype)
    q, k = numbers.normal(n, H, K), numbers.normal(n, H, K)
    q, k = q / q.norm(dim=-1, keepdim=True) * K**-0.5, k / k.norm(dim=-1, keepdim=True)
    g = -5 * torch.sigmoid(3 * numbers.normal(n, H, K))
    return numbers.normal(H, K, V), q, k, numbers.normal(n, H, V), g, numbers.uniform(n, H)


shapes = st.tuples(st.integers(1, 40), st.integers(1, 3), st.sampled_from([1, 4, 17, 32]), st.sampled_from([1, 5, 16]))


@settings(max_examples=30)
@given(seeds, dtypes, shapes, st.sampled_from([1, 3, 16, 64]))
def test_chunks_are_the_recurrence(seed: int, dtype: torch.dtype, shape: tuple[int, int, int, int], chunk: int) -> None:
    given_case = case(seed, dtype, *shape)
    expected, found = recurrent(*given_case), chunked(*given_case, chunk=chunk)
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other, dtype)


def test_chunks_are_the_recurrence_at_the_size_of_k3() -> None:
    given_case = case(0, torch.float32, 130, 2, 128, 128)
    for one, other in zip(chunked(*given_case), recurrent(*given_case), strict=True):
        assert_close(one, other, torch.float32)


def by_hand(S: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """The equations number by number, in Python's own floats, which are float64."""
    n, H, K = q.shape
    V = v.shape[2]
    state = S.double().tolist()
    outputs = [[[0.0] * V for _ in range(H)] for _ in range(n)]
    lists = [x.double().tolist() for x in (q, k, v, g, beta)]
    for t in range(n):
        for h in range(H):
            qt, kt, vt, gt, bt = (x[t][h] for x in lists)
            M = state[h]
            for i in range(K):  # S <- diag(alpha) S, alpha = exp(g)
                M[i] = [math.exp(gt[i]) * x for x in M[i]]
            for j in range(V):
                u = vt[j] - sum(M[i][j] * kt[i] for i in range(K))  # u = v - S^T k
                for i in range(K):
                    M[i][j] += kt[i] * bt * u  # S <- S + k (beta u)^T
                outputs[t][h][j] = sum(M[i][j] * qt[i] for i in range(K))  # o = S^T q
    return torch.tensor(outputs, dtype=torch.float64), torch.tensor(state, dtype=torch.float64)


@settings(max_examples=25)
@given(seeds, dtypes, st.tuples(st.integers(1, 9), st.integers(1, 2), st.integers(1, 8), st.integers(1, 6)))
def test_the_recurrence_is_what_the_equations_say(
    seed: int, dtype: torch.dtype, shape: tuple[int, int, int, int]
) -> None:
    given_case = case(seed, dtype, *shape)
    for one, other in zip(recurrent(*given_case), by_hand(*given_case), strict=True):
        assert_close(one, other, dtype)


@settings(max_examples=20)
@given(seeds, dtypes, st.lists(st.integers(1, 20), min_size=1, max_size=4), st.booleans())
def test_a_state_carries_over_a_cut(seed: int, dtype: torch.dtype, lengths: list[int], in_chunks: bool) -> None:
    form = chunked if in_chunks else recurrent
    S, *tokens = case(seed, dtype, sum(lengths), 2, 8, 8)
    expected, last = recurrent(S, *tokens)
    outputs, first = [], 0
    for length in lengths:
        made, S = form(S, *(x[first : first + length] for x in tokens))
        outputs.append(made)
        first += length
    assert_close(torch.cat(outputs), expected, dtype)
    assert_close(S, last, dtype)


def test_the_states_after_each_token_are_kept_where_asked() -> None:
    S, *tokens = case(3, torch.float64, 6, 2, 4, 4)
    states: list[Tensor] = []
    recurrent(S, *tokens, states=states)
    for t, state in enumerate(states):
        assert torch.equal(state, recurrent(S, *(x[: t + 1] for x in tokens))[1])


@settings(max_examples=25)
@given(seeds, dtypes, st.lists(st.integers(1, 7), min_size=1, max_size=4), st.integers(2, 5))
def test_a_convolution_carries_its_window(seed: int, dtype: torch.dtype, lengths: list[int], width: int) -> None:
    numbers, channels = Numbers(seed, dtype), 3
    x, weight = numbers.normal(sum(lengths), channels), numbers.normal(channels, width)
    padded = torch.cat([x.new_zeros(width - 1, channels), x])
    expected = torch.nn.functional.conv1d(padded.T[None].double(), weight[:, None].double(), groups=channels)[0].T
    expected = expected / (1 + (-expected).exp())  # SiLU
    window, made, first = padded[: width - 1], [], 0
    for length in lengths:
        window = torch.cat([window, x[first : first + length]])
        made.append(short_convolution(window, weight))
        window, first = window[length:], first + length
    assert_close(torch.cat(made), expected, dtype)


@pytest.mark.parametrize("bound", [-5.0, -1.0])
def test_even_the_fastest_decay_stays_finite(bound: float) -> None:
    """All rows at the bound over many chunks: exponents must never turn positive, and underflow is zero."""
    S, q, k, v, g, beta = case(1, torch.float32, 200, 1, 8, 8)
    g = torch.full_like(g, bound)
    for one, other in zip(chunked(S, q, k, v, g, beta, chunk=64), recurrent(S, q, k, v, g, beta), strict=True):
        assert torch.isfinite(one).all()
        assert_close(one, other, torch.float32)
