"""DSpark: a small model that guesses the next block of tokens, for the target to verify in one pass.

Shapes: N tokens of a block, B sequences, L tokens of a sequence that the target has seen, J captured layers, H heads
(64), c latent (512), r rotated part (64), hidden (7168), vocab, m Markov rank (256).

    context = RMSNorm( context_proj [captured_1 .. captured_J] )       for each of the L tokens, as they are verified
    cache   = [ RMSNorm(c) | RoPE(r) ],  [c, r] = kv_a context         one latent per draft layer and token
    block   = the anchor (the newest token, which the target has not seen) and N - 1 mask tokens at positions L, L+1, ..
    x       = x + o_proj Attention(RMSNorm x): all of the context and all of the block, both ways
    x       = x + down( SiLU(gate x) * up x )
    logits_i = lm_head( RMSNorm(x_i; final_norm) ) + markov_w2 markov_w1[token before],  i = 1 .. N, left to right

Position i of the block guesses the token after it, so the anchor guesses the first. How it is used:

    output = model.forward(batch, memory, capture=True)
    model.draft.remember(output.captured, batch.pieces, memory)        after every pass, prefill too
    proposals = model.draft.propose([Anchor(token, L, pages)], memory)

Latents of tokens that were rejected lie behind the sequence's end and are overwritten before anything reads them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from k3stack.errors import CheckpointError, UsageError
from k3stack.reference.batch import Memory, Piece
from k3stack.reference.model.arithmetic import by_columns
from k3stack.reference.model.cut import cells
from k3stack.reference.model.functions import rms_norm, sigmoid, silu
from k3stack.reference.model.mla import absorbed, read_latents, write_latents
from k3stack.reference.model.store import Section, Store
from k3stack.reference.model.vision import rotated
from k3stack.spec.draft import DraftSpec, Yarn

__all__ = ["Anchor", "Choose", "Draft", "Drafter", "Proposal", "greedy", "inverse_frequencies"]

Choose = Callable[[Tensor, int], tuple[Tensor, Tensor]]
"""Draws tokens: logits [B, vocab] and the place in the block (from 0) to tokens [B] and the probabilities [B, vocab]
they were drawn with."""


@dataclass(frozen=True, slots=True, eq=False)
class Anchor:
    """Where a block begins: the newest token, the number L of tokens before it, and the sequence's pages."""

    token: int
    length: int
    pages: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """A guessed block: tokens int64 [N], the probabilities [N, vocab] each was drawn with, confidence [N] or None."""

    tokens: Tensor
    probabilities: Tensor
    confidence: Tensor | None


class Drafter(Protocol):
    """What an engine needs of a draft; tests may give it one that is right as often as they like."""

    @property
    def captures(self) -> tuple[int, ...]:
        """The target's layers, from zero, after which it wants the running sum."""

    @property
    def block(self) -> int:
        """Tokens of a proposal."""

    def remember(self, captured: Tensor, pieces: Sequence[Piece], memory: Memory) -> None:
        """Take in what the target computed in a pass: `captured` [T, J hidden] of its `pieces`."""

    def propose(self, anchors: Sequence[Anchor], memory: Memory, choose: Choose = ...) -> list[Proposal]:
        """Guess a block for each anchor."""


def greedy(logits: Tensor, place: int) -> tuple[Tensor, Tensor]:
    """The likeliest token of logits [B, vocab], drawn with certainty; see `Choose`."""
    tokens = logits.argmax(-1)
    return tokens, F.one_hot(tokens, logits.shape[-1]).to(logits.dtype)


