"""The draft: what it computes, that it sees what it should, and that guessing with it loses nothing."""

import json
import math
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from k3stack.errors import CheckpointError, ConfigError, UsageError
from k3stack.reference.batch import Batch, Memory, Piece
from k3stack.reference.model import K3, load_model
from k3stack.reference.model.draft import Anchor, Choose, Draft, Drafter, Proposal, greedy, inverse_frequencies
from k3stack.spec.draft import DraftSpec, Yarn, draft_families
from tests.reference.model.passes import new_memory, pages_for, run
from tests.reference.model.strategies import Numbers, assert_close

Folder = Callable[[str], Path]
PUBLISHED = {
    "model_type": "k3_dspark", "hidden_size": 7168, "vocab_size": 163840, "num_hidden_layers": 5,
    "intermediate_size": 14336, "num_attention_heads": 64, "q_lora_rank": 1536, "kv_lora_rank": 512,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "rms_norm_eps": 1e-5,
    "target_layer_ids": [2, 23, 47, 71, 89], "num_target_layers": 5, "target_hidden_size": 7168, "markov_rank": 256,
    "mask_token_id": 163837, "enable_confidence_head": True, "confidence_head_with_markov": True,
}  # fmt: skip


@pytest.fixture(scope="module")
def exact(folder: Folder) -> K3:
    return load_model(folder("mxfp4"), dtype=torch.float64, draft=folder("draft"))


@pytest.fixture(scope="module")
def drafted(folder: Folder) -> K3:
    return load_model(folder("mxfp4"), draft=folder("draft"))


def draft_of(model: K3) -> Draft:
    assert isinstance(model.draft, Draft)
    return model.draft


def test_the_published_draft_has_its_published_parameters() -> None:
    spec = DraftSpec.from_config(PUBLISHED)
    assert sum(family.parameters for family in draft_families(spec)) == 2_387_907_841


