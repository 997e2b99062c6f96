"""Latent attention: absorbed equals plain, pages keep what was written, FP8 has scale one."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from k3stack.reference.batch import Piece
from k3stack.reference.model.cut import cells
from k3stack.reference.model.mla import absorbed, plain, read_latents, write_latents
from tests.reference.model.strategies import Numbers, assert_close, dtypes, seeds


def directly(q: Tensor, latents: Tensor, W_k: Tensor, W_v: Tensor, start: int, scale: float) -> Tensor:
    """The equations, query by query and head by head, in float64."""
    q, latents, W_k, W_v = (x.double() for x in (q, latents, W_k, W_v))
    c = W_k.shape[2]
    made = torch.zeros(q.shape[0], q.shape[1], W_v.shape[1], dtype=torch.float64)
    for t in range(q.shape[0]):
        for h in range(q.shape[1]):
            seen = latents[: start + t + 1]
            keys = torch.cat([seen[:, :c] @ W_k[h].T, seen[:, c:]], dim=1)
            p = (keys @ q[t, h] * scale).softmax(0)
            made[t, h] = p @ (seen[:, :c] @ W_v[h].T)
    return made


sizes = st.tuples(st.integers(1, 6), st.integers(0, 40), st.integers(1, 3), st.sampled_from([8, 32]))


@settings(max_examples=30)
@given(seeds, dtypes, sizes)
def test_absorbed_plain_and_the_equations_agree(seed: int, dtype: torch.dtype, size: tuple[int, int, int, int]) -> None:
    n, start, H, c = size
    numbers = Numbers(seed, dtype)
    r, d = 4, 6
    q, latents = numbers.normal(n, H, d + r), numbers.normal(start + n, c + r)
    W_k, W_v = numbers.normal(H, d, c) / c**0.5, numbers.normal(H, d, c) / c**0.5
    scale = (d + r) ** -0.5
    expected = directly(q, latents, W_k, W_v, start, scale)
    assert_close(plain(q, latents, W_k, W_v, start, scale), expected, dtype)
    moved = torch.cat([torch.einsum("nhd,hdc->nhc", q[..., :d], W_k), q[..., d:]], dim=2)
    seen = absorbed(moved, latents, torch.arange(start, start + n), c, scale, dtype)
    assert_close(torch.einsum("nhc,hdc->nhd", seen, W_v), expected, dtype)


def test_absorbed_agrees_over_several_tiles_of_keys() -> None:
    numbers = Numbers(5, torch.float64)
    q, latents = 3 * numbers.normal(3, 2, 12), numbers.normal(700, 12)
    W = torch.eye(8, dtype=torch.float64).expand(2, 8, 8)
    seen = absorbed(q, latents, torch.arange(697, 700), 8, 0.5, torch.float64)
    assert_close(seen, directly(q, latents, W, W, 697, 0.5), torch.float64)


@settings(max_examples=30)
@given(seeds, st.integers(1, 5), st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_pages_give_back_what_was_written_wherever_they_lie(seed: int, page: int, lengths: list[int]) -> None:
    numbers, total = Numbers(seed, torch.float32), sum(lengths)
    latents = numbers.normal(total, 3)
    pages = torch.randperm(36, generator=numbers.generator)[: -(-total // page)]
    layer, start = torch.full((36, page, 3), float("nan")), 0
    for length in lengths:
        piece = Piece(0, length, start, pages, 0)
        write_latents(latents[start : start + length], cells([piece], page, layer.device), layer)
        start += length
        assert torch.equal(read_latents(piece, layer, torch.float32), latents[:start])


def test_fp8_keeps_the_nearest_value_and_saturates() -> None:
    layer = torch.zeros(2, 4, 3, dtype=torch.float8_e4m3fn)
    latents = torch.tensor([[1.0, -1.06, 1e4], [0.001, -448.0, 3.3]])
    piece = Piece(0, 2, 3, torch.tensor([1, 0]), 0)
    write_latents(latents, cells([piece], 4, layer.device), layer)
    expected = latents.clamp(-448, 448).to(torch.float8_e4m3fn).float()
    assert torch.equal(read_latents(piece, layer, torch.float32)[3:], expected)
    assert expected[0, 2] == 448
