"""What a check is given: the endpoint, what was learned about it, and prompts that nobody has sent before."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from k3stack.verify.answer import Answer
from k3stack.verify.endpoint import Endpoint, Lost, Refused
from k3stack.verify.report import Level, Weights

__all__ = ["Dialect", "Knowledge", "Session"]

# Tokens left for reasoning at low effort, beside what the answer itself needs. A random model never stops by itself,
# so it gets none.
_REASONING_ROOM = 2_048

Outcome = Answer | Refused | Lost


@dataclass(frozen=True, slots=True)
class Dialect:
    """Which parameters the endpoint takes.

    Attributes:
        steady: what makes answers repeat: temperature 0 and a seed, or less where the endpoint refuses them.
        low: what asks for little reasoning.
        off: what turns reasoning off; None where no known way does.
    """

    steady: dict[str, Any] = field(default_factory=dict)
    low: dict[str, Any] = field(default_factory=dict)
    off: dict[str, Any] | None = None

    @property
    def greedy(self) -> bool:
        """Whether temperature 0 is accepted."""
        return self.steady.get("temperature") == 0


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What was found out before the checks.

    Attributes:
        limit: tokens of prompt and answer together; None where the endpoint does not say.
        notes: the same for people.
    """

    model: str
    models: tuple[str, ...]
    weights: Weights
    server: str
    limit: int | None
    dialect: Dialect
    notes: tuple[str, ...]


class Session:
    """One run over one endpoint. Every check gets the same session, and so sees what came before."""

    def __init__(self, endpoint: Endpoint, knowledge: Knowledge, level: Level, seed: int) -> None:
        self.endpoint = endpoint
        self.target = endpoint.target
        self.knowledge = knowledge
        self.level = level
        self.dialect = knowledge.dialect
        self.dice = random.Random(seed)

    @property
    def untrained(self) -> bool:
        """Whether the weights are random: mechanics can be judged, sense cannot."""
        return self.knowledge.weights is Weights.RANDOM

    def room(self, tokens: int) -> int:
        """max_tokens for an answer of so many tokens, with room for reasoning where there is any."""
        return tokens if self.untrained else tokens + _REASONING_ROOM

    def body(self, prompt: str | Sequence[dict[str, Any]], tokens: int = 64, **parameters: Any) -> dict[str, Any]:
        """A chat request, as repeatable as the endpoint allows, with little reasoning.

        Args:
            prompt: what the user says, or whole messages.
            tokens: how long the answer itself may be.
            parameters: what to add or replace; a value of None takes a parameter out.
        """
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
        body = {
            "model": self.knowledge.model,
            "messages": messages,
            "max_tokens": self.room(tokens),
            **self.dialect.steady,
            **self.dialect.low,
            **parameters,
        }
        return {name: value for name, value in body.items() if value is not None}

    def brief(self, prompt: str | Sequence[dict[str, Any]], tokens: int = 64, **parameters: Any) -> dict[str, Any]:
        """The same without reasoning, where the endpoint can do without, so that `tokens` is meant exactly."""
        if self.dialect.off is None:
            return self.body(prompt, tokens, **parameters)
        without = dict.fromkeys(self.dialect.low)
        return self.body(prompt, tokens, **{**without, **self.dialect.off, "max_tokens": tokens, **parameters})

    def forced(self, prompt: str, tokens: int = 384, **parameters: Any) -> dict[str, Any]:
        """A request whose answer a grammar shapes. Random weights would reason to the end, so they do not reason."""
        if self.untrained:
            return self.brief(prompt, tokens=256, **parameters)
        return self.body(prompt, tokens, **parameters)

    async def ask(self, prompt: str | Sequence[dict[str, Any]], tokens: int = 64, **parameters: Any) -> Answer:
        """A whole answer to `body(...)`."""
        return await self.endpoint.chat(self.body(prompt, tokens, **parameters))

    async def telling(self, body: dict[str, Any]) -> tuple[dict[str, Any], Answer]:
        """A whole answer with the likeliest tokens of each place, or without where they are refused; the body first."""
        wanted = {**body, "logprobs": True, "top_logprobs": 5}
        try:
            return wanted, await self.endpoint.chat(wanted)
        except Refused:
            return body, await self.endpoint.chat(body)

    async def stream(self, prompt: str | Sequence[dict[str, Any]], tokens: int = 64, **parameters: Any) -> Answer:
        """A streamed answer to `body(...)`."""
        return await self.endpoint.stream(self.body(prompt, tokens, **parameters))

    async def together(self, bodies: Iterable[dict[str, Any]], streamed: bool = False) -> list[Outcome]:
        """All requests at once; an answer, a refusal or a loss for each, in order."""
        send = self.endpoint.stream if streamed else self.endpoint.chat

        async def one(body: dict[str, Any]) -> Outcome:
            try:
                return await send(body)
            except (Refused, Lost) as error:
                return error

        return list(await asyncio.gather(*(one(body) for body in bodies)))

    async def leave(self, bodies: Iterable[dict[str, Any]], after: int) -> int:
        """Begin these requests and close each connection after so many events; how many had not ended by then."""

        async def one(body: dict[str, Any]) -> bool:
            try:
                left = await self.endpoint.stream(body, leave_after=after)
            except (Refused, Lost):
                return False
            return not left.finish

        return sum(await asyncio.gather(*(one(body) for body in bodies)))

    def code(self) -> str:
        """A word that nobody can guess and no tokenizer merges: letters that cannot be misread, and digits."""
        letters = "".join(self.dice.choices("ABCDEFGHKLMNPQRTUVWXY", k=3))
        return f"{letters}-{self.dice.randrange(1000, 9999)}"

    async def gauge(self, *names: str) -> float | None:
        """The sum of a Prometheus gauge or counter over its labels, by the first of these names that /metrics has."""
        try:
            reply = await self.endpoint.get("/metrics", silence_s=10.0)
        except Lost:
            return None
        if reply.status != 200:
            return None
        for name in names:
            values = [
                float(line.rsplit(" ", 1)[1])
                for line in reply.text.splitlines()
                if line.startswith((f"{name}{{", f"{name} ")) and line.rsplit(" ", 1)[1] not in ("NaN",)
            ]
            if values:
                return sum(values)
        return None
