"""The tool-call guard: calls that are valid, or not sent.

The core is pure: `StreamGuard` (bytes of server-sent events in, bytes out) and `AnswerGuard` (a whole answer)
decide what to forward, hold, repair and ask again. Two thin shells use it: `k3 guard` (`k3stack.guard.app`), a
proxy, and `Transport`/`AsyncTransport`, for the openai SDK without a proxy.

    policy     settings and words              request, images   the request, and what is refused at the door
    tools      declared tools, compiled        channels          text: plain, or read again by K3's grammar
    codec      strict JSON                     choice            one choice: text goes on, calls are collected
    repair     one-meaning coercions           verdict           from calls to a decision
    calls      one call, checked               attempts          counting attempts, the last resort
    sse        server-sent events              stream, answer    the two forms of an answer
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from k3stack.guard.answer import AnswerGuard
    from k3stack.guard.policy import OnExhausted, Policy, Problem, Repair, Source, Verdict
    from k3stack.guard.request import ChatRequest, parse_chat_request
    from k3stack.guard.stream import StreamGuard
    from k3stack.guard.transport import AsyncTransport, Transport

_HOMES = {
    "AnswerGuard": "answer",
    "AsyncTransport": "transport",
    "ChatRequest": "request",
    "OnExhausted": "policy",
    "Policy": "policy",
    "Problem": "policy",
    "Repair": "policy",
    "Source": "policy",
    "StreamGuard": "stream",
    "Transport": "transport",
    "Verdict": "policy",
    "parse_chat_request": "request",
}

__all__ = [
    "AnswerGuard",
    "AsyncTransport",
    "ChatRequest",
    "OnExhausted",
    "Policy",
    "Problem",
    "Repair",
    "Source",
    "StreamGuard",
    "Transport",
    "Verdict",
    "parse_chat_request",
]


def __getattr__(name: str) -> Any:
    """Load a name's module on first use: the guard's libraries are an optional part."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"k3stack.guard.{home}"), name)
