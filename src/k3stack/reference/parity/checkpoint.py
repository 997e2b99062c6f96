"""A checkpoint under the reference engine, as a side of a comparison."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import torch

from k3stack.errors import UsageError
from k3stack.reference.engine import Engine, EngineOptions
from k3stack.reference.model import load_model
from k3stack.reference.parity.side import Scored
from k3stack.reference.request import Request, Sampling, Token
from k3stack.reference.threads import set_threads
from k3stack.reference.tokenizer import Tokenizer
from k3stack.spec.config import read_config
from k3stack.xtml import Segment, tokenize

__all__ = ["CheckpointSide"]


class CheckpointSide:
    """Loads a checkpoint and asks it.

    Args:
        folder: the checkpoint.
        dtype: what is computed in, and what the latent cache holds.
        device: cpu or a GPU.
    """

    def __init__(self, folder: Path, dtype: torch.dtype = torch.float32, device: str = "cpu") -> None:
        text = read_config(folder / "config.json").text_config
        self.folder = folder
        self.tokenizer = Tokenizer.load(folder, text.vocab_size)
        self.context = text.max_position_embeddings
        set_threads(folder, device)
        model = load_model(folder, dtype=dtype, device=device)
        options = EngineOptions(context=min(self.context, 2**15), slots=1, latent_dtype=dtype, snapshot_bytes=0)
        self._engine = Engine(model, options)
        self._numbers = itertools.count()

    @property
    def name(self) -> str:
        """The folder."""
        return str(self.folder)

    def tokens(self, prompt: Sequence[Segment]) -> list[int]:
        """See `Side.tokens`."""
        return list(tokenize(prompt, self.tokenizer.encode, self.tokenizer.special))

    def answer(self, prompt: Sequence[int], count: int) -> list[int]:
        """See `Side.answer`."""
        self._check(len(prompt) + count)
        request = Request("answer", tuple(prompt), Sampling(temperature=0, max_tokens=count, ignore_eos=True))
        return [token.id for token in self._engine.run([request])["answer"]]

    def score(self, tokens: Sequence[int], first: int, top: int) -> list[Scored]:
        """See `Side.score`; `top` 0 gives all of the vocabulary."""
        self._check(len(tokens))
        sampling = Sampling(temperature=0, max_tokens=0, prompt_logprobs=top or self.tokenizer.size)
        self._engine.add(Request(f"score-{next(self._numbers)}", tuple(tokens), sampling, resume=False))
        found: list[Token] = []
        while self._engine.busy:
            for update in self._engine.step():
                found += update.prompt
        return [_scored(token) for token in found[first:]]

    def text(self, token: int) -> str:
        """See `Side.text`."""
        return self.tokenizer.bytes_of(token).decode(errors="replace")

    def _check(self, length: int) -> None:
        if length > self._engine.options.context - 1:
            what = f"{length} tokens are more than the context of {self._engine.options.context}"
            raise UsageError(what, where=self.folder, hint="Give shorter prompts or fewer --tokens")


def _scored(token: Token) -> Scored:
    assert token.logprob is not None
    return Scored(token.id, token.top[0][0], {token.id: token.logprob, **dict(token.top)})
