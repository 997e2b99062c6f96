"""Pages of the latent cache: who holds each, and which are free."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["PagePool"]


class PagePool:
    """Counts the holders of each page. A page with no holder is free; one with several must not be written.

    Args:
        count: how many pages there are.
    """

    def __init__(self, count: int) -> None:
        self.holders = [0] * count
        self._free = list(range(count - 1, -1, -1))

    def __len__(self) -> int:
        return len(self.holders)

    @property
    def free(self) -> int:
        """How many pages nobody holds."""
        return len(self._free)

    def take(self) -> int | None:
        """A free page, now held once; None when there is none."""
        if not self._free:
            return None
        page = self._free.pop()
        self.holders[page] = 1
        return page

    def share(self, pages: Iterable[int]) -> None:
        """Hold these pages once more."""
        for page in pages:
            assert self.holders[page] > 0, page
            self.holders[page] += 1

    def release(self, pages: Iterable[int]) -> None:
        """Hold these pages once less; those that nobody holds any more are free."""
        for page in pages:
            self.holders[page] -= 1
            assert self.holders[page] >= 0, page
            if self.holders[page] == 0:
                self._free.append(page)

    def check(self, held: Iterable[int]) -> None:
        """Assert that `held`, every page once for each of its holders, is what was counted."""
        expected = [0] * len(self.holders)
        for page in held:
            expected[page] += 1
        assert expected == self.holders, "pages leaked or were freed too early"
        assert sorted(self._free) == [page for page, count in enumerate(expected) if count == 0]
