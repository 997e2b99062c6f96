"""Which choices an exported site holds: all that can be reached from the beginning, within what it covers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from k3stack.engines.releases import versions
from k3stack.panel.dimensions import DIMENSIONS, start, values
from k3stack.panel.follow import change
from k3stack.recipe.choice import CARD, Choice, Parsers, standard_version
from k3stack.spec.schemes import Scheme

__all__ = ["Coverage", "covered", "reachable"]


@dataclass(frozen=True, slots=True)
class Coverage:
    """What a site holds.

    Attributes:
        hardware: GPUs by id; empty for all.
        all_releases: every release, or only what is standard for a choice: each engine's newest, the image NVIDIA
            validated NVFP4 with, and SGLang's ROCm image.
    """

    hardware: tuple[str, ...] = ()
    all_releases: bool = False

    def words(self) -> tuple[str, ...]:
        """The same for a reader."""
        gpus = [", ".join(self.hardware)] if self.hardware else []
        newest = [f"{engine} {versions(engine)[-1]}" for engine in ("vllm", "sglang")]
        return (*gpus, *([] if self.all_releases else newest))


def covered(choice: Choice, coverage: Coverage) -> bool:
    """Whether a site with this coverage holds a choice."""
    if coverage.hardware and choice.gpu.id not in coverage.hardware:
        return False
    if not choice.workload.prefix_caching or choice.parsers is not Parsers.KIMI_K3:
        return False
    if coverage.all_releases or choice.version == versions(choice.engine)[-1]:
        return True
    if choice.version == CARD:
        return choice.scheme is Scheme.NVFP4_MIXED
    return choice.version == standard_version(choice.engine, choice.gpu, choice.scheme)


def beginning(coverage: Coverage) -> Choice:
    """Where the site begins: where the page does, or on the first of its GPUs.

    Raises:
        StopIteration: none of the GPUs can be chosen; `export` says so.
    """
    first = start()
    if covered(first, coverage):
        return first
    on_engines = [first, change(first, "engine", "sglang").choice]
    return next(
        moved
        for kind in coverage.hardware
        for one in on_engines
        if one is not None and (moved := change(one, "hardware", kind).choice) is not None and covered(moved, coverage)
    )


def reachable(begin: Iterable[Choice], holds: Callable[[Choice], bool]) -> list[Choice]:
    """Every choice that clicks lead to, nearest first."""
    found = dict.fromkeys(begin)
    queue = deque(found)
    while queue:
        here = queue.popleft()
        for dimension in DIMENSIONS:
            for word in values(here, dimension):
                there = change(here, dimension, word).choice
                if there is not None and there not in found and holds(there):
                    found[there] = None
                    queue.append(there)
    return list(found)
