"""A model of a few lines that keeps to the border: its next token depends on all tokens before it and nothing else.

It reads its history from the pages (all of it, weighted by position), from the recurrent state (a rolling hash) and
from the convolution window (the last tokens). So a wrong page, slot, snapshot, rewind or neighbour changes its answer.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from k3stack.reference.batch import Batch, Memory, Output, Piece, Trail, zeroed
from k3stack.reference.model.draft import Anchor, Choose, Proposal, greedy

VOCABULARY = 64
PRIME = 65_521
WINDOW = 3


class FakeModel:
    """Answers with a hash of the history."""

    def __init__(self) -> None:
        self.passes: list[list[int]] = []

    def new_memory(self, pages: int, page_tokens: int, slots: int, latent_dtype: torch.dtype) -> Memory:
        return Memory(
            latent=torch.full((1, pages, page_tokens, 1), 7.0, dtype=torch.float32),
            recurrent=torch.full((1, slots, 1, 1, 1), 7.0),
            conv=torch.full((1, slots, WINDOW, 1), 7.0),
        )

    def forward(self, batch: Batch, memory: Memory, capture: bool = False) -> Output:
        self.passes.append([piece.length for piece in batch.pieces])
        hidden = torch.empty(len(batch.tokens), 1, dtype=torch.float64)
        assert sum(piece.length for piece in batch.pieces) == len(batch.tokens)
        for piece in batch.pieces:
            self._piece(batch, piece, memory, hidden)
        return Output(hidden, hidden if capture else None)

    def logits(self, hidden: Tensor) -> Tensor:
        grid = (hidden + 1) * torch.arange(1, VOCABULARY + 1) * 12.9898
        return (torch.sin(grid) * 5).float()

    def _piece(self, batch: Batch, piece: Piece, memory: Memory, hidden: Tensor) -> None:
        if piece.start == 0:
            zeroed(memory, piece.slot)
        state, window = memory.recurrent[0, piece.slot], memory.conv[0, piece.slot]
        after = []
        for row in range(piece.first, piece.first + piece.length):
            place = piece.start + row - piece.first
            value = float(batch.tokens[row])
            if batch.images is not None and (batch.images.rows == row).any():
                value = float(batch.images.vectors[(batch.images.rows == row).nonzero()[0, 0], 0])
            page, line = divmod(place, memory.latent.shape[2])
            memory.latent[0, piece.pages[page], line, 0] = value
            state[:] = (state * 31 + value + 1) % PRIME
            window[:] = torch.roll(window, -1, 0)
            window[-1] = value
            after.append((state.clone(), window.clone()))
            cached = memory.latent[0, piece.pages].flatten()[: place + 1].numpy()
            weighted = float((cached * (1 + np.arange(place + 1) % 97)).sum())
            told = float(state) + 3 * float(window[0]) + 5 * float(window[-1]) + weighted
            hidden[row] = told % PRIME
        if piece.trail:
            memory.trails[piece.slot] = Trail(
                torch.stack([each for each, _ in after])[None], torch.stack([each for _, each in after])[None]
            )


def answer(prompt: tuple[int, ...], count: int) -> list[int]:
    """What the model says to a prompt at temperature 0, computed without pages, slots or an engine."""
    history = [float(token) for token in prompt]
    for _ in range(count):
        state = 0.0
        for value in history:
            state = (state * 31 + value + 1) % PRIME
        window = [0.0] * WINDOW + history
        weighted = sum(value * (1 + place % 97) for place, value in enumerate(history))
        told = (state + 3 * window[-WINDOW] + 5 * window[-1] + weighted) % PRIME
        history.append(float(FakeModel().logits(torch.tensor([[told]], dtype=torch.float64)).argmax()))
    return [int(token) for token in history[len(prompt) :]]


class FakeDraft:
    """A draft that knows the target's answers, and is wrong as often as it is told to."""

    block = 4
    captures = (0,)

    def __init__(self, answers: dict[tuple[int, ...], list[int]], wrong: float = 0.3) -> None:
        self.answers = answers
        self.wrong = wrong
        self.random = np.random.default_rng(0)

    def remember(self, captured: Tensor, pieces: Sequence[Piece], memory: Memory) -> None:
        """It knows already."""

    def propose(self, anchors: Sequence[Anchor], memory: Memory, choose: Choose = greedy) -> list[Proposal]:
        made = []
        peaks = torch.zeros(self.block, len(anchors), VOCABULARY)
        for number, anchor in enumerate(anchors):
            history = [int(t) for t in memory.latent[0, anchor.pages].flatten()[: anchor.length]] + [anchor.token]
            for prompt, said in self.answers.items():
                whole = [*prompt, *said]
                if whole[: len(history)] == history:
                    ahead = whole[len(history) : len(history) + self.block]
                    for place, token in enumerate(ahead):
                        right = self.random.random() >= self.wrong
                        peaks[place, number, token if right else (token + 1) % VOCABULARY] = 5
        drawn = [choose(peaks[place], place) for place in range(self.block)]
        for number in range(len(anchors)):
            tokens = torch.stack([tokens[number] for tokens, _ in drawn])
            made.append(Proposal(tokens, torch.stack([p[number] for _, p in drawn]), None))
        return made
