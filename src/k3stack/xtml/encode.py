"""Conversations as segments of text and control tokens, in the order of Moonshot's encoder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["Effort", "Segment", "encode", "segments_text"]

Effort = Literal["low", "high", "max"]


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of a prompt that is tokenised on its own.

    Attributes:
        text: the text.
        special: True: the text is exactly one special token. False: ordinary text, to be tokenised with special
            tokens disallowed, whatever it spells.
    """

    text: str
    special: bool = False


def encode(
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] = (),
    tool_choice: object = None,
    response_format: Mapping[str, Any] | None = None,
    reasoning_effort: Effort | None = None,
    thinking: bool = True,
    preserve_thinking: bool = True,
    add_generation_prompt: bool = True,
) -> list[Segment]:
    """Render a conversation of OpenAI chat messages as a prompt.

    Raises:
        InputError: a message, a part or an option that the grammar has no place for; names its position.
    """
    raise NotImplementedError


def segments_text(segments: Iterable[Segment]) -> str:
    """The prompt as one text, for people and for prefix comparison; not safe to tokenise."""
    return "".join(segment.text for segment in segments)
