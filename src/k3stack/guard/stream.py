"""A streamed chat answer, through the guard: bytes of server-sent events in, bytes out.

Text goes on at once. Calls are held until their choice has finished and the verdict is in. When the answer must be
asked again, the client sees nothing of it but a pause: the second attempt's calls go out under the first one's id.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from k3stack.errors import InputError
from k3stack.guard import codec
from k3stack.guard.attempts import Attempts, Failure, Step, add_usage
from k3stack.guard.channels import CATCH_UP, CONTENT, REASONING, Piece
from k3stack.guard.choice import Choice, HeldTooMuchError, other_fields, text_delta
from k3stack.guard.lane import Lane
from k3stack.guard.outgoing import Chunk, Outgoing
from k3stack.guard.policy import Policy
from k3stack.guard.request import ChatRequest
from k3stack.guard.sse import DONE, Event, SseReader, event, one_event
from k3stack.guard.verdict import Judged, judge

__all__ = ["StreamGuard"]

_CHANNELS = {"content": CONTENT, "reasoning": REASONING, "reasoning_content": REASONING}
_LANES = 8
"""How often a stream's form may be learned: text changes its channel once or twice."""


class StreamGuard:
    """Decides about one streamed request.

        guard = StreamGuard(request, policy)
        while True:
            for data in ask(guard.body()):
                send(guard.feed(data))          # empty bytes: nothing to send now
            step = guard.end()                  # or guard.end("why it broke off")
            send(step.data)
            if not step.again:
                break

    Args:
        request: the client's request.
        policy: the guard's settings.
        clock: seconds, monotonic.
    """

    def __init__(self, request: ChatRequest, policy: Policy, clock: Callable[[], float] = time.monotonic) -> None:
        self.request = request
        self._policy = policy
        self._clock = clock
        self._attempts: Attempts[Chunk] = Attempts(request, policy, clock)
        self.report = self._attempts.report
        self._content_sent = False
        self._outgoing = Outgoing(self._attempts)
        self._over = False
        self._held_since: float | None = None
        self._lane: Lane | None = None
        self._lanes_left = _LANES
        self._begin_attempt()

    def _begin_attempt(self) -> None:
        self._reader = SseReader()
        self._choices: dict[int, Choice] = {}
        self._again = False
        self._done = False
        self._attempt_usage: dict[str, Any] = {}
        self._send_content = self._attempts.number == 0 or not self._content_sent
        self._words_out = False

    def body(self) -> bytes:
        """The request body for the attempt that comes now."""
        number = self._attempts.number
        return self.request.raw if number == 0 else self.request.resample_body(number)

    @property
    def over(self) -> bool:
        """Whether the client has everything it will get, so that nothing more need be read."""
        return self._over

    @property
    def held_bytes(self) -> int:
        """About how many bytes of calls and text are held back now."""
        return 0 if self._held_since is None else sum(choice.held_bytes for choice in self._choices.values())

    def feed(self, data: bytes) -> bytes:
        """Bytes from the upstream; the bytes to send on now."""
        if self._over:
            return b""
        out: list[bytes] = []
        try:
            out.extend(self._events(data))  # what came before an error stays in
        except HeldTooMuchError:
            limit = self._policy.max_held_bytes
            out.append(self._fail(Failure("answer_too_large", f"the answer's calls pass {limit:,} bytes")))
        except InputError as error:
            out.append(self._fail(Failure("upstream_malformed", error.what)))
        return b"".join(out)

    def _events(self, data: bytes) -> Iterator[bytes]:
        """What each event of `data` becomes; runs of plain chunks go through the fast lane."""
        at, refused = 0, None
        while at < len(data):
            lane = self._lane
            if lane is not None and lane is not refused:
                taken = self._through_lane(lane, data, at)
                if taken is not None:
                    sent, at = taken
                    yield sent
                    continue
                refused = lane  # one try for what is left of this block, or its cost would grow with the square
            end = data.find(b"\n\n", at) + 2
            if end >= 2 and self._reader.between_events and b"\r" not in data:
                yield self._event(one_event(data[at : end - 2]))
                at = end
                continue
            end = end if end >= 2 else len(data)
            for each in self._reader.feed(data[at:end]):
                yield self._event(each)
            at = end

    def end(self, broken: str | None = None) -> Step:
        """The upstream's stream is over; `broken` says why if it did not end by itself."""
        if self._over:
            return Step()
        left = self._reader.unfinished.strip()
        tail = self.feed(b"\n\n") if left and broken is None else b""
        if self._over:
            return Step(tail)
        if self._again:
            self._attempts.usage = add_usage(self._attempts.usage, self._attempt_usage)
            self._attempts.next()
            self._begin_attempt()
            return Step(tail, again=True)
        if self._done or (self._choices and all(choice.finished for choice in self._choices.values())):
            return Step(tail + self._finish_stream())
        why = broken or "the upstream ended the stream before the answer was complete"
        return Step(tail + self._broken(Failure("upstream_cut", why)))

    def _broken(self, failure: Failure) -> bytes:
        """This attempt came to nothing: fall back on the ones before, unless its own words are already out."""
        if self._attempts.number == 0 or self._words_out:
            return self._fail(failure)
        out = self._give_up()
        if self._over:
            return out
        if self.request.include_usage:
            out += self._outgoing.usage_so_far()
        self._over = True
        return out + DONE

    def _event(self, each: Event) -> bytes:
        if self._over:
            return b""
        if each.data is None:
            return b"" if self._attempts.number else each.raw
        if each.data == b"[DONE]":
            self._done = True
            return self._finish_stream() if not self._again else b""
        try:
            chunk = codec.loads(each.data)
        except ValueError:
            return self._broken(Failure("upstream_malformed", "an event of the upstream is not JSON"))
        plain = self._plain(chunk, each.raw)
        if plain is not None:
            return plain
        if not isinstance(chunk, dict) or not _well_formed(chunk):
            return self._broken(Failure("upstream_malformed", "an event of the upstream is not a chat chunk"))
        if chunk.get("error"):
            return self._upstream_error(each.raw)
        self._outgoing.remember(chunk)
        return self._chunk(chunk, each.raw)

    def _plain(self, chunk: Any, raw: bytes) -> bytes | None:
        """The way of nearly all chunks: one choice, nothing but text, no marker in sight. None for others."""
        if self._attempts.number or self._again or type(chunk) is not dict or chunk.get("error") or chunk.get("usage"):
            return None
        entries = chunk.get("choices")
        if type(entries) is not list or len(entries) != 1 or type(entries[0]) is not dict:
            return None
        entry = entries[0]
        delta = entry.get("delta")
        choice = self._choices.get(entry.get("index", 0))
        if choice is None or type(delta) is not dict or entry.get("finish_reason") is not None:
            return None
        named = [(name, text) for name, text in delta.items() if text is not None]
        if len(named) != 1 or named[0][0] not in _CHANNELS:
            return None
        ((name, text),) = named
        channel = _CHANNELS[name]
        if type(text) is not str or not text or "<" in text or not choice.open_and_plain(channel):
            return None
        choice.passed(channel, text)
        if self._lane is None or self._lane.channel != channel:
            self._learn(channel, name, raw, entry)
        if channel == CONTENT:
            self._content_sent = True
            return raw
        delta["reasoning"] = delta["reasoning_content"] = text
        return event(chunk)

    def _learn(self, channel: str, name: str, raw: bytes, entry: dict[str, Any]) -> None:
        """Open the fast lane for chunks like this one; an engine whose chunks are odd is not asked for ever."""
        if self._lanes_left and entry.get("index", 0) == 0 and self.request.n == 1:
            self._lanes_left -= 1
            self._lane = Lane.learn(channel, name, raw)

    def _through_lane(self, lane: Lane, data: bytes, at: int) -> tuple[bytes, int] | None:
        """A run of chunks that are all of the lane: the bytes to send and where it ends; None if there is none."""
        if self._attempts.number or self._again or self._over or not self._reader.between_events:
            return None
        choice = self._choices.get(0)
        if choice is None or not choice.open_and_plain(lane.channel):
            return None
        run = lane.run(data, at)
        if run is None:
            return None
        texts, end = run
        choice.passed(lane.channel, texts)
        self._content_sent = self._content_sent or lane.channel == CONTENT
        return lane.outgoing(data[at:end], texts), end

    def _upstream_error(self, raw: bytes) -> bytes:
        failure = Failure("upstream_error", "the upstream sent an error")
        if self._attempts.number:
            return self._broken(failure)
        self._attempts.fail(failure)
        self._over = True
        return raw

    def _chunk(self, chunk: Chunk, raw: bytes) -> bytes:
        if isinstance(chunk.get("usage"), dict):
            self._attempt_usage = chunk["usage"]
        if self._again:
            return b""
        entries = chunk.get("choices") or []
        if not entries:
            return self._outgoing.usage(chunk, raw)
        sent = [self._entry(chunk, entry) for entry in entries]
        if self._over:
            return sent[-1] or b""
        if all(each is None for each in sent):
            return raw
        return b"".join(
            self._outgoing.single(chunk, entry) if each is None else each
            for entry, each in zip(entries, sent, strict=True)
        )

    def _entry(self, chunk: Chunk, entry: dict[str, Any]) -> bytes | None:
        """The bytes to send for one choice of a chunk; None when it may go out as it came."""
        if self._over:
            return b""
        index = entry.get("index") or 0
        choice = self._choices.get(index)
        if choice is None:
            choice = self._choices[index] = Choice(self.request, self._policy)
        if choice.finished:  # nothing belongs after the finish
            return b""
        delta = entry.get("delta") or {}
        pieces, unchanged = choice.take(delta)
        reason = entry.get("finish_reason")
        if not unchanged:
            self._note_held()
        if reason is not None:
            return self._finish_choice(chunk, entry, choice, pieces, unchanged, str(reason))
        if unchanged and not self._attempts.number:
            self._content_sent = self._content_sent or bool(pieces)
            return None
        sent = self._text(pieces) | ({} if self._attempts.number else other_fields(delta))
        return self._outgoing.single(chunk, {**entry, "delta": sent}) if sent else b""

    def _text(self, pieces: list[Piece]) -> dict[str, str]:
        """The text that this attempt may send: a later one gives content only if none went out before."""
        text = text_delta(pieces)
        if self._attempts.number:
            text.pop("reasoning", None)
            text.pop("reasoning_content", None)
            if not self._send_content:
                text.pop("content", None)
        if any(piece.kind in (CONTENT, CATCH_UP) and piece.text for piece in pieces) and "content" in text:
            self._content_sent = self._words_out = True
        return text

    def _finish_choice(
        self,
        chunk: Chunk,
        entry: dict[str, Any],
        choice: Choice,
        pieces: list[Piece],
        unchanged: bool,
        reason: str,
    ) -> bytes | None:
        tail, finished = choice.finish(reason)
        judged = judge(finished, self.request, self._policy, self._attempts.taken_ids)
        self.report.add(judged)
        first = self._attempts.number == 0
        rest = self._text(pieces + tail) | (other_fields(entry.get("delta") or {}) if first else {})
        # Words of a second answer behind words of the first would make a third that nobody gave.
        words_late = not first and not judged.calls and self._content_sent and not self._send_content
        if judged.acceptable and not words_late:
            self._attempts.settle()
            plain = unchanged and not tail and not judged.calls and judged.reason == reason
            if plain and first and self.report.flag is None:
                return None
            return self._accepted(chunk, entry, rest, judged)
        text = self._outgoing.single(chunk, {**entry, "delta": rest, "finish_reason": None}) if rest else b""
        if not words_late:
            self._attempts.keep([judged], {**chunk, "choices": [{**entry, "delta": {}}]})
        if self._attempts.may_ask_again():
            self._again = True
            return text
        return text + self._give_up()

    def _accepted(self, chunk: Chunk, entry: dict[str, Any], rest: dict[str, Any], judged: Judged) -> bytes:
        out = self._outgoing.answer(chunk, entry, rest, judged)
        self._release()
        return out

    def _give_up(self) -> bytes:
        """No attempt was acceptable, and no more are allowed."""
        last = self._attempts.last_resort()
        if isinstance(last, Failure):
            return self._fail(last)
        (judged,), chunk = last
        self._again = False
        self._attempts.settle(exhausted=True)
        return self._accepted(dict(chunk), chunk["choices"][0], {}, judged)

    def _finish_stream(self) -> bytes:
        """The upstream said that it is done: choices that never named a reason are finished now."""
        out: list[bytes] = []
        for index, choice in self._choices.items():
            if not choice.finished:
                entry = {"index": index, "delta": {}, "finish_reason": "stop"}
                out.append(self._finish_choice(self._outgoing.blank(), entry, choice, [], False, "stop") or b"")
                if self._again or self._over:
                    return b"".join(out)
        self._attempts.settle()
        self._over = True
        return b"".join([*out, DONE])

    def _fail(self, failure: Failure) -> bytes:
        self._over = True
        self._release()
        self._attempts.fail(failure)
        return event(failure.body)

    def _note_held(self) -> None:
        held = sum(choice.held_bytes for choice in self._choices.values())
        if held and self._held_since is None:
            self._held_since = self._clock()
        self.report.max_held_bytes = max(self.report.max_held_bytes, held)

    def _release(self) -> None:
        if self._held_since is not None:
            self.report.held_s = max(self.report.held_s, self._clock() - self._held_since)
            self._held_since = None


def _well_formed(chunk: Chunk) -> bool:
    choices = chunk.get("choices")
    if choices is None:
        return True
    if not isinstance(choices, list):
        return False
    return all(isinstance(entry, dict) and isinstance(entry.get("delta") or {}, dict) for entry in choices)
