"""LatentMoE: grouping tokens by expert changes nothing, and both 4-bit formats hold the same experts."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from k3stack.checkpoint.convert.run import Conversion
from k3stack.reference.model import K3, load_model
from k3stack.reference.model.moe import LatentMoe, Routing, route
from k3stack.spec import Scheme
from tests.reference.model.strategies import Numbers, assert_close, dtypes, seeds

Folder = Callable[[str], Path]


def moe_of(model: K3, layer: int = 1) -> LatentMoe:
    found = model.layers[layer].ffn
    assert isinstance(found, LatentMoe)
    return found


@settings(max_examples=25)
@given(seeds, dtypes, st.integers(1, 6), st.integers(2, 12), st.booleans(), st.sampled_from([1.0, 2.5]))
def test_routing_token_by_token(seed: int, dtype: torch.dtype, T: int, E: int, renormalize: bool, scale: float) -> None:
    numbers = Numbers(seed, dtype)
    logits, bias, chosen = numbers.normal(T, E), 0.1 * numbers.normal(E), min(3, E)
    experts, weights = route(logits, bias, chosen, Routing(renormalize, scale))
    for t in range(T):
        scores = [1 / (1 + 2.718281828459045 ** -float(x)) for x in logits[t]]
        order = sorted(range(E), key=lambda e: -(scores[e] + float(bias[e])))[:chosen]
        assert set(experts[t].tolist()) == set(order)
        total = sum(scores[e] for e in order) if renormalize else 1.0
        expected = torch.tensor([scale * scores[e] / total for e in experts[t].tolist()], dtype=torch.float64)
        assert_close(weights[t], expected, dtype)


@settings(max_examples=8)
@given(seeds, st.integers(1, 20))
def test_grouped_experts_are_a_loop_over_tokens(float64_model: K3, model: K3, seed: int, T: int) -> None:
    for one in (float64_model, model):
        moe, dtype = moe_of(one), one.arithmetic.dtype
        numbers = Numbers(seed, dtype)
        z = numbers.normal(T, moe.spec.latent_width)
        experts = torch.stack([torch.randperm(8, generator=numbers.generator)[:2] for _ in range(T)])
        weights = numbers.uniform(T, 2)
        expected = torch.zeros_like(z, dtype=torch.float64)
        for t in range(T):
            for e, weight in zip(experts[t].tolist(), weights[t], strict=True):
                gate, up = moe.w1.dense(e).double() @ z[t].double(), moe.w3.dense(e).double() @ z[t].double()
                inner = 4 * torch.tanh(gate / 4) * torch.sigmoid(gate) * 25 * torch.tanh(up / 25)
                expected[t] += weight.double() * (moe.w2.dense(e).double() @ inner)
        assert_close(moe.experts(z, experts, weights), expected, dtype)


@pytest.fixture(scope="module")
def float64_model(folder: Folder) -> K3:
    return load_model(folder("mxfp4"), dtype=torch.float64)


@pytest.mark.parametrize("scheme", [Scheme.NVFP4_EXPERTS, Scheme.NVFP4_MIXED])
@pytest.mark.parametrize("keep_quantised", [False, True])
def test_a_conversion_to_nvfp4_keeps_every_expert_bit_for_bit(
    folder: Folder, tmp_path: Path, scheme: Scheme, keep_quantised: bool
) -> None:
    Conversion(folder("mxfp4"), tmp_path / "nvfp4", scheme).run()
    before = load_model(folder("mxfp4"), keep_quantised=keep_quantised)
    after = load_model(tmp_path / "nvfp4", keep_quantised=keep_quantised)
    z = Numbers(1, torch.float32).normal(5, before.spec.moe.latent_width)
    for layer in range(1, len(before.layers)):
        one, other = moe_of(before, layer), moe_of(after, layer)
        assert keep_quantised == (one.w1.encoding is not other.w1.encoding)
        for expert in range(before.spec.moe.experts):
            assert torch.equal(one.expert(z, expert), other.expert(z, expert))
            assert one.expert(z, expert).abs().max() > 0
