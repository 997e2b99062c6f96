"""The text of one choice: passed on untouched while it is plain, read again by K3's grammar once a marker shows.

Engines split a completion into reasoning, content and calls. Where they lose the thread, the rest arrives as text
with markers in it, in the wrong field. From the first marker on, that text goes through `k3stack.xtml`, as if the
model's own words had come: text moves to its right field, calls are recovered, quoted markers stay text.
"""

from __future__ import annotations

from typing import NamedTuple

from k3stack import xtml
from k3stack.guard.calls import Call, new_call_id
from k3stack.guard.lane import decoded
from k3stack.guard.policy import MARKERS, Policy, Repair, Source
from k3stack.guard.request import ChatRequest

__all__ = ["CATCH_UP", "CONTENT", "REASONING", "RESTATED", "Channels", "Piece"]

REASONING = "reasoning"
CONTENT = "content"
RESTATED = "restated"
CATCH_UP = "catch_up"

_THINK_CLOSE, _RESPONSE_OPEN = "<|close|>think<|sep|>", "<|open|>response<|sep|>"
_RESPONSE_CLOSE, _MESSAGE_CLOSE = "<|close|>response<|sep|>", "<|close|>message<|sep|>"
_CALL_OPEN, _OPEN = "<|open|>call", "<|open|>"
_UNSENDABLE = frozenset({"unclosed_call", "duplicate_key", "ambiguous_marker", "missing_key", "missing_name"})
_CLEAN_BLOCK = frozenset({"missing_tools", "truncated", "loose_marker", "bad_attribute", "unclosed_tools"})
_TAKEN_BY_ENGINE = frozenset({"truncated", "unclosed_response", "unclosed_tools"})
"""Closes that engines take out of the text of an answer that ended well; the model did write them."""


class Piece(NamedTuple):
    """A piece of text for the client.

    Kinds: REASONING and CONTENT are more of either. RESTATED says that `reasoning` and `text` are all there is of
    reasoning and content, whatever came before; a stream cannot take anything back, so for streams a CATCH_UP
    piece follows with the content that was not sent as content yet.
    """

    kind: str
    text: str
    reasoning: str = ""


