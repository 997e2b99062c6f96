"""The engine: requests in, one pass at a time, updates out.

    engine.add(request)
    while engine.busy:
        for update in engine.step(): ...

A step: plan (scheduler) -> batch -> model -> logits -> tokens (sampling) -> updates. It is not safe for threads; the
server gives it a thread of its own (`k3stack.reference.worker`).

Shapes: T tokens of a pass, V the vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from k3stack.errors import UsageError
from k3stack.reference.batch import Batch, Images, Memory, Output, Piece
from k3stack.reference.cache import Cache
from k3stack.reference.constraint import Constraint
from k3stack.reference.drafting import Drafting
from k3stack.reference.model.draft import Drafter
from k3stack.reference.request import Finish, Request, Token, Update
from k3stack.reference.sampling import Chance, adjust, distribution, pick, report
from k3stack.reference.scheduler import Scheduler, Work
from k3stack.reference.sequence import Sequence
from k3stack.reference.speculate import Proposal, verify_one

__all__ = ["Counters", "Engine", "EngineOptions", "Model"]


_SHARED_TOKENS = 2**18
"""Tokens of latent cache made without being asked, if one request does not need more."""


class Model(Protocol):
    """What the engine needs of a model; `k3stack.reference.model.K3` is one."""

    def new_memory(self, pages: int, page_tokens: int, slots: int, latent_dtype: torch.dtype) -> Memory:
        """Empty memory of this size."""

    def forward(self, batch: Batch, memory: Memory, capture: bool = False) -> Output:
        """One pass over a batch."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [n, V] in float32 of hidden states [n, hidden]."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How the engine runs.

    Attributes:
        context: the longest prompt and answer together, tokens.
        slots: requests that run at a time.
        page_tokens: tokens in a page of latent cache.
        pages: pages; None for enough that one request can fill the context, and all slots a quarter of it (262,144
            tokens at most).
        latent_dtype: what the latent cache holds.
        chunk_tokens: prompt tokens computed in a pass, beside one token of each request that answers.
        snapshot_bytes: memory for states of kept prefixes; 0: no prefix cache.
        snapshot_every: a prefix is kept at each multiple of this many tokens.
        draft_tokens: tokens that the draft proposes each time.
    """

    context: int = 4096
    slots: int = 16
    page_tokens: int = 16
    pages: int | None = None
    latent_dtype: torch.dtype = torch.bfloat16
    chunk_tokens: int = 512
    snapshot_bytes: int = 2**30
    snapshot_every: int = 1024
    draft_tokens: int = 0

    def __post_init__(self) -> None:
        for name in ("context", "slots", "page_tokens", "chunk_tokens", "snapshot_every"):
            if getattr(self, name) < 1:
                raise UsageError("must be at least 1", where=name)
        if self.page_count * self.page_tokens < self.context:
            what = f"{self.page_count} pages of {self.page_tokens} tokens do not hold the context of {self.context}"
            raise UsageError(what, where="pages", hint="Give more pages or a shorter context")

    @property
    def page_count(self) -> int:
        """Pages that there are."""
        if self.pages is not None:
            return self.pages
        shared = min(self.slots * self.context // 4, _SHARED_TOKENS)
        tokens = max(self.context + self.draft_tokens + 1, shared)
        return -(-tokens // self.page_tokens) + 1


@dataclass(slots=True)
class Counters:
    """What the engine did since it began."""

    passes: int = 0
    prompt_tokens: int = 0
    computed_tokens: int = 0
    answer_tokens: int = 0
    queried_tokens: int = 0
    cached_tokens: int = 0
    drafts: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    longest_pass_s: float = 0.0
    finished: dict[str, int] = field(default_factory=dict)


class Engine:
    """Runs requests through a model.

    Args:
        model: K3, or whatever keeps to the border of `k3stack.reference.batch`.
        options: sizes.
        end_tokens: tokens that end an answer.
        drafter: proposes tokens, as K3's `draft`; None: one token for each pass.
    """

    def __init__(
        self, model: Model, options: EngineOptions, end_tokens: Iterable[int] = (), drafter: Drafter | None = None
    ) -> None:
        self.model = model
        self.options = options
        self.end_tokens = frozenset(end_tokens)
        memory = model.new_memory(
            options.page_count, options.page_tokens, options.slots, latent_dtype=options.latent_dtype
        )
        self.cache = Cache(memory, options.snapshot_bytes)
        self.scheduler = Scheduler(self.cache, options.chunk_tokens, options.snapshot_every)
        self.counters = Counters()
        self._drafting: Drafting | None = None
        if drafter is not None and options.draft_tokens > 0:
            self._drafting = Drafting(drafter, options.draft_tokens, options.context)
        self._by_id: dict[str, Sequence] = {}

    @property
    def busy(self) -> bool:
        """Whether any request runs or waits."""
        return bool(self._by_id)

    def add(self, request: Request, constraint: Constraint | None = None) -> None:
        """Take a request; its first update comes from a later step.

        Raises:
            UsageError: it does not fit the context, or its id is taken.
        """
        if not request.prompt:
            raise UsageError("a prompt without a token", where="prompt")
        if len(request.prompt) >= self.options.context + (request.sampling.max_tokens == 0):
            what = f"the prompt has {len(request.prompt)} tokens, the context {self.options.context}"
            raise UsageError(what, where="prompt")
        if request.id in self._by_id:
            raise UsageError(f"a request {request.id} is there already", where="id")
        sequence = Sequence(request, constraint)
        self._by_id[request.id] = sequence
        self.counters.prompt_tokens += len(request.prompt)
        self.scheduler.add(sequence)

    def cancel(self, request_id: str) -> bool:
        """Drop a request and all that it holds; False when it is not there (any more)."""
        sequence = self._by_id.pop(request_id, None)
        if sequence is None:
            return False
        self._count_finish(Finish.CANCELLED)
        # Nothing is kept: its next pass may have been planned for tokens that nobody will compute.
        self.scheduler.remove(sequence, keep=False)
        return True

    @torch.inference_mode()
    def step(self) -> list[Update]:
        """One pass, and what came of it."""
        began = time.perf_counter()
        works = self.scheduler.plan(self._propose())
        if not works:
            return []
        batch, memory = self._batch(works), self.cache.memory
        output = self.model.forward(batch, memory, capture=self._drafting is not None)
        if self._drafting is not None:
            self._drafting.remember(output, batch.pieces, memory)
        updates = self._read(works, output)
        counters = self.counters
        counters.passes += 1
        counters.computed_tokens += sum(work.count for work in works)
        counters.longest_pass_s = max(counters.longest_pass_s, time.perf_counter() - began)
        return updates

    def run(self, requests: Iterable[Request]) -> dict[str, list[Token]]:
        """Answer requests together and return their tokens; for tests and offline work."""
        answers: dict[str, list[Token]] = {}
        for request in requests:
            self.add(request)
            answers[request.id] = []
        while self.busy:
            for update in self.step():
                answers[update.id] += update.tokens
        return answers

    def _propose(self) -> dict[Sequence, Proposal]:
        if self._drafting is None:
            return {}
        return self._drafting.propose(self.scheduler.answering, self.cache.memory)

    def _batch(self, works: list[Work]) -> Batch:
        tokens: list[int] = []
        pieces: list[Piece] = []
        rows: list[int] = []
        vectors: list[Tensor] = []
        device = self.cache.memory.latent.device
        for work in works:
            sequence, lease = work.sequence, work.sequence.lease
            assert lease is not None
            start, first = lease.computed, len(tokens)
            tokens += sequence.tokens[start : start + work.count]
            tokens += () if work.proposal is None else work.proposal.tokens
            pages = torch.tensor(lease.pages, dtype=torch.int64, device=device)
            pieces.append(Piece(first, work.rows, start, pages, lease.slot, trail=work.proposal is not None))
            for picture in sequence.request.pictures:
                low = max(start, picture.start)
                high = min(start + work.count, picture.start + picture.vectors.shape[0])
                if low < high:
                    rows += range(first + low - start, first + high - start)
                    vectors.append(picture.vectors[low - picture.start : high - picture.start])
        images = None
        if rows:
            images = Images(torch.tensor(rows, dtype=torch.int64, device=device), torch.cat(vectors))
        return Batch(torch.tensor(tokens, dtype=torch.int64, device=device), tuple(pieces), images)

    def _read(self, works: list[Work], output: Output) -> list[Update]:
        """Choose tokens from the rows that a choice depends on, and move every sequence on."""
        wanted: list[range] = []
        first = 0
        for work in works:
            wanted.append(range(*self._wanted_rows(work, first)))
            first += work.rows
        rows = [row for each in wanted for row in each]
        logits = self._logits(output.hidden, rows)
        updates: list[Update] = []
        at = 0
        for work, each in zip(works, wanted, strict=True):
            update = self._advance(work, logits[at : at + len(each)])
            at += len(each)
            if update is not None:
                updates.append(update)
        return updates

    def _wanted_rows(self, work: Work, first: int) -> tuple[int, int]:
        """The rows of a piece whose logits are needed: the last that is the sequence's own, and the drafted ones."""
        sequence = work.sequence
        if sequence.request.sampling.prompt_logprobs is not None and not sequence.answered:
            return first, first + work.rows
        if work.count < sequence.remaining:
            return first, first
        return first + work.count - 1, first + work.rows

    def _logits(self, hidden: Tensor, rows: list[int]) -> NDArray[np.float32]:
        if not rows:
            return np.empty((0, 0), dtype=np.float32)
        chosen = hidden[torch.tensor(rows, dtype=torch.int64, device=hidden.device)]
        logits: NDArray[np.float32] = self.model.logits(chosen).float().cpu().numpy()
        return logits

    def _advance(self, work: Work, logits: NDArray[np.float32]) -> Update | None:
        sequence, lease = work.sequence, work.sequence.lease
        assert lease is not None
        if sequence.request.sampling.prompt_logprobs is not None and not sequence.answered:
            self._note_prompt(sequence, logits)
        whole = work.count == sequence.remaining
        lease.computed += work.count
        if self.scheduler.worth_keeping(sequence):
            self.cache.keep(lease, sequence.keys)
        if not whole:
            return None
        tokens, finish, accepted = self._choose(work, logits[-1 - work.drafted :])
        if work.proposal is not None:
            self.cache.memory.rewind(lease.slot, 1 + accepted)
            lease.computed += accepted
            self.counters.drafts += 1
            self.counters.drafted_tokens += work.drafted
            self.counters.accepted_tokens += accepted
        return self._tell(sequence, tokens, finish)

    def _choose(self, work: Work, logits: NDArray[np.float32]) -> tuple[list[Token], Finish | None, int]:
        """New tokens up to the end of the answer, why it ended, and how many of them were drafted."""
        sequence, sampling = work.sequence, work.sequence.request.sampling
        tokens: list[Token] = []
        if sampling.max_tokens == 0:
            return tokens, Finish.LENGTH, 0
        accepted = 0
        for place, row in enumerate(logits):
            token, drafted = self._pick(work, place, row)
            accepted += drafted
            finish = self._add(sequence, report(row, token, sampling.logprobs), tokens)
            if finish is not None:
                return tokens, finish, accepted
            if not drafted:
                break
        return tokens, self._add_forced(sequence, tokens), accepted

    def _pick(self, work: Work, place: int, row: NDArray[np.float32]) -> tuple[int, bool]:
        """The token behind one row of a piece, and whether it is the one that was drafted there."""
        sequence, sampling = work.sequence, work.sequence.request.sampling
        proposal = work.proposal if place < work.drafted else None
        allowed = None if sequence.constraint is None else sequence.constraint.allowed()
        if sampling.greedy and sampling.plain and allowed is None:
            token = int(row.argmax())
            return token, proposal is not None and proposal.tokens[place] == token
        target = distribution(adjust(row, sampling, sequence.said, sequence.request.prompt, allowed), sampling)
        chance = Chance(sequence.seed, sequence.answered)
        return (pick(target, chance), False) if proposal is None else verify_one(target, proposal, place, chance)

    def _add(self, sequence: Sequence, token: Token, tokens: list[Token]) -> Finish | None:
        tokens.append(token)
        sequence.add(token.id)
        if sequence.constraint is not None:
            sequence.constraint.take(token.id)
        return self._finish(sequence, token.id)

    def _add_forced(self, sequence: Sequence, tokens: list[Token]) -> Finish | None:
        """Tokens that the grammar leaves no choice about need no logits: they are computed together later."""
        finish = None
        while finish is None and sequence.constraint is not None and sequence.request.sampling.logprobs is None:
            forced = sequence.constraint.forced()
            if forced is None:
                break
            finish = self._add(sequence, Token(forced), tokens)
        return finish

    def _finish(self, sequence: Sequence, token: int) -> Finish | None:
        sampling = sequence.request.sampling
        if token in sampling.stop_tokens or (token in self.end_tokens and not sampling.ignore_eos):
            return Finish.STOP
        if sequence.answered >= sampling.max_tokens or len(sequence.tokens) >= self.options.context:
            return Finish.LENGTH
        return None

    def _tell(self, sequence: Sequence, tokens: list[Token], finish: Finish | None) -> Update:
        if sequence.answered == len(tokens):  # its first news
            self.counters.queried_tokens += sequence.prompt_length
            self.counters.cached_tokens += sequence.cached or 0
        self.counters.answer_tokens += len(tokens)
        prompt, sequence.prompt_tokens = tuple(sequence.prompt_tokens), []
        if finish is not None:
            del self._by_id[sequence.request.id]
            self._count_finish(finish)
            self.scheduler.remove(sequence, keep=sequence.request.resume)
        return Update(sequence.request.id, tuple(tokens), finish, sequence.cached or 0, prompt)

    def _note_prompt(self, sequence: Sequence, logits: NDArray[np.float32]) -> None:
        """Log-probabilities of the prompt's tokens: each row tells of the token behind it."""
        assert sequence.lease is not None
        if not sequence.prompt_tokens:
            sequence.prompt_tokens.append(Token(sequence.tokens[0]))
        for place, row in enumerate(logits, sequence.lease.computed + 1):
            if len(sequence.prompt_tokens) == place < sequence.prompt_length:
                chosen = sequence.tokens[place]
                sequence.prompt_tokens.append(report(row, chosen, sequence.request.sampling.prompt_logprobs))

    def _count_finish(self, finish: Finish) -> None:
        self.counters.finished[finish] = self.counters.finished.get(finish, 0) + 1
