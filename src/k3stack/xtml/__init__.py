"""XTML, Kimi-K3's message grammar: conversations in (`encode`), completions out (`Parser`, `parse`).

    parser = Parser("think", tools=request["tools"])
    for piece in stream:
        for event in parser.feed(piece):
            ...
    events = parser.finish()
    message = parser.message

Standard library only.
"""

from __future__ import annotations

from k3stack.xtml.encode import IMAGE_PLACEHOLDER, Effort, Segment, encode, segments_text, tokenize
from k3stack.xtml.events import (
    Argument,
    Call,
    CallDropped,
    CallEnd,
    CallStart,
    ContentDelta,
    Correction,
    Event,
    Finished,
    Message,
    Problem,
    ReasoningDelta,
    replay,
)
from k3stack.xtml.parser import Parser, Vocabulary, parse
from k3stack.xtml.wire import CONTROL_IDS, CONTROL_TOKENS, Channel, ProblemCode

__all__ = [
    "CONTROL_IDS",
    "CONTROL_TOKENS",
    "IMAGE_PLACEHOLDER",
    "Argument",
    "Call",
    "CallDropped",
    "CallEnd",
    "CallStart",
    "Channel",
    "ContentDelta",
    "Correction",
    "Effort",
    "Event",
    "Finished",
    "Message",
    "Parser",
    "Problem",
    "ProblemCode",
    "ReasoningDelta",
    "Segment",
    "Vocabulary",
    "encode",
    "parse",
    "replay",
    "segments_text",
    "tokenize",
]