class Channels:
    """Takes reasoning and content text in order, gives pieces.

    Args:
        request: what was asked; decides where the text starts and whether calls may be in it.
        policy: `source` and `hold_reasoning` matter here.
    """

    def __init__(self, request: ChatRequest, policy: Policy) -> None:
        self._request = request
        self._raw = policy.source is Source.RAW
        self._hold = policy.hold_reasoning and request.thinking
        self._channel = ""
        self._reasoning: list[str | bytes] = []
        self._tail = ""
        self._joint: str | None = None
        self._block: list[str] | None = None
        self._reader: _Reader | None = None
        self._held: list[Piece] = []
        self.problems: list[str] = []
        self.repairs: list[str] = []
        if self._raw:
            self._reader = _Reader("think" if request.thinking else "response", request, "")

    @property
    def held_chars(self) -> int:
        """Characters kept back now."""
        held = sum(len(piece.text) for piece in self._held) + len(self._tail)
        return held + (sum(map(len, self._block)) if self._block else 0)

    def open_and_plain(self, channel: str) -> bool:
        """Whether text of this channel that has no `<` in it goes on as it is."""
        if self._tail or self._hold or self._reader is not None or self._block is not None:
            return False
        if channel != self._channel and self._channel != CONTENT:
            self._channel = channel
        return channel == self._channel

    def passed(self, channel: str, text: str | bytes) -> None:
        """Note text that went on; reasoning is kept: a later marker may change what it was. Bytes are a lane's."""
        if channel == REASONING:
            self._reasoning.append(text)

    def take(self, channel: str, text: str) -> list[Piece]:
        """More text of a channel."""
        pieces = self._take(channel, text)
        if not self._hold:
            return pieces
        return self._released(pieces, ended=False)

    def finish(self, *, complete: bool) -> tuple[list[Piece], list[Call]]:
        """The last pieces, and the calls found in the text. `complete`: the model ended by itself."""
        pieces, calls = self._finish(complete)
        if self._hold:
            pieces = self._released(pieces, ended=True)
        return pieces, calls

    def _take(self, channel: str, text: str) -> list[Piece]:
        if self._raw:
            assert self._reader is not None
            return self._reader.feed(text)
        flushed = self._change_channel(channel) if channel != self._channel else []
        if channel != self._channel:  # reasoning after content: no grammar for it, it stays what it says it is
            return [Piece(channel, text)]
        if self._reader is not None:
            return flushed + self._read(text)
        if self._block is not None:
            self._block.append(text)
            return flushed
        if "<" not in text and not self._tail:
            if channel == REASONING:
                self._reasoning.append(text)
            return [*flushed, Piece(channel, text)]
        return flushed + self._look(channel, self._tail + text)

    def _change_channel(self, channel: str) -> list[Piece]:
        """Go on to another channel; held text of the one before is plain text after all."""
        if self._channel == CONTENT and channel == REASONING:
            return []
        before, self._channel = self._channel, channel
        if self._reader is not None and before == REASONING:
            self._joint = ""
            return self._reader.feed(_THINK_CLOSE, ours=True)
        tail, self._tail = self._tail, ""
        return [Piece(before, tail)] if tail else []

    def _look(self, channel: str, text: str) -> list[Piece]:
        """Pass plain text on, and start reading at the first marker."""
        cut, whole = _first_marker(text)
        head, self._tail = text[:cut], text[cut:]
        if head and channel == REASONING:
            self._reasoning.append(head)
        pieces = [Piece(channel, head)] if head else []
        if not whole:
            return pieces
        if channel == CONTENT and _CALL_OPEN.startswith(self._tail[: len(_CALL_OPEN)]):
            if len(self._tail) < len(_CALL_OPEN):
                return pieces
            self._block, self._tail = [self._tail], ""
            return pieces
        rest, self._tail = self._tail, ""
        earlier = ""
        if channel == REASONING:
            earlier = "".join(decoded(part) if isinstance(part, bytes) else part for part in self._reasoning)
        self._reader = _Reader("think" if channel == REASONING else "response", self._request, earlier)
        return pieces + self._reader.feed(rest)

    def _read(self, text: str) -> list[Piece]:
        """Feed the reader; where the engine took the step into the response, take it too."""
        assert self._reader is not None
        if self._joint is None:
            return self._reader.feed(text)
        text = self._joint + text
        if text and _OPEN.startswith(text[: len(_OPEN)]):
            if len(text) < len(_OPEN):
                self._joint = text
                return []
            self._joint = None
            return self._reader.feed(text)
        self._joint = None
        return self._reader.feed(_RESPONSE_OPEN, ours=True) + self._reader.feed(text)

    def _finish(self, complete: bool) -> tuple[list[Piece], list[Call]]:
        pieces: list[Piece] = []
        if self._block is not None:
            self._reader, pieces = self._read_block("".join(self._block))
        if self._reader is None:
            # Cut short in the middle of a marker: its beginning is no text. Otherwise it was text all along.
            if self._tail and (complete or not self._tail.startswith("<|")):
                pieces.append(Piece(self._channel, self._tail))
            return pieces, []
        reader = self._reader
        if self._joint:
            pieces += reader.feed(self._joint)
        pieces += reader.finish(close=complete and not self._raw)
        taken = frozenset() if self._raw or not complete else _TAKEN_BY_ENGINE
        self.problems += [code for code in reader.problems if code not in taken]
        if not self._raw:
            self.repairs += reader.repairs
        return pieces, reader.calls

    def _read_block(self, block: str) -> tuple[_Reader | None, list[Piece]]:
        """Calls that stand in the content without their channel: calls only if there is nothing but calls."""
        trial = xtml.parse(_RESPONSE_CLOSE + block, "response", tools=None)
        names_known = all(call.name in self._request.tools for call in trial.tool_calls)
        if not trial.tool_calls or trial.content or trial.problems - _CLEAN_BLOCK:
            return None, [Piece(CONTENT, block)]
        if self._request.tools and not names_known:
            return None, [Piece(CONTENT, block)]
        reader = _Reader("response", self._request, "")
        return reader, reader.feed(_RESPONSE_CLOSE, ours=True) + reader.feed(block)

    def _released(self, pieces: list[Piece], *, ended: bool) -> list[Piece]:
        """With held reasoning: everything waits until the reasoning is over."""
        self._held += pieces
        if not ended and all(piece.kind == REASONING for piece in self._held):
            return []
        pieces, self._held, self._hold = self._held, [], False
        restated = [place for place, piece in enumerate(pieces) if piece.kind == RESTATED]
        if not restated:
            return pieces
        last = pieces[restated[-1]]
        rest = [piece for piece in pieces[restated[-1] + 1 :] if piece.kind != CATCH_UP]
        return [Piece(REASONING, last.reasoning), Piece(CONTENT, last.text), *rest]


