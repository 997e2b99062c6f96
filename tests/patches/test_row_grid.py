from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3stack.patches.p6_mla_gate_scales import RowGrid

WIDTHS = st.lists(st.integers(1, 5000), min_size=1, max_size=6).map(tuple)
BLOCKS = st.sampled_from([32, 128])


@given(WIDTHS, BLOCKS)
def test_every_shard_starts_on_a_block_and_keeps_its_rows(widths: tuple[int, ...], block: int) -> None:
    grid = RowGrid(widths, block)
    assert all(start % block == 0 for start in grid.starts)
    assert grid.rows % block == 0
    assert sum(stop - start for start, stop in grid.live) == sum(widths)
    ends = [start + width for start, width in zip(grid.starts, widths, strict=True)]
    assert all(end <= start for end, start in zip(ends, grid.starts[1:], strict=False))
    assert ends[-1] <= grid.rows < sum(widths) + block * len(widths)


@given(WIDTHS, BLOCKS)
def test_aligned_means_that_nothing_moves(widths: tuple[int, ...], block: int) -> None:
    grid = RowGrid(widths, block)
    packed = [sum(widths[:i]) for i in range(len(widths))]
    assert grid.packed_is_aligned == (list(grid.starts) == packed)


@pytest.mark.parametrize("tp", [tp for tp in range(1, 97) if 96 % tp == 0])
def test_vllm_loads_k3s_scales_where_the_grid_needs_them(tp: int) -> None:
    grid = RowGrid((1536, 576, 12288 // tp), 128)
    assert grid.live == ((0, 2112), (2176, 2176 + 12288 // tp))
    grid.check_scales(-(-(2112 + 12288 // tp) // 128))


def test_sizes_whose_scales_collide_are_refused() -> None:
    with pytest.raises(ValueError, match=r"need scale rows \(0, 1, 2\), vLLM loads them at \(0, 1, 1\)"):
        RowGrid((64, 64, 128), 128).check_scales(2)
