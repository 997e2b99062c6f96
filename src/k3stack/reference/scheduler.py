"""What the next pass computes: continuous batching with chunked prefill.

First come, first served. Requests that answer get their next token in every pass; beside them at most `chunk_tokens`
prompt tokens are computed, so nobody waits for a whole long prompt. When pages run out, prefixes are given up first,
then the request that came last is pre-empted: its cache is dropped and computed again later, its answer goes on.
A request begins, or begins again, when all that it has to read fits beside the others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from k3stack.reference.cache import Cache
from k3stack.reference.sequence import Sequence
from k3stack.reference.speculate import Proposal

__all__ = ["Scheduler", "Work"]


@dataclass(frozen=True, slots=True)
class Work:
    """A sequence's part of a pass: its next `count` tokens, then the drafted ones."""

    sequence: Sequence
    count: int
    proposal: Proposal | None = None

    @property
    def drafted(self) -> int:
        """How many drafted tokens come behind the sequence's own."""
        return 0 if self.proposal is None else len(self.proposal.tokens)

    @property
    def rows(self) -> int:
        """Tokens in the pass."""
        return self.count + self.drafted


class Scheduler:
    """Keeps who waits and who runs.

    Args:
        cache: where running requests live.
        chunk_tokens: prompt tokens computed in a pass, beside the tokens of requests that answer.
        snapshot_every: a prefix is kept at each multiple of this many tokens.
    """

    def __init__(self, cache: Cache, chunk_tokens: int, snapshot_every: int) -> None:
        self.cache = cache
        self.chunk_tokens = chunk_tokens
        self.snapshot_every = snapshot_every
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.preemptions = 0

    def __iter__(self) -> Iterator[Sequence]:
        """Everybody, those that run first."""
        yield from self.running
        yield from self.waiting

    @property
    def answering(self) -> list[Sequence]:
        """Those that run and whose newest token alone is not computed."""
        return [each for each in self.running if _answers(each)]

    def add(self, sequence: Sequence) -> None:
        """A new request: it waits."""
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence, keep: bool) -> None:
        """A request is over. What it computed stays as a prefix if `keep`."""
        if sequence.lease is None:
            self.waiting.remove(sequence)
            return
        self.running.remove(sequence)
        if keep:
            self.cache.keep(sequence.lease, sequence.keys)
        self.cache.release(sequence.lease)
        sequence.lease = None

    def plan(self, proposals: dict[Sequence, Proposal] | None = None) -> list[Work]:
        """The work of the next pass; empty when nobody is there."""
        works = self._answering(proposals or {})
        budget = self.chunk_tokens
        for sequence in list(self.running):
            if budget == 0:
                return works
            if sequence.lease is not None and not _answers(sequence):
                budget -= self._prefill(sequence, budget, works)
        while budget > 0 and (sequence_or_none := self._next_waiting()) is not None:
            self._admit(sequence_or_none)
            done = self._prefill(sequence_or_none, budget, works) if self._fits(sequence_or_none) else 0
            if done == 0:  # wait until somebody ends
                self._send_back(sequence_or_none)
                break
            budget -= done
        return works

    def _fits(self, newest: Sequence) -> bool:
        """Whether everybody who still reads could read to the end; else a prompt is begun again and again."""
        return self.running == [newest] or self.cache.can_hold(
            {each.lease: each.lease.computed + each.remaining for each in self.running if each.lease is not None}
        )

    def _answering(self, proposals: dict[Sequence, Proposal]) -> list[Work]:
        works: list[Work] = []
        for sequence in list(self.running):
            if sequence.lease is None or not _answers(sequence):  # pre-empted a moment ago, or still reading
                continue
            proposal = proposals.get(sequence)
            rows = 1 + (0 if proposal is None else len(proposal.tokens))
            if self._make_room(sequence, sequence.lease.computed + rows):
                works.append(Work(sequence, 1, proposal))
        return works

    def _prefill(self, sequence: Sequence, budget: int, works: list[Work]) -> int:
        lease = sequence.lease
        assert lease is not None
        count = self._chunk(sequence, min(budget, sequence.remaining))
        if not self.cache.reserve(lease, lease.computed + count):
            # An older request may take pages from a younger one, never the other way round.
            if sequence not in self.running[:-1] or not self._make_room(sequence, lease.computed + count):
                return 0
            works[:] = [work for work in works if work.sequence.lease is not None]
        works.append(Work(sequence, count))
        return count

    def _chunk(self, sequence: Sequence, most: int) -> int:
        """How far a chunk goes: it ends where a prefix is worth keeping."""
        lease = sequence.lease
        assert lease is not None
        if not self.cache.keeps_prefixes:
            return most
        start, end = lease.computed, lease.computed + most
        every = self.snapshot_every
        # The last token of a prompt is computed alone: a repeated prompt resumes before it, as it needs its logits.
        stops = [(start // every + 1) * every, sequence.prompt_length - 1, lease.known]
        return min([end, *(stop for stop in stops if start < stop < end)]) - start

    def worth_keeping(self, sequence: Sequence) -> bool:
        """Whether the tokens that `sequence` has computed are a place to keep a prefix."""
        lease = sequence.lease
        if lease is None or not sequence.request.resume:
            return False
        done = lease.computed
        return done in (sequence.prompt_length - 1, lease.known) or done % self.snapshot_every == 0

    def _make_room(self, sequence: Sequence, tokens: int) -> bool:
        """Get pages for `sequence`, from the latest requests if need be; False if it was pre-empted itself."""
        assert sequence.lease is not None
        while not self.cache.reserve(sequence.lease, tokens):
            victim = self.running[-1]
            self._send_back(victim)
            self.preemptions += 1
            if victim is sequence:
                return False
        return True

    def _admit(self, sequence: Sequence) -> None:
        self.waiting.remove(sequence)
        sequence.lease = self.cache.admit(sequence.keys, sequence.request.resume)
        if sequence.cached is None:
            sequence.cached = sequence.lease.cached
        self.running.append(sequence)

    def _send_back(self, sequence: Sequence) -> None:
        assert sequence.lease is not None
        self.running.remove(sequence)
        self.cache.release(sequence.lease)
        sequence.lease = None
        self.waiting.appendleft(sequence)

    def _next_waiting(self) -> Sequence | None:
        if self.cache.free_slots == 0:
            return None
        reading = {each.request.id for each in self if each.lease is None or each.lease.computed < each.prompt_length}
        return next((each for each in self.waiting if each.request.after not in reading), None)


def _answers(sequence: Sequence) -> bool:
    return sequence.answered > 0 and sequence.remaining == 1
