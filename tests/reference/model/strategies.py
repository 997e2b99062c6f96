"""What the laws are tried on: dtypes with the error each may have, and random tensors from a seed."""

import torch
from hypothesis import strategies as st
from torch import Tensor

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}

dtypes = st.sampled_from(list(TOLERANCE))
seeds = st.integers(0, 2**31)


class Numbers:
    """Random tensors that depend on a seed alone."""

    def __init__(self, seed: int, dtype: torch.dtype) -> None:
        self.generator, self.dtype = torch.Generator().manual_seed(seed), dtype

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator, dtype=torch.float64).to(self.dtype)

    def uniform(self, *shape: int) -> Tensor:
        return torch.rand(*shape, generator=self.generator, dtype=torch.float64).to(self.dtype)

    def tokens(self, count: int, below: int = 512) -> Tensor:
        return torch.randint(0, below, (count,), generator=self.generator)


def assert_close(found: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    """Within the tolerance of a dtype, relative to the largest expected magnitude (at least 1)."""
    assert found.shape == expected.shape
    largest = max(1.0, float(expected.abs().max())) if expected.numel() else 1.0
    error = float((found.double() - expected.double()).abs().max()) if expected.numel() else 0.0
    assert error <= TOLERANCE[dtype] * largest, f"off by {error:.2e}, largest value {largest:.2f}"
