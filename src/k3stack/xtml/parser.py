"""The parser: one pass, linear time, any cutting of the stream gives the same message."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from k3stack.xtml.events import Event, Message
from k3stack.xtml.wire import CONTROL_IDS, Channel

__all__ = ["Parser", "Vocabulary", "parse"]


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """How token ids become text.

    Attributes:
        bytes_of: the bytes of one ordinary token (tiktoken's `decode_single_token_bytes`).
        controls: the ids of the control tokens; Kimi-K3's unless given.
    """

    bytes_of: Callable[[int], bytes]
    controls: Mapping[int, str] = field(default_factory=lambda: CONTROL_IDS)


class Parser:
    """Parses one completion, piece by piece.

    It never raises on any input, drops no text without a problem, never lets one call's arguments reach another,
    and gives the same message for every cutting of the stream. A piece costs time in proportion to its own length.

    Args:
        starts_in: the channel that the prompt left open: "think", or "response" with thinking off.
        tools: the declared tools, as names or as OpenAI tool objects. Empty: none are declared, so calls are not
            returned. None: not known, so every name is accepted.
        tool_choice: the request's `tool_choice`; with "none" calls are not returned.
        vocabulary: needed for `feed_ids` only.
    """

    def __init__(
        self,
        starts_in: Channel = "think",
        *,
        tools: Iterable[str | Mapping[str, Any]] | None = (),
        tool_choice: object = "auto",
        vocabulary: Vocabulary | None = None,
    ) -> None:
        raise NotImplementedError

    def feed(self, text: str) -> list[Event]:
        """Take the next piece of text; control tokens are recognised by their spelling, cut anywhere."""
        raise NotImplementedError

    def feed_ids(self, ids: Iterable[int]) -> list[Event]:
        """Take the next token ids. Only control ids are control tokens: text that spells one stays text.

        Characters cut between ids are put together; bytes that are no UTF-8 become U+FFFD, and so do ids that the
        vocabulary does not have.

        Raises:
            UsageError: the parser has no vocabulary.
        """
        raise NotImplementedError

    def finish(self) -> list[Event]:
        """Say that the completion ended. The last event is `Finished`. Calling it again gives nothing."""
        raise NotImplementedError

    @property
    def settled(self) -> bool:
        """Whether no later marker can change what was told so far (no `Correction` can come any more)."""
        raise NotImplementedError

    @property
    def message(self) -> Message:
        """The message so far; after `finish` the final one. Costs time in proportion to its length."""
        raise NotImplementedError


def parse(
    text: str,
    starts_in: Channel = "think",
    *,
    tools: Iterable[str | Mapping[str, Any]] | None = (),
    tool_choice: object = "auto",
) -> Message:
    """Parse a whole completion; see `Parser` for the arguments."""
    parser = Parser(starts_in, tools=tools, tool_choice=tool_choice)
    parser.feed(text)
    parser.finish()
    return parser.message
