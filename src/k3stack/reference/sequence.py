"""A request while the engine works on it."""

from __future__ import annotations

import secrets
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from k3stack.reference.cache import Lease
from k3stack.reference.request import Request, Token

if TYPE_CHECKING:
    from k3stack.reference.constraint import Constraint

__all__ = ["Sequence"]


@dataclass(slots=True, eq=False)
class Sequence:
    """One request's tokens and what is known of them.

    Attributes:
        request: what was asked.
        constraint: what its grammar allows next, or None.
        tokens: prompt and answer.
        keys: the tokens as the prefix cache knows them: an image's tokens are told apart by its digest.
        lease: what it holds of the cache while it runs.
        said: how often each token is in the answer.
        cached: prompt tokens that the prefix cache gave at first admission; None before that.
        prompt_tokens: log-probabilities of the prompt, as far as it is computed.
    """

    request: Request
    constraint: Constraint | None = None
    tokens: list[int] = field(default_factory=list)
    keys: list[int] = field(default_factory=list)
    lease: Lease | None = None
    said: Counter[int] = field(default_factory=Counter)
    seed: int = 0
    cached: int | None = None
    prompt_tokens: list[Token] = field(default_factory=list)

    def __post_init__(self) -> None:
        request = self.request
        self.tokens = list(request.prompt)
        self.keys = list(request.prompt)
        for picture in request.pictures:
            for place in range(picture.vectors.shape[0]):
                # Negative, so that no token has it; the digest is 62 bits, so two images do not meet by chance.
                self.keys[picture.start + place] = -1 - (picture.key + place) % 2**62
        seed = request.sampling.seed
        self.seed = secrets.randbits(64) if seed is None else seed

    @property
    def prompt_length(self) -> int:
        """Tokens of the prompt."""
        return len(self.request.prompt)

    @property
    def answered(self) -> int:
        """Tokens of the answer so far."""
        return len(self.tokens) - self.prompt_length

    @property
    def remaining(self) -> int:
        """Tokens that are not computed yet."""
        assert self.lease is not None
        return len(self.tokens) - self.lease.computed

    def add(self, token: int) -> None:
        """One more token of the answer."""
        self.tokens.append(token)
        self.keys.append(token)
        self.said[token] += 1
