"""The prefix cache: a radix tree over tokens whose nodes carry the state after their last token.

KDA has no cache of past tokens, only a state that every token changes. So a prefix can be resumed only where its
state was kept: at a node with a snapshot. Nodes without one are forks, which say that two prompts went apart there:
the next prompt that comes by is worth a snapshot at that very place.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from torch import Tensor

__all__ = ["Match", "PrefixTree", "Snapshot"]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What it takes to go on behind a prefix.

    Attributes:
        length: tokens of the prefix.
        pages: where their latent cache is; the last page may be partly filled.
        recurrent: [D, H, K, V] float32, the KDA state after the last token.
        conv: [D, W-1, 3*H*K], the last inputs of the short convolutions.
    """

    length: int
    pages: tuple[int, ...]
    recurrent: Tensor
    conv: Tensor

    @property
    def state_bytes(self) -> int:
        """Memory of the state; the pages are counted where they are."""
        return self.recurrent.nbytes + self.conv.nbytes


@dataclass(frozen=True, slots=True)
class Match:
    """How far a prompt is known.

    Attributes:
        snapshot: the deepest place where it can be resumed, or None.
        known: tokens that some earlier prompt shares, also behind the snapshot.
    """

    snapshot: Snapshot | None
    known: int


@dataclass(slots=True, eq=False)
class _Node:
    edge: tuple[int, ...]
    parent: _Node | None
    children: dict[int, _Node] = field(default_factory=dict)
    snapshot: Snapshot | None = None


class PrefixTree:
    """Snapshots by the tokens before them, least recently used first out."""

    def __init__(self) -> None:
        self._root = _Node((), None)
        self._by_use: OrderedDict[_Node, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_use)

    def __iter__(self) -> Iterator[Snapshot]:
        return (node.snapshot for node in self._by_use if node.snapshot is not None)

    def match(self, tokens: Sequence[int], limit: int) -> Match:
        """The longest snapshot of at most `limit` tokens that `tokens` begins with; counts as a use of it."""
        node, depth, best = self._root, 0, None
        while True:
            if node.snapshot is not None and depth <= limit:
                best = node
            child = node.children.get(tokens[depth]) if depth < len(tokens) else None
            if child is None:
                break
            common = _common(child.edge, tokens, depth)
            depth += common
            if common < len(child.edge):
                break
            node = child
        if best is not None:
            self._by_use.move_to_end(best)
        return Match(None if best is None else best.snapshot, depth)

    def has(self, tokens: Sequence[int], length: int) -> bool:
        """Whether the first `length` tokens have a snapshot."""
        node, depth = self._root, 0
        while depth < length:
            child = node.children.get(tokens[depth])
            if child is None or depth + len(child.edge) > length:
                return False
            if _common(child.edge, tokens, depth) < len(child.edge):
                return False
            node, depth = child, depth + len(child.edge)
        return node.snapshot is not None

    def add(self, tokens: Sequence[int], snapshot: Snapshot) -> None:
        """Keep a snapshot of the first `snapshot.length` tokens, which must have none yet."""
        node = self._node_at(tuple(tokens[: snapshot.length]))
        assert node.snapshot is None
        node.snapshot = snapshot
        self._by_use[node] = None

    def drop_oldest(self) -> Snapshot | None:
        """Forget the snapshot that was not used for the longest time and return it; None when there is none."""
        if not self._by_use:
            return None
        node, _ = self._by_use.popitem(last=False)
        snapshot, node.snapshot = node.snapshot, None
        self._tidy(node)
        return snapshot

    def _node_at(self, tokens: tuple[int, ...]) -> _Node:
        """The node that ends exactly behind `tokens`, made (by a split or as a leaf) if it is not there."""
        node, depth = self._root, 0
        while depth < len(tokens):
            child = node.children.get(tokens[depth])
            if child is None:
                child = _Node(tokens[depth:], node)
                node.children[tokens[depth]] = child
                return child
            common = _common(child.edge, tokens, depth)
            if common < len(child.edge):
                child = self._split(child, common)
            node, depth = child, depth + common
        return node

    def _split(self, node: _Node, at: int) -> _Node:
        parent = node.parent
        assert parent is not None
        upper = _Node(node.edge[:at], parent)
        parent.children[upper.edge[0]] = upper
        node.edge, node.parent = node.edge[at:], upper
        upper.children[node.edge[0]] = node
        return upper

    def _tidy(self, node: _Node) -> None:
        """Remove what carries nothing: leaves without a snapshot, and nodes that only lead on to one other."""
        while node.parent is not None and node.snapshot is None and not node.children:
            parent = node.parent
            del parent.children[node.edge[0]]
            node = parent
        if node.parent is not None and node.snapshot is None and len(node.children) == 1:
            (child,) = node.children.values()
            child.edge, child.parent = node.edge + child.edge, node.parent
            node.parent.children[child.edge[0]] = child


def _common(edge: tuple[int, ...], tokens: Sequence[int], start: int) -> int:
    """How many tokens of `edge` agree with `tokens` from `start` on."""
    there = tuple(tokens[start : start + len(edge)])
    if there == edge:
        return len(edge)
    return next((place for place, (a, b) in enumerate(zip(edge, there, strict=False)) if a != b), len(there))
