"""The prefix tree against a plain list of sequences, and the cache's bookkeeping under any order of calls."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from k3stack.reference.cache import Cache, Lease, PrefixTree, Snapshot
from tests.reference.fake import FakeModel

STATE = torch.zeros(1, 1, 1, 1)
TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=12)


def snapshot(length: int) -> Snapshot:
    return Snapshot(length, (), STATE, STATE)


def common(a: list[int], b: list[int]) -> int:
    return next((place for place, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@given(kept=st.lists(TOKENS, max_size=12), asked=st.lists(TOKENS, min_size=1, max_size=6), dropped=st.integers(0, 6))
def test_the_tree_is_a_list_of_prefixes(kept: list[list[int]], asked: list[list[int]], dropped: int) -> None:
    tree, plain = PrefixTree(), []
    for tokens in kept:
        assert tree.has(tokens, len(tokens)) == (tokens in plain)
        if tokens not in plain:
            tree.add(tokens, snapshot(len(tokens)))
            plain.append(tokens)
    for _ in range(min(dropped, len(plain))):
        found = tree.drop_oldest()
        assert found is not None and found.length == len(plain.pop(0))
    assert len(tree) == len(plain)
    for tokens in asked:
        match = tree.match(tokens, len(tokens))
        best = max((len(each) for each in plain if tokens[: len(each)] == each), default=0)
        assert (match.snapshot.length if match.snapshot else 0) == best
        assert match.known == max((common(tokens, each) for each in plain), default=0)
        shorter = tree.match(tokens, len(tokens) - 1).snapshot
        assert shorter is None or shorter.length < len(tokens)


def test_a_used_prefix_outlives_an_unused_one() -> None:
    tree = PrefixTree()
    for tokens in ([1], [2], [3]):
        tree.add(tokens, snapshot(1))
    tree.match([1, 5], 2)
    tree.drop_oldest(), tree.drop_oldest()
    assert tree.has([1], 1) and not tree.has([2], 1) and not tree.has([3], 1)


class AnyOrder(RuleBasedStateMachine):
    """Admit, grow, keep, release in any order: pages and slots are counted right after every call."""

    def __init__(self) -> None:
        super().__init__()
        memory = FakeModel().new_memory(pages=12, page_tokens=3, slots=3, latent_dtype=torch.float32)
        self.cache = Cache(memory, snapshot_bytes=64)
        self.leases: list[tuple[Lease, list[int]]] = []

    @precondition(lambda self: self.cache.free_slots > 0)
    @rule(tokens=TOKENS)
    def admit(self, tokens: list[int]) -> None:
        lease = self.cache.admit(tokens)
        assert lease.computed < len(tokens)
        if lease.computed == 0:
            assert not self.cache.memory.recurrent[:, lease.slot].any()
        self.leases.append((lease, tokens))

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def compute(self, data: st.DataObject) -> None:
        lease, tokens = data.draw(st.sampled_from(self.leases))
        upto = data.draw(st.integers(lease.computed, len(tokens)))
        if self.cache.reserve(lease, upto):
            written = lease.pages[lease.computed // 3 : -(-upto // 3)] if upto > lease.computed else []
            assert all(self.cache.pool.holders[page] == 1 for page in written)
            lease.computed = upto

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def keep(self, data: st.DataObject) -> None:
        lease, tokens = data.draw(st.sampled_from(self.leases))
        self.cache.keep(lease, tokens)

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(self.leases))
        self.leases.remove(lease)
        self.cache.release(lease[0])

    @rule()
    def forget(self) -> None:
        self.cache.forget()

    @invariant()
    def nothing_leaked(self) -> None:
        self.cache.check()


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