class _Reader:
    """K3's grammar over leaked text, as pieces."""

    def __init__(self, starts_in: xtml.Channel, request: ChatRequest, earlier: str) -> None:
        # With tools declared any name is read: an undeclared one is for the call check to judge.
        tools = None if request.tools else ()
        choice = "none" if request.choice == "none" else "auto"
        self._parser = xtml.Parser(starts_in, tools=tools, tool_choice=choice)
        self._fed_chars = 0
        self._ending = ""
        self._told_reasoning: list[str] = [earlier]
        self._told_content: list[str] = []
        self._moved = False
        self._calls: dict[int, xtml.Call] = {}
        self._call_problems: dict[int, list[str]] = {}
        self.problems: list[str] = []
        self._told_chars = 0
        if earlier:
            self._parser.feed(earlier)

    @property
    def calls(self) -> list[Call]:
        """The calls read so far."""
        return [
            Call(call.name, call.arguments_json, new_call_id(), tuple(self._call_problems.get(number, ())))
            for number, call in sorted(self._calls.items())
        ]

    @property
    def repairs(self) -> list[str]:
        """What happened to the text, after `finish`."""
        if self._moved or {"unclosed_think", "skipped_think"} & set(self.problems):
            return [Repair.MOVED_TEXT]
        return [Repair.MARKERS_REMOVED] if self._told_chars < self._fed_chars and not self._calls else []

    def feed(self, text: str, *, ours: bool = False) -> list[Piece]:
        """More text; `ours` is a marker that the engine has already taken out."""
        if not ours:
            self._fed_chars += len(text)
            self._ending = (self._ending + text)[-64:]
        return self._pieces(self._parser.feed(text))

    def finish(self, *, close: bool) -> list[Piece]:
        """The end; with `close` the message close is added unless it was there."""
        pieces: list[Piece] = []
        ending = self._ending.rstrip()
        if close and not ending.endswith((_MESSAGE_CLOSE, "<|end_of_msg|>")):
            pieces = self._pieces(self._parser.feed(_MESSAGE_CLOSE))
        return pieces + self._pieces(self._parser.finish())

    def _pieces(self, events: list[xtml.Event]) -> list[Piece]:
        pieces: list[Piece] = []
        for event in events:
            match event:
                case xtml.ReasoningDelta(text):
                    self._told_reasoning.append(text)
                    self._told_chars += len(text)
                    pieces.append(Piece(REASONING, text))
                case xtml.ContentDelta(text):
                    self._told_content.append(text)
                    self._told_chars += len(text)
                    pieces.append(Piece(CONTENT, text))
                case xtml.CallEnd(number, call):
                    self._calls[number] = call
                case xtml.Problem(code, number):
                    self._problem(code, number)
                case xtml.Correction(state):
                    pieces += self._correct(state)
                case _:
                    pass
        return pieces

    def _problem(self, code: str, number: int | None) -> None:
        self.problems.append(str(code))
        if number is not None and code in _UNSENDABLE:
            self._call_problems.setdefault(number, []).append(str(code))

    def _correct(self, state: xtml.Message) -> list[Piece]:
        """What was told so far was something else. A stream keeps what it sent, and gets the content it lacks."""
        self._moved = True
        told = "".join(self._told_content)
        reasoning, content = state.reasoning or "", state.content or ""
        self._told_reasoning, self._told_content = [reasoning], [content]
        self._told_chars = len(reasoning) + len(content)
        self._calls = dict(enumerate(state.tool_calls))
        self._call_problems = {}
        self.problems = sorted(state.problems)
        missing = content[len(told) :] if content.startswith(told) else content
        pieces = [Piece(RESTATED, content, reasoning)]
        return [*pieces, Piece(CATCH_UP, missing)] if missing else pieces


def _first_marker(text: str) -> tuple[int, bool]:
    """Where the first control token begins, and whether it is whole; the end of the text if there is none."""
    start = text.find("<|")
    while start >= 0:
        for marker in MARKERS:
            if text.startswith(marker, start):
                return start, True
            if len(text) - start < len(marker) and marker.startswith(text[start:]):
                return start, False
        start = text.find("<|", start + 1)
    return (len(text) - 1, False) if text.endswith("<") else (len(text), False)