def inverse_frequencies(yarn: Yarn, width: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Radians per position of each pair [r / 2].

    YaRN: pairs that turn more than beta_fast times within the original length stay, those that turn less than
    beta_slow times are slowed down by `factor`, and those between are mixed.
    """
    own = 1.0 / yarn.theta ** (torch.arange(0, width, 2, dtype=dtype) / width)
    if yarn.factor <= 1:
        return own

    def pair_that_turns(times: float) -> float:
        return width * math.log(yarn.original / (times * 2 * math.pi)) / (2 * math.log(yarn.theta))

    low = max(math.floor(pair_that_turns(yarn.beta_fast)), 0)
    high = min(math.ceil(pair_that_turns(yarn.beta_slow)), width - 1)
    ramp = ((torch.arange(width // 2, dtype=dtype) - low) / max(high - low, 0.001)).clamp(0, 1)
    return own / yarn.factor * ramp + own * (1 - ramp)


def magnitude(factor: float, mscale: float) -> float:
    """YaRN's correction of the scores: 0.1 mscale ln(factor) + 1."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


class DraftLayer:
    """One dense layer with MLA and plain residuals."""

    def __init__(self, spec: DraftSpec, section: Section) -> None:
        self.spec, self.arithmetic = spec, section.store.arithmetic
        attention, mlp = section.section("self_attn"), section.section("mlp")
        self.matrices = {
            name: attention.matrix(name).dense()
            for name in ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj")
        }
        self.matrices |= {name: mlp.matrix(name).dense() for name in ("gate_proj", "up_proj", "down_proj")}
        self.input_norm, self.mlp_norm = (section.weight(f"{n}_layernorm") for n in ("input", "post_attention"))
        self.q_a_norm, self.kv_a_norm = (attention.weight(f"{n}_layernorm") for n in ("q_a", "kv_a"))
        mla, yarn = spec.attention, spec.yarn
        self.scale = (mla.qk_nope_head_dim + mla.qk_rope_head_dim) ** -0.5
        self.scale *= magnitude(yarn.factor, yarn.mscale_all_dim) ** 2

    def latents(self, x: Tensor, angles: Tensor, stretch: float) -> Tensor:
        """What the cache keeps of x [T, hidden]: [T, c + r]."""
        c, r = self._halves(self._project(x, "kv_a_proj_with_mqa"), self.spec.attention.kv_lora_rank)
        c = rms_norm(c, self.kv_a_norm, self.spec.epsilon, self.arithmetic.wide)
        return torch.cat([c, rotated(r[:, None], angles)[:, 0] * stretch], dim=1)

    def __call__(self, x: Tensor, angles: Tensor, stretch: float, contexts: list[Tensor]) -> Tensor:
        """x [B N, hidden] to the same; contexts are the cached latents [L, c + r] of each sequence."""
        mla, wide, epsilon = self.spec.attention, self.arithmetic.wide, self.spec.epsilon
        normed = rms_norm(x, self.input_norm, epsilon, wide)
        low = rms_norm(self._project(normed, "q_a_proj"), self.q_a_norm, epsilon, wide)
        q = self._project(low, "q_b_proj").view(len(x), mla.heads, -1)
        q_k, q_r = self._halves(q, mla.qk_nope_head_dim)
        W = self.matrices["kv_b_proj"].view(mla.heads, -1, mla.kv_lora_rank)
        W_k, W_v = W[:, : mla.qk_nope_head_dim], W[:, mla.qk_nope_head_dim :]
        q = torch.cat([self.arithmetic.per_head(q_k, W_k), rotated(q_r, angles) * stretch], dim=2)
        own = self.latents(normed, angles, stretch)
        seen = q.new_empty(len(x), mla.heads, mla.kv_lora_rank)
        N = self.spec.block
        for b, context in enumerate(contexts):
            rows = slice(b * N, (b + 1) * N)
            keys = torch.cat([context, own[rows]])
            last = torch.full((N,), len(keys) - 1, device=x.device)  # the whole block, both ways
            seen[rows] = absorbed(q[rows], keys, last, mla.kv_lora_rank, self.scale, wide)
        x = x + self._project(self.arithmetic.per_head(seen, W_v.transpose(1, 2)).flatten(1), "o_proj")
        normed = rms_norm(x, self.mlp_norm, epsilon, wide)
        gated = silu(self._project(normed, "gate_proj")) * self._project(normed, "up_proj")
        return x + self._project(gated, "down_proj")

    def _project(self, x: Tensor, name: str) -> Tensor:
        return self.arithmetic.linear(x, self.matrices[name])

    @staticmethod
    def _halves(x: Tensor, first: int) -> tuple[Tensor, Tensor]:
        return x[..., :first], x[..., first:]


class Draft:
    """A DSpark draft; made by `load_model` with `draft`."""

    def __init__(self, spec: DraftSpec, store: Store, embedding: Tensor, head: Tensor) -> None:
        self.spec, self.arithmetic = spec, store.arithmetic
        self.embedding, self.head = embedding, head
        root = store.section("")
        self.context_proj = root.matrix("context_proj").dense()
        self.context_norm, self.final_norm = root.weight("context_norm"), root.weight("final_norm")
        self.layers = [DraftLayer(spec, root.section(f"layers.{layer}")) for layer in range(spec.layers)]
        markov = root.section("markov_head")
        self.markov_w1, self.markov_w2 = (markov.weight("markov_w1"), by_columns(markov.weight("markov_w2")))
        self.confidence: tuple[Tensor, Tensor] | None = None
        if spec.confidence:
            head_of = root.section("confidence_head")
            self.confidence = (head_of.tensor("proj.weight")[0], head_of.tensor("proj.bias"))
        width, yarn = spec.attention.qk_rope_head_dim, spec.yarn
        self.frequencies = inverse_frequencies(yarn, width, self.arithmetic.wide).to(embedding.device)
        self.stretch = magnitude(yarn.factor, yarn.mscale) / magnitude(yarn.factor, yarn.mscale_all_dim)
        for name, own in (("embed_tokens", embedding), ("lm_head", head)):
            if f"{name}.weight" in store.left and not torch.equal(root.weight(name), own):
                raise CheckpointError(
                    f"tensor {name}.weight differs from the target's: this draft was made for another model",
                    where=store.source.name,
                )

    @property
    def captures(self) -> tuple[int, ...]:
        """The target's layers, from zero, after which it wants the running sum."""
        return self.spec.captures

    @property
    def block(self) -> int:
        """N, tokens of a proposal."""
        return self.spec.block

    @torch.no_grad()
    def remember(self, captured: Tensor, pieces: Sequence[Piece], memory: Memory) -> None:
        """Store the latents of the tokens of a pass.

        Args:
            captured: [T, J hidden], from `Output.captured`.
            pieces: of that pass.
            memory: the same.
        """
        draft = self._cache(memory)
        projected = self.arithmetic.linear(captured, self.context_proj)
        context = rms_norm(projected, self.context_norm, self.spec.epsilon, self.arithmetic.wide)
        places = [torch.arange(piece.start, piece.start + piece.length) for piece in pieces]
        angles = self._angles(torch.cat(places))
        where = cells(pieces, draft.shape[2], draft.device)
        for layer, kept in zip(self.layers, draft, strict=True):
            write_latents(layer.latents(context, angles, self.stretch), where, kept)

    @torch.no_grad()
    def propose(self, anchors: Sequence[Anchor], memory: Memory, choose: Choose = greedy) -> list[Proposal]:
        """Guess a block of N tokens for each anchor; memory stays as it is.

        Args:
            anchors: B of them; all L tokens before each must have been remembered.
            memory: with the draft's cache.
            choose: draws from the logits of one place in all B blocks.
        """
        draft, N, B = self._cache(memory), self.spec.block, len(anchors)
        device = self.embedding.device
        first = torch.tensor([anchor.token for anchor in anchors], device=device)
        tokens = torch.full((B, N), self.spec.mask_token, device=device)
        tokens[:, 0] = first
        starts = torch.tensor([anchor.length for anchor in anchors])
        angles = self._angles((starts[:, None] + torch.arange(N)).flatten())
        x = self.embedding[tokens.flatten()]
        before = [Piece(0, anchor.length, 0, anchor.pages, 0) for anchor in anchors]
        for layer, kept in zip(self.layers, draft, strict=True):
            x = layer(x, angles, self.stretch, [read_latents(piece, kept, x.dtype) for piece in before])
        hidden = rms_norm(x, self.final_norm, self.spec.epsilon, self.arithmetic.wide)
        logits = self.arithmetic.linear(hidden, self.head).to(self.arithmetic.wide).view(B, N, -1)
        drawn, probabilities, confidence = self._walk(first, logits, hidden.view(B, N, -1), choose)
        return [Proposal(drawn[b], probabilities[b], None if confidence is None else confidence[b]) for b in range(B)]

    def _walk(
        self, token: Tensor, logits: Tensor, hidden: Tensor, choose: Choose
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Draw the blocks left to right, each token changing the odds of the next: [B, N], [B, N, vocab], [B, N]."""
        drawn, odds, sure = [], [], []
        for place in range(self.spec.block):
            markov = self.markov_w1[token]  # [B, m]
            bias = self.arithmetic.linear(markov, self.markov_w2)
            if self.confidence is not None:  # sigmoid(w [hidden | markov] + b)
                weight, offset = self.confidence
                joined = torch.cat([hidden[:, place], markov], dim=1).to(weight.dtype)
                sure.append(sigmoid((joined * weight).sum(-1) + offset))
            token, probabilities = choose(logits[:, place] + bias, place)
            drawn.append(token)
            odds.append(probabilities)
        return torch.stack(drawn, 1), torch.stack(odds, 1), torch.stack(sure, 1) if sure else None

    def _angles(self, places: Tensor) -> Tensor:
        return places.to(self.frequencies)[:, None] * self.frequencies

    def _cache(self, memory: Memory) -> Tensor:
        if memory.draft is None:
            raise UsageError("has no cache for the draft", where="memory", hint="Make it with model.new_memory.")
        return memory.draft
