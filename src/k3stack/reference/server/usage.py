"""Token counts of an answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

__all__ = ["Counted", "usage"]


class Counted(Protocol):
    """A choice, as far as its tokens go."""

    tokens: int
    reasoning_tokens: int
    cached_tokens: int


def usage(prompt_tokens: int, choices: Sequence[Counted]) -> dict[str, Any]:
    """OpenAI's `usage`; cached tokens are those of the first choice, as the others share its prompt."""
    answer = sum(choice.tokens for choice in choices)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": answer,
        "total_tokens": prompt_tokens + answer,
        "prompt_tokens_details": {"cached_tokens": choices[0].cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": sum(choice.reasoning_tokens for choice in choices)},
    }