def by_hand(folder: Path, captured: Tensor, anchor: int, embedding: Tensor, head: Tensor) -> Tensor:
    """The logits [N, vocab] of a block before the Markov head, from the equations, in float64."""
    w = {name: tensor.double() for name, tensor in load_file(folder / "model.safetensors").items()}
    config = json.loads((folder / "config.json").read_text())
    h, N, L = config["num_attention_heads"], config["block_size"], len(captured)
    frequencies = inverse_frequencies(DraftSpec.from_config(config).yarn, 64, torch.float64)

    def norm(x: Tensor, weight: str) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * w[f"{weight}.weight"]

    def turned(x: Tensor, position: int) -> Tensor:
        made = x.clone()
        for pair in range(32):
            angle = position * float(frequencies[pair])
            a, b = x[..., 2 * pair], x[..., 2 * pair + 1]
            made[..., 2 * pair] = a * math.cos(angle) - b * math.sin(angle)
            made[..., 2 * pair + 1] = a * math.sin(angle) + b * math.cos(angle)
        return made

    context = norm(captured @ w["context_proj.weight"].T, "context_norm")
    x = embedding[[anchor] + [config["mask_token_id"]] * (N - 1)]
    scale = (0.1 * math.log(32) + 1) ** 2 / math.sqrt(192)
    for layer in range(config["num_hidden_layers"]):
        here = f"layers.{layer}.self_attn"
        normed = norm(x, f"layers.{layer}.input_layernorm")
        latent = torch.cat([context, normed]) @ w[f"{here}.kv_a_proj_with_mqa.weight"].T
        c = norm(latent[:, :512], f"{here}.kv_a_layernorm")
        kv = (c @ w[f"{here}.kv_b_proj.weight"].T).view(L + N, h, 256)
        r = torch.stack([turned(latent[t, 512:], t) for t in range(L + N)])
        low = norm(normed @ w[f"{here}.q_a_proj.weight"].T, f"{here}.q_a_layernorm")
        q = (low @ w[f"{here}.q_b_proj.weight"].T).view(N, h, 192)
        made = torch.zeros(N, h, 128, dtype=torch.float64)
        for i in range(N):
            for j in range(h):
                scores = kv[:, j, :128] @ q[i, j, :128] + r @ turned(q[i, j, 128:], L + i)
                made[i, j] = (scores * scale).softmax(0) @ kv[:, j, 128:]
        x = x + made.flatten(1) @ w[f"{here}.o_proj.weight"].T
        normed = norm(x, f"layers.{layer}.post_attention_layernorm")
        gate, up = (normed @ w[f"layers.{layer}.mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        x = x + (gate * torch.sigmoid(gate) * up) @ w[f"layers.{layer}.mlp.down_proj.weight"].T
    return norm(x, "final_norm") @ head.T


def test_a_block_is_what_the_equations_say(folder: Folder, exact: K3) -> None:
    tokens, pages = Numbers(1, torch.float32).tokens(11), pages_for(0, 30)
    memory, seen = new_memory(exact), []
    for start, length in ((0, 7), (7, 4)):
        piece = Piece(0, length, start, pages, 0)
        output = exact.forward(Batch(tokens[start : start + length], (piece,)), memory, capture=True)
        assert output.captured is not None
        draft_of(exact).remember(output.captured, [piece], memory)
        seen.append(output.captured)
    logits: list[Tensor] = []

    def choose(values: Tensor, place: int) -> tuple[Tensor, Tensor]:
        logits.append(values)
        return greedy(values, place)

    (proposal,) = draft_of(exact).propose([Anchor(99, 11, pages)], memory, choose)
    base = by_hand(folder("draft"), torch.cat(seen), 99, exact.embedding, exact.head)
    w = {name: tensor.double() for name, tensor in load_file(folder("draft") / "model.safetensors").items()}
    previous = 99
    for place in range(4):
        markov = w["markov_head.markov_w1.weight"][previous]
        expected = base[place] + w["markov_head.markov_w2.weight"] @ markov
        assert_close(logits[place][0], expected, torch.float64)
        previous = int(expected.argmax())
        assert proposal.tokens[place] == previous
        assert proposal.probabilities[place, previous] == 1
    assert proposal.confidence is not None and ((proposal.confidence > 0) & (proposal.confidence < 1)).all()


def test_the_captured_states_are_the_running_sums(exact: K3) -> None:
    """After the last captured layer but one, so before the last layer: the model's own sum there."""
    tokens, memory = torch.arange(3), new_memory(exact)
    output = exact.forward(Batch(tokens, (Piece(0, 3, 0, pages_for(0, 3), 0),)), memory, capture=True)
    assert output.captured is not None
    assert output.captured.shape == (3, 256 * len(draft_of(exact).captures))
    assert draft_of(exact).captures == (0, 2, 3)
    assert not torch.equal(output.captured[:, :256], output.captured[:, 256:512])
    assert exact.forward(Batch(tokens, (Piece(0, 3, 0, pages_for(1, 3), 1),)), memory).captured is None


def test_a_block_does_not_depend_on_other_blocks(drafted: K3) -> None:
    numbers, memory = Numbers(3, torch.float32), new_memory(drafted)
    draft, anchors = draft_of(drafted), []
    for place, length in enumerate((5, 12, 1)):
        piece = Piece(0, length, 0, pages_for(place, 30), place)
        output = drafted.forward(Batch(numbers.tokens(length), (piece,)), memory, capture=True)
        assert output.captured is not None
        draft.remember(output.captured, [piece], memory)
        anchors.append(Anchor(place + 5, length, piece.pages))
    for anchor, proposal in zip(anchors, draft.propose(anchors, memory), strict=True):
        (alone,) = draft.propose([anchor], memory)
        assert torch.equal(alone.tokens, proposal.tokens)


class Mostly:
    """A draft that knows the true continuation and is wrong at every third guess."""

    captures: tuple[int, ...] = ()
    block = 4

    def __init__(self, truth: list[int]) -> None:
        self.truth, self.guesses = truth, 0

    def remember(self, captured: Tensor, pieces: Sequence[Piece], memory: Memory) -> None:
        raise AssertionError("nothing was captured for it")

    def propose(self, anchors: Sequence[Anchor], memory: Memory, choose: Choose = greedy) -> list[Proposal]:
        (anchor,) = anchors
        tokens = self.truth[anchor.length + 1 : anchor.length + 1 + self.block]
        tokens += [0] * (self.block - len(tokens))
        for place in range(self.block):
            self.guesses += 1
            tokens[place] = tokens[place] if self.guesses % 3 else (tokens[place] + 1) % 512
        return [Proposal(torch.tensor(tokens), torch.zeros(self.block, 512), None)]


def generate(model: K3, prompt: Tensor, count: int) -> list[int]:
    """Greedy tokens, one at a time."""
    memory, pages, tokens = new_memory(model), pages_for(0, 60), prompt.tolist()
    start = 0
    for _ in range(count):
        piece = Piece(0, len(tokens) - start, start, pages, 0)
        hidden = model.forward(Batch(torch.tensor(tokens[start:]), (piece,)), memory).hidden
        start = len(tokens)
        tokens.append(int(model.logits(hidden[-1:]).argmax()))
    return tokens


def generate_by_guessing(model: K3, draft: Drafter, prompt: Tensor, count: int) -> tuple[list[int], int]:
    """Greedy tokens, a block at a time; also how many passes they took."""
    memory, pages, tokens, passes = new_memory(model), pages_for(0, 60), prompt.tolist(), 1
    piece = Piece(0, len(tokens), 0, pages, 0)
    output = model.forward(Batch(prompt, (piece,)), memory, capture=True)
    while True:
        if output.captured is not None:
            draft.remember(output.captured, [piece], memory)
        if passes == 1:
            tokens.append(int(model.logits(output.hidden[-1:]).argmax()))
        if len(tokens) >= len(prompt) + count:
            return tokens[: len(prompt) + count], passes
        start = len(tokens) - 1
        (proposal,) = draft.propose([Anchor(tokens[-1], start, pages)], memory)
        block = [tokens[-1], *proposal.tokens.tolist()]
        piece = Piece(0, len(block), start, pages, 0, trail=True)
        output = model.forward(Batch(torch.tensor(block), (piece,)), memory, capture=True)
        truth = model.logits(output.hidden).argmax(-1).tolist()
        kept = 1
        while kept < len(block) and block[kept] == truth[kept - 1]:
            kept += 1
        memory.rewind(0, kept)
        tokens += truth[:kept]
        piece = Piece(0, kept, start, pages, 0)
        passes += 1
        if output.captured is not None:
            output = type(output)(output.hidden, output.captured[:kept])


def test_guessing_loses_nothing(drafted: K3) -> None:
    prompt = Numbers(4, torch.float32).tokens(9)
    expected = generate(drafted, prompt, 24)
    found, passes = generate_by_guessing(drafted, draft_of(drafted), prompt, 24)
    assert found == expected
    often_right = Mostly(expected)
    kept, drafted.draft = drafted.draft, often_right
    try:
        found, fewer = generate_by_guessing(drafted, often_right, prompt, 24)
    finally:
        drafted.draft = kept
    assert found == expected
    assert fewer < 14 < passes  # and is worth it, when the guesses are good


def test_yarn_keeps_fast_pairs_and_slows_down_slow_ones() -> None:
    plain, stretched = (inverse_frequencies(Yarn(50_000.0, factor), 64) for factor in (1.0, 32.0))
    ratio = plain / stretched
    assert_close(ratio[:8], torch.ones(8), torch.float32)
    assert_close(ratio[-4:], torch.full((4,), 32.0), torch.float32)
    assert (ratio.diff() >= -1e-4).all()


def edit_config(folder: Path, target: Path, **fields: object) -> Path:
    shutil.copytree(folder, target)
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | fields))
    return target


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"target_layer_ids": [0, 2, 9]}, "target_layer_ids: names layer 9"),
        ({"target_layer_ids": [2, 0, 3]}, "target_layer_ids: must name"),
        ({"vocab_size": 100}, "vocab_size: is 100"),
        ({"mla_use_output_gate": True}, "mla_use_output_gate"),
        ({"markov_rank": "many"}, "markov_rank: is 'many'"),
        ({"rope_parameters": {"factor": "x"}}, r"config\.json: rope_parameters\.factor"),
    ],
)
def test_a_draft_that_does_not_fit_is_refused(
    folder: Folder, tmp_path: Path, fields: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        load_model(folder("mxfp4"), draft=edit_config(folder("draft"), tmp_path / "x", **fields))


@pytest.mark.parametrize(
    ("text", "message"),
    [(None, "is not there"), ("{", "is not JSON"), ("[]", "is not a JSON object"), ("{}", "model_type: is missing")],
)
def test_a_draft_without_a_config_is_refused(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=rf"config\.json: {message}"):
        DraftSpec.from_config(tmp_path)


def test_a_draft_of_another_model_is_refused(folder: Folder, tmp_path: Path) -> None:
    path = Path(shutil.copytree(folder("draft"), tmp_path / "x")) / "model.safetensors"
    tensors = load_file(path)
    tensors["embed_tokens.weight"][3, 4] += 1
    save_file(tensors, path)
    with pytest.raises(CheckpointError, match="made for another model"):
        load_model(folder("mxfp4"), draft=path.parent)
    del tensors["embed_tokens.weight"], tensors["context_norm.weight"]
    save_file(tensors, path)
    with pytest.raises(CheckpointError, match=r"context_norm\.weight is missing"):
        load_model(folder("mxfp4"), draft=path.parent)


def test_a_memory_without_a_cache_for_the_draft_is_refused(model: K3, drafted: K3) -> None:
    with pytest.raises(UsageError, match=r"model\.new_memory"):
        draft_of(drafted).propose([Anchor(1, 1, torch.arange(1))], new_memory(model))


def test_a_draft_changes_nothing_in_the_model(model: K3, drafted: K3) -> None:
    tokens = Numbers(5, torch.float32).tokens(8)
    assert torch.equal(run(model, tokens, [8]), run(drafted, tokens, [8]))
