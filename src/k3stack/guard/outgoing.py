"""The chunks that the client gets: those of a later attempt go out under the first one's id, with the usage of all."""

from __future__ import annotations

from typing import Any

from k3stack.guard.attempts import Attempts, add_usage
from k3stack.guard.sse import event
from k3stack.guard.verdict import Judged

__all__ = ["Chunk", "Outgoing"]

Chunk = dict[str, Any]
"""One event of a streamed chat answer, parsed."""


class Outgoing:
    """Writes the events of one streamed answer.

    Args:
        attempts: which attempt it is, and what the ones before used.
    """

    def __init__(self, attempts: Attempts[Chunk]) -> None:
        self._attempts = attempts
        self._first: Chunk = {}

    def remember(self, chunk: Chunk) -> None:
        """Note the stream's first chunk, whose id and time all others carry."""
        if not self._first:
            self._first = {name: value for name, value in chunk.items() if name != "usage"}

    def blank(self) -> Chunk:
        """A chunk of this answer to put a choice into, without an event of the upstream to go by."""
        return dict(self._first)

    def single(self, chunk: Chunk, entry: dict[str, Any]) -> bytes:
        """The chunk with this choice alone."""
        return event(self._rebased({**chunk, "choices": [entry]}))

    def usage(self, chunk: Chunk, raw: bytes) -> bytes:
        """The chunk without a choice that tells the usage; `raw` is how it came."""
        return event(self._rebased({**chunk})) if self._attempts.number else raw

    def usage_so_far(self) -> bytes:
        """A chunk that tells the usage of the attempts before, where this one came to nothing."""
        return event({**self._first, "choices": [], "usage": self._attempts.usage})

    def answer(self, chunk: Chunk, entry: dict[str, Any], rest: dict[str, Any], judged: Judged) -> bytes:
        """The end of a choice: text that is left, then each call whole, then the finish with the flag."""
        report = self._attempts.report
        out = []
        bare = {name: value for name, value in chunk.items() if name != "usage"}
        quiet = {name: value for name, value in entry.items() if name != "logprobs"}
        if rest:
            out.append(self.single(bare, {**entry, "delta": rest, "finish_reason": None}))
        for number, checked in enumerate(judged.calls):
            call = checked.call
            function = {"name": call.name, "arguments": call.arguments}
            delta = {"tool_calls": [{"index": number, "id": call.id, "type": "function", "function": function}]}
            out.append(self.single(bare, {**quiet, "delta": delta, "finish_reason": None}))
        report.sent_calls += len(judged.calls)
        last = {**chunk}
        if flag := report.flag:
            last["k3_guard"] = flag
        out.append(self.single(last, {**quiet, "delta": {}, "finish_reason": judged.reason}))
        return b"".join(out)

    def _rebased(self, chunk: Chunk) -> Chunk:
        if not self._attempts.number:
            return chunk
        chunk.update({name: self._first[name] for name in ("id", "created") if name in self._first})
        if isinstance(chunk.get("usage"), dict):
            chunk["usage"] = add_usage(self._attempts.usage, chunk["usage"])
        return chunk
