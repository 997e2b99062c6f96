"""One answer to a chat request, whichever way it came: whole or as a stream."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from k3stack.verify.report import Exchange

__all__ = ["Answer", "Call", "TokenChance", "Usage", "shorten"]

_LONGEST_EVIDENCE = 1_200


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call: its id, the tool's name, and the arguments as the text that came."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the endpoint counts them; `cached` is None where it does not say."""

    prompt: int
    completion: int
    total: int
    cached: int | None = None
    reasoning: int | None = None


@dataclass(frozen=True, slots=True)
class TokenChance:
    """One generated token: its text, its log probability, and the likeliest ones beside it."""

    token: str
    logprob: float
    top: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back for one chat request.

    Attributes:
        body: the request, as sent.
        received: the answer's own text, for evidence.
        reasoning_field: "reasoning" or "reasoning_content", whichever the endpoint uses; empty where neither came.
        faults: what was wrong with the form of it: a missing field, a second finish reason, JSON that is none.
        others: the content of each further choice, where more than one was asked for.
        first_s: seconds until the first text or call arrived; of a whole answer, all of it.
        gaps_s: seconds between one piece and the next; empty for a whole answer.
    """

    body: dict[str, Any]
    received: str
    id: str = ""
    model: str = ""
    reasoning: str = ""
    content: str = ""
    reasoning_field: str = ""
    calls: tuple[Call, ...] = ()
    finish: str = ""
    usage: Usage | None = None
    chances: tuple[TokenChance, ...] = ()
    faults: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    seconds: float = 0.0
    first_s: float = 0.0
    gaps_s: tuple[float, ...] = field(default=(), repr=False)

    @property
    def text(self) -> str:
        """All text that was generated, reasoning first."""
        return self.reasoning + self.content

    @property
    def meaning(self) -> tuple[str, str, tuple[tuple[str, str], ...], str]:
        """What two answers must share to be the same answer; ids and times are left out."""
        return (self.reasoning, self.content, tuple((call.name, call.arguments) for call in self.calls), self.finish)

    def exchange(self, note: str = "") -> Exchange:
        """This request and answer as evidence."""
        return Exchange(shorten(json.dumps(self.body, ensure_ascii=False)), shorten(self.received), note)


def shorten(text: str, limit: int = _LONGEST_EVIDENCE) -> str:
    """The text, or its front and end with the number of characters left out between them."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]} [... {len(text) - 2 * half} characters ...] {text[-half:]}"
