"""What the engine is asked and what it tells: requests in, updates out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from torch import Tensor

from k3stack.errors import UsageError

__all__ = ["Finish", "Picture", "Request", "Sampling", "Token", "Update"]


class Finish(StrEnum):
    """Why a request ended."""

    STOP = "stop"
    """An end token, a stop token, or the end of the grammar."""
    LENGTH = "length"
    """`max_tokens`, or the end of the context."""
    CANCELLED = "cancelled"
    """Somebody asked for it."""
    ERROR = "error"
    """The engine failed; a bug."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen.

    Attributes:
        temperature: 0 takes the most likely token.
        top_p, top_k, min_p: what is left out of the distribution; 1, 0 and 0 leave it whole.
        presence_penalty, frequency_penalty: subtracted from logits of tokens that the answer holds, once, and once
            for each time.
        repetition_penalty: logits of tokens in prompt or answer are divided by it if positive, else multiplied.
        logit_bias: added to the logits of single tokens.
        seed: the same seed gives the same answer to the same request, whatever runs beside it.
        logprobs: how many most likely tokens to report for each token; 0 reports the chosen one alone, None nothing.
        prompt_logprobs: the same for the tokens of the prompt.
        max_tokens: the longest answer.
        ignore_eos: go on behind end tokens.
        stop_tokens: more tokens that end the answer; they are part of it.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    max_tokens: int = 16
    ignore_eos: bool = False
    stop_tokens: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        for name, low, high in (("temperature", 0, 100), ("top_p", 0, 1), ("min_p", 0, 1)):
            value = getattr(self, name)
            if not low <= value <= high:
                raise UsageError(f"must be from {low} to {high}, not {value}", where=name)
        if self.top_p == 0:
            raise UsageError("must be above 0; temperature 0 takes the most likely token", where="top_p")
        if self.repetition_penalty <= 0:
            raise UsageError("must be above 0", where="repetition_penalty")
        if self.top_k < 0 or self.max_tokens < 0:
            raise UsageError("must not be negative", where="top_k" if self.top_k < 0 else "max_tokens")

    def with_prompt(self, count: int | None) -> Sampling:
        """The same, with log-probabilities of the prompt's tokens too."""
        return replace(self, prompt_logprobs=count)

    @property
    def greedy(self) -> bool:
        """Whether chance has no part in it."""
        return self.temperature == 0

    @property
    def plain(self) -> bool:
        """Whether the choice depends on the logits alone, not on what was said before."""
        same = self.presence_penalty == 0 == self.frequency_penalty and self.repetition_penalty == 1
        return same and not self.logit_bias


@dataclass(frozen=True, slots=True)
class Picture:
    """An image in a prompt.

    Attributes:
        start: the place of its first token in the prompt.
        vectors: [tokens, hidden], the projector's output, which takes the place of the embeddings.
        key: what tells this image from others with as many tokens; a digest of its bytes.
    """

    start: int
    vectors: Tensor
    key: int


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt to answer.

    Attributes:
        id: unique among running requests.
        prompt: token ids, at least one.
        sampling: how.
        pictures: images in the prompt.
        after: the id of a request whose prompt is the same: this one waits for it and resumes its prefix.
        resume: whether the prefix cache may be used.
    """

    id: str
    prompt: tuple[int, ...]
    sampling: Sampling = field(default_factory=Sampling)
    pictures: tuple[Picture, ...] = ()
    after: str | None = None
    resume: bool = True


@dataclass(frozen=True, slots=True)
class Token:
    """One token, with log-probabilities if they were asked for.

    They are of the model's own distribution, before temperature, penalties and grammar.
    """

    id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class Update:
    """News of one request.

    Attributes:
        tokens: new tokens of the answer, in order.
        finish: why it ended, in its last update.
        cached: prompt tokens that came from the prefix cache.
        prompt: the prompt's tokens with log-probabilities, once, if they were asked for; the first has none.
        error: what went wrong, where `finish` is ERROR.
    """

    id: str
    tokens: tuple[Token, ...] = ()
    finish: Finish | None = None
    cached: int = 0
    prompt: tuple[Token, ...] = ()
    error: str | None = None
