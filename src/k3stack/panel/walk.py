"""Which choices an exported site holds: all that can be reached from the beginning, within what it covers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from k3stack.engines.releases import versions
from k3stack.panel.dimensions import DIMENSIONS, start, values
from k3stack.panel.follow import change, leads_to
from k3stack.recipe.choice import CARD, Choice, Parsers, standard_version
from k3stack.spec.schemes import Scheme

__all__ = ["Coverage", "beginning", "covered", "reachable"]

Run = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]
"""`map`, or something that does the same elsewhere."""


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


def reachable(begin: Choice, coverage: Coverage, run: Run = map) -> list[Choice]:
    """Every choice that clicks lead to, within what a site covers; the same order every time.

    Args:
        run: maps a function over GPUs; an executor's `map` walks several at once.
    """
    found: dict[str, dict[Choice, None]] = {}
    fresh = _by_gpu([begin, *_neighbours(begin, coverage, ("hardware",))])
    while fresh:
        walks = [_Walk(tuple(seeds), frozenset(found.get(gpu, ())), coverage) for gpu, seeds in fresh.items()]
        beyond: dict[Choice, None] = {}
        for gpu, (inside, outside) in zip(fresh, run(_walked, walks), strict=True):
            found.setdefault(gpu, {}).update(dict.fromkeys(inside))
            beyond.update(dict.fromkeys(outside))
        fresh = _by_gpu(one for one in beyond if one not in found.get(one.gpu.id, ()))
    return [choice for one_gpu in found.values() for choice in one_gpu]


@dataclass(frozen=True, slots=True)
class _Walk:
    """A walk over the choices of one GPU: from where, and what is known already."""

    seeds: tuple[Choice, ...]
    known: frozenset[Choice]
    coverage: Coverage


def _walked(walk: _Walk) -> tuple[list[Choice], list[Choice]]:
    """The choices of one GPU that clicks lead to, nearest first, and those of other GPUs that they lead to."""
    found, outside = dict.fromkeys(walk.seeds), dict[Choice, None]()
    queue = deque(found)
    while queue:
        here = queue.popleft()
        for there in _neighbours(here, walk.coverage):
            if there.gpu.id != here.gpu.id:
                outside[there] = None
            elif there not in found and there not in walk.known:
                found[there] = None
                queue.append(there)
    return list(found), list(outside)


def _neighbours(choice: Choice, coverage: Coverage, dimensions: Iterable[str] = DIMENSIONS) -> Iterator[Choice]:
    """What one click leads to."""
    for dimension in dimensions:
        for word in values(choice, dimension):
            there = leads_to(choice, dimension, word)
            if there is not None and covered(there, coverage):
                yield there


def _by_gpu(choices: Iterable[Choice]) -> dict[str, list[Choice]]:
    found: dict[str, list[Choice]] = {}
    for choice in choices:
        found.setdefault(choice.gpu.id, []).append(choice)
    return found
