"""The whole model: what it computes, and that a sequence's numbers do not depend on what happens around it."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from k3stack.errors import UsageError
from k3stack.reference.batch import Batch, Images, Piece, zeroed
from k3stack.reference.model import K3, load_model
from tests.reference.model.passes import new_memory, pages_for, run
from tests.reference.model.strategies import Numbers, assert_close, seeds
from tests.reference.model.transcript import Transcript

Folder = Callable[[str], Path]


@pytest.mark.parametrize("scheme", ["mxfp4", "nvfp4-mixed"])
def test_the_model_computes_what_the_equations_say(folder: Folder, scheme: str) -> None:
    """In float64, where the tolerance is far below any wrong epsilon, order or index."""
    tokens = Numbers(1, torch.float32).tokens(9)
    expected = Transcript(folder(scheme)).logits(tokens.tolist())
    model = load_model(folder(scheme), dtype=torch.float64)
    hidden = run(model, tokens, [5, 1, 3])
    assert_close(model.logits(hidden), expected, torch.float64)


def test_float32_is_close_to_float64_and_bfloat16_near(folder: Folder, model: K3) -> None:
    tokens = Numbers(2, torch.float32).tokens(24)
    exact = load_model(folder("mxfp4"), dtype=torch.float64)
    expected = exact.logits(run(exact, tokens, [24]))
    assert_close(model.logits(run(model, tokens, [24])), expected, torch.float32)
    rough = load_model(folder("mxfp4"), dtype=torch.bfloat16)
    found = rough.logits(run(rough, tokens, [24]))
    assert found.dtype is torch.float32
    assert likeness(found, expected) > 0.999


def likeness(found: Tensor, expected: Tensor) -> float:
    """The median over tokens of how well logits correlate: in BF16 a token whose best experts tie may jump."""
    pairs = zip(found.double(), expected.double(), strict=True)
    return float(torch.stack([torch.corrcoef(torch.stack(pair))[0, 1] for pair in pairs]).median())


def test_fast_arithmetic_agrees_to_rounding(folder: Folder, model: K3) -> None:
    """Chunked KDA, plain attention and whole products."""
    tokens = Numbers(3, torch.float32).tokens(60)
    fast = load_model(folder("mxfp4"), steady=False)
    assert_close(fast.logits(run(fast, tokens, [40, 20])), model.logits(run(model, tokens, [60])), torch.float32)


@settings(max_examples=6)
@given(seeds, st.lists(st.integers(1, 8), min_size=1, max_size=5))
def test_where_a_prompt_is_cut_changes_no_bit(model: K3, seed: int, lengths: list[int]) -> None:
    tokens = Numbers(seed, torch.float32).tokens(sum(lengths))
    assert torch.equal(run(model, tokens, lengths), run(model, tokens, [len(tokens)]))


@settings(max_examples=4)
@given(seeds, st.lists(st.tuples(st.integers(0, 12), st.integers(1, 6)), min_size=2, max_size=5))
def test_what_else_is_in_a_batch_changes_no_bit(model: K3, seed: int, sizes: list[tuple[int, int]]) -> None:
    """Sequences with different pasts, some decoding, some in prefill, in one pass against each alone."""
    numbers, memory = Numbers(seed, torch.float32), new_memory(model)
    sequences = [numbers.tokens(start + length) for start, length in sizes]
    pieces, parts, row = [], [], 0
    for place, ((start, length), tokens) in enumerate(zip(sizes, sequences, strict=True)):
        if start:
            run(model, tokens[:start], [start], memory, place)
        pieces.append(Piece(row, length, start, pages_for(place, start + length), place))
        parts.append(tokens[start:])
        row += length
    together = model.forward(Batch(torch.cat(parts), tuple(pieces)), memory).hidden
    for piece, tokens in zip(pieces, sequences, strict=True):
        alone = run(model, tokens, [len(tokens)])[piece.start :]
        assert torch.equal(together[piece.first : piece.first + piece.length], alone)


def test_a_reused_slot_and_reused_pages_leave_nothing_behind(model: K3) -> None:
    numbers, memory = Numbers(4, torch.float32), new_memory(model)
    first, second = numbers.tokens(20), numbers.tokens(13)
    run(model, first, [20], memory)
    assert torch.equal(run(model, second, [6, 7], memory), run(model, second, [13]))
    zeroed(memory, 0)
    assert not memory.recurrent[:, 0].any() and not memory.conv[:, 0].any()


@settings(max_examples=5)
@given(seeds, st.integers(1, 5), st.integers(0, 3))
def test_rejected_tokens_are_taken_back(model: K3, seed: int, guessed: int, start: int) -> None:
    """A pass with a trail, of which only some tokens are kept, then the true tokens: as if nothing was guessed."""
    numbers, memory = Numbers(seed, torch.float32), new_memory(model)
    tokens, wrong = numbers.tokens(start + 8), numbers.tokens(guessed)
    pages = pages_for(0, 24)
    if start:
        model.forward(Batch(tokens[:start], (Piece(0, start, 0, pages, 0),)), memory)
    trailed = torch.cat([tokens[start : start + 2], wrong])
    model.forward(Batch(trailed, (Piece(0, len(trailed), start, pages, 0, trail=True),)), memory)
    memory.rewind(0, kept=2)
    rest = model.forward(Batch(tokens[start + 2 :], (Piece(0, 6, start + 2, pages, 0),)), memory).hidden
    assert torch.equal(rest, run(model, tokens, [len(tokens)])[start + 2 :])
    assert not memory.trails


@pytest.mark.parametrize("latent", [torch.bfloat16, torch.float8_e4m3fn])
def test_a_rounded_cache_moves_logits_little_and_the_same_wherever_cut(model: K3, latent: torch.dtype) -> None:
    tokens = Numbers(6, torch.float32).tokens(40)
    exact = model.logits(run(model, tokens, [40]))
    whole = run(model, tokens, [40], new_memory(model, latent))
    assert torch.equal(whole, run(model, tokens, [17, 1, 1, 21], new_memory(model, latent)))
    moved = (model.logits(whole) - exact).abs().amax(1)  # of each token
    # The median: where two experts score nearly the same, rounding may choose the other one, and a token jumps.
    assert 0 < moved.median() < {torch.bfloat16: 0.05, torch.float8_e4m3fn: 0.5}[latent]


def test_images_take_the_place_of_embeddings(folder: Folder) -> None:
    model = load_model(folder("mxfp4"), dtype=torch.float64)
    numbers = Numbers(7, torch.float64)
    tokens, vectors = numbers.tokens(6), numbers.normal(2, 256)
    images = Images(torch.tensor([2, 3]), vectors)
    made = model.forward(Batch(tokens, (Piece(0, 6, 0, pages_for(0, 6), 0),), images), new_memory(model)).hidden
    replaced = {2: vectors[0], 3: vectors[1]}
    assert_close(model.logits(made), Transcript(folder("mxfp4")).logits(tokens.tolist(), replaced), torch.float64)


def test_weights_kept_quantised_compute_the_same(folder: Folder) -> None:
    tokens = Numbers(8, torch.float32).tokens(4)
    for scheme in ("mxfp4", "nvfp4-mixed", "fp8-block"):
        once, every_use = load_model(folder(scheme)), load_model(folder(scheme), keep_quantised=True)
        assert torch.equal(run(once, tokens, [4]), run(every_use, tokens, [4])), scheme


def test_the_other_epsilon_can_be_had(folder: Folder, model: K3) -> None:
    tokens = Numbers(9, torch.float32).tokens(10)
    other = load_model(folder("mxfp4"), low_rank_epsilon=1e-6)
    moved = (other.logits(run(other, tokens, [10])) - model.logits(run(model, tokens, [10]))).abs().max()
    assert 0 < moved < 1e-3


def test_pieces_must_tile_the_tokens(model: K3) -> None:
    tokens, pages = torch.arange(4), torch.arange(1)
    with pytest.raises(ValueError, match="expected row 0"):
        model.forward(Batch(tokens, (Piece(1, 3, 0, pages, 0),)), new_memory(model))
    with pytest.raises(ValueError, match="3 tokens, the batch 4"):
        model.forward(Batch(tokens, (Piece(0, 3, 0, pages, 0),)), new_memory(model))
    with pytest.raises(ValueError, match="do not fit 1 pages"):
        model.forward(Batch(tokens, (Piece(0, 4, 6, pages, 0),)), new_memory(model))


def test_an_unusable_dtype_is_refused(folder: Folder) -> None:
    with pytest.raises(UsageError, match="float16"):
        load_model(folder("mxfp4"), dtype=torch.float16)


@pytest.mark.slow
@settings(max_examples=12)
@given(seeds, st.lists(st.integers(1, 40), min_size=1, max_size=4), st.integers(1, 4))
def test_long_sequences_on_any_number_of_threads_change_no_bit(
    model: K3, seed: int, lengths: list[int], threads: int
) -> None:
    """Over several tiles of rows, and with a library that shares its products out in other ways."""
    tokens = Numbers(seed, torch.float32).tokens(min(sum(lengths), 80))
    cut, left = [], len(tokens)
    for length in lengths:
        cut.append(min(length, left))
        left -= cut[-1]
    torch.set_num_threads(threads)
    try:
        pieces = [length for length in cut if length]
        assert torch.equal(run(model, tokens, pieces), run(model, tokens, [1] * len(tokens)))
    finally:
        torch.set_num_threads(1)
