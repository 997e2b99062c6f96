"""The cache as the engine uses it: a lease for each running request, prefixes for those to come."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from k3stack.reference.batch import Memory, zeroed
from k3stack.reference.cache.pages import PagePool
from k3stack.reference.cache.prefix import PrefixTree, Snapshot

__all__ = ["Cache", "Lease"]


@dataclass(slots=True, eq=False)
class Lease:
    """What a running request holds.

    Attributes:
        slot: its row of state.
        pages: its pages, in order.
        computed: tokens whose latent cache and state are there.
        cached: how many of them came from the prefix cache.
        known: tokens of its prompt that some earlier prompt shares.
    """

    slot: int
    pages: list[int] = field(default_factory=list)
    computed: int = 0
    cached: int = 0
    known: int = 0


class Cache:
    """Hands out pages and state slots, and keeps prefixes while there is room.

    Args:
        memory: the tensors; all pages and slots are free at first.
        snapshot_bytes: memory for states of kept prefixes; 0 switches the prefix cache off.
    """

    def __init__(self, memory: Memory, snapshot_bytes: int) -> None:
        self.memory = memory
        self.page_tokens = memory.latent.shape[2]
        self.pool = PagePool(memory.latent.shape[1])
        self.prefixes = PrefixTree()
        self.snapshot_bytes = snapshot_bytes
        self._kept_bytes = 0
        self._slots = list(range(memory.recurrent.shape[1] - 1, -1, -1))
        self._leases: set[Lease] = set()

    @property
    def keeps_prefixes(self) -> bool:
        """Whether the prefix cache is on."""
        return self.snapshot_bytes > 0

    @property
    def free_slots(self) -> int:
        """How many more requests could run."""
        return len(self._slots)

    @property
    def used_share(self) -> float:
        """Share of the pages that running requests hold."""
        return len(self._held()) / len(self.pool)

    def can_hold(self, wanted: Mapping[Lease, int]) -> bool:
        """Whether these leases could hold so many tokens each, and no other lease would have to give up a page."""
        more = [-(-tokens // self.page_tokens) - len(lease.pages) for lease, tokens in wanted.items()]
        return sum(max(0, pages) for pages in more) <= len(self.pool) - len(self._held())

    def admit(self, keys: Sequence[int], resume: bool = True) -> Lease:
        """A lease for a request whose tokens have these keys, resumed where a prefix is known.

        At least one token is left to compute, as a state alone gives no logits. There must be a free slot.
        """
        lease = Lease(self._slots.pop())
        self._leases.add(lease)
        zeroed(self.memory, lease.slot)
        if resume and self.keeps_prefixes:
            match = self.prefixes.match(keys, len(keys) - 1)
            lease.known = match.known
            if match.snapshot is not None:
                self._resume(lease, match.snapshot)
        return lease

    def reserve(self, lease: Lease, tokens: int) -> bool:
        """Make sure that `lease` can hold `tokens` tokens and that the pages it will write are its own alone.

        Returns False when there are not enough pages; prefixes are given up first. What it got, it keeps.
        """
        while len(lease.pages) * self.page_tokens < tokens:
            page = self._take()
            if page is None:
                return False
            lease.pages.append(page)
        first = lease.computed // self.page_tokens
        if first < len(lease.pages) and self.pool.holders[lease.pages[first]] > 1:
            return self._own(lease, first)
        return True

    def keep(self, lease: Lease, keys: Sequence[int]) -> None:
        """Keep what `lease` has computed as a prefix, if there is room and it is not kept already."""
        state_bytes = self._state_bytes()
        if lease.computed == 0 or state_bytes > self.snapshot_bytes or self.prefixes.has(keys, lease.computed):
            return
        while self._kept_bytes + state_bytes > self.snapshot_bytes:
            self._forget_oldest()
        pages = tuple(lease.pages[: -(-lease.computed // self.page_tokens)])
        self.pool.share(pages)
        recurrent = self.memory.recurrent[:, lease.slot].clone()
        conv = self.memory.conv[:, lease.slot].clone()
        snapshot = Snapshot(lease.computed, pages, recurrent, conv)
        self.prefixes.add(keys, snapshot)
        self._kept_bytes += snapshot.state_bytes

    def release(self, lease: Lease) -> None:
        """Take a lease back."""
        self._leases.remove(lease)
        self.memory.trails.pop(lease.slot, None)
        self.pool.release(lease.pages)
        self._slots.append(lease.slot)

    def forget(self) -> None:
        """Drop every kept prefix."""
        while len(self.prefixes):
            self._forget_oldest()

    def check(self) -> None:
        """Assert that nothing leaked: every page and slot is held as often as somebody holds it."""
        held: Iterable[int] = [page for lease in self._leases for page in lease.pages]
        self.pool.check([*held, *(page for snapshot in self.prefixes for page in snapshot.pages)])
        slots = [lease.slot for lease in self._leases]
        assert sorted(slots + self._slots) == list(range(self.memory.recurrent.shape[1])), "state slots leaked"
        assert self._kept_bytes == sum(snapshot.state_bytes for snapshot in self.prefixes)
        assert set(self.memory.trails) <= set(slots)

    def _held(self) -> set[int]:
        """The pages that running requests hold; all others are free, or a prefix's."""
        return {page for lease in self._leases for page in lease.pages}

    def _resume(self, lease: Lease, snapshot: Snapshot) -> None:
        self.pool.share(snapshot.pages)
        lease.pages = list(snapshot.pages)
        lease.computed = lease.cached = snapshot.length
        with torch.no_grad():
            self.memory.recurrent[:, lease.slot] = snapshot.recurrent
            self.memory.conv[:, lease.slot] = snapshot.conv

    def _own(self, lease: Lease, place: int) -> bool:
        """Copy on write: give `lease` a copy of a page that others hold too."""
        page = self._take()
        if page is None:
            return False
        shared = lease.pages[place]
        if self.pool.holders[shared] == 1:  # the other holder was a prefix, given up just now for the new page
            self.pool.release([page])
            return True
        with torch.no_grad():
            self.memory.latent[:, page] = self.memory.latent[:, shared]
            if self.memory.draft is not None:
                self.memory.draft[:, page] = self.memory.draft[:, shared]
        lease.pages[place] = page
        self.pool.release([shared])
        return True

    def _take(self) -> int | None:
        page = self.pool.take()
        while page is None and len(self.prefixes):
            self._forget_oldest()
            page = self.pool.take()
        return page

    def _forget_oldest(self) -> None:
        snapshot = self.prefixes.drop_oldest()
        if snapshot is not None:
            self._kept_bytes -= snapshot.state_bytes
            self.pool.release(snapshot.pages)

    def _state_bytes(self) -> int:
        """Memory of one state: a row of all slots."""
        slots = self.memory.recurrent.shape[1]
        return (self.memory.recurrent.nbytes + self.memory.conv.nbytes) // slots
