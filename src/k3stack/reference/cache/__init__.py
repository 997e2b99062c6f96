"""What outlives a pass: pages of latent cache, state slots, and prefixes that can be resumed."""

from __future__ import annotations

from k3stack.reference.cache.pages import PagePool
from k3stack.reference.cache.prefix import PrefixTree, Snapshot
from k3stack.reference.cache.store import Cache, Lease

__all__ = ["Cache", "Lease", "PagePool", "PrefixTree", "Snapshot"]
