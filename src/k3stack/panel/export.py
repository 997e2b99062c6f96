"""The page as a site of files, which opens from a disk or any web server, with the network off.

The answers are asked of the same functions as the served page's, for every choice that clicks lead to and every stop
of the sliders, and written down: nothing is computed a second time in another language. One small file for each GPU,
engine and release is loaded when it is needed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Thread

from k3stack.errors import InputError, UsageError
from k3stack.files import write_text
from k3stack.panel.about import about
from k3stack.panel.files import LANGUAGES, POLICY, SCRIPTS, call, page, strings
from k3stack.panel.rows import selection
from k3stack.panel.shard import name_of, shard
from k3stack.panel.walk import Coverage, beginning, covered, reachable
from k3stack.recipe.choice import Choice
from k3stack.values import dump

__all__ = ["Site", "export"]

Report = Callable[[int, "int | None", str], None]

_OWN = frozenset(
    (
        *("data", "index.html", "panel.css", "icon.svg", "about.js", "source.js"),
        *SCRIPTS,
        *(f"strings.{language}.js" for language in LANGUAGES),
    )
)
"""What a site consists of."""


@dataclass(frozen=True, slots=True)
class Site:
    """What was written."""

    folder: str
    covers: tuple[str, ...]
    states: int
    files: int
    size_bytes: int


def export(
    folder: Path, hardware: tuple[str, ...] = (), all_releases: bool = False, report: Report | None = None
) -> Site:
    """Write the site.

    Args:
        folder: made if it is not there; only files of an earlier export are replaced.
        hardware: GPUs by id; all by default.
        all_releases: every release instead of the newest.

    Raises:
        InputError: the folder holds something else, or cannot be written.
        UsageError: none of the GPUs can be chosen.
    """
    told = report or (lambda done, total, what: None)
    coverage = Coverage(hardware, all_releases)
    begin = _begin(coverage)
    _prepare(folder)
    told(0, None, "finding the choices")
    choices = reachable([begin], partial(covered, coverage=coverage))
    shards = _grouped(choices)
    written = list(_written(shards, frozenset(choices), told))
    for name, text, _ in written:
        write_text(folder / "data" / f"{name}.js", f'K3.shard("{name}",{text});\n')
    names = sorted(name for name, _, _ in written)
    facts = {**dump(about(begin, served=False, covers=coverage.words())), "shards": names}
    _pages(folder, call("about", facts))
    files = [path for path in folder.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    return Site(str(folder), coverage.words(), sum(count for _, _, count in written), len(files), size)


def _begin(coverage: Coverage) -> Choice:
    try:
        return beginning(coverage)
    except StopIteration:
        names = ", ".join(coverage.hardware)
        raise UsageError(f"nothing can be deployed on {names}", where="--hardware", hint="See `k3 panel`.") from None


def _prepare(folder: Path) -> None:
    """A folder that is ours or empty: an export replaces its own files and nothing else's."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        foreign = sorted({path.name for path in folder.iterdir()} - _OWN)
        if not foreign:
            (folder / "data").mkdir(exist_ok=True)
            for old in (folder / "data").glob("*.js"):
                old.unlink()
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", where=folder) from error
    if foreign:
        raise InputError(f"holds other files: {foreign[0]}", where=folder, hint="Give an empty or a new folder.")


def _grouped(choices: Iterable[Choice]) -> dict[str, list[Choice]]:
    found: dict[str, list[Choice]] = {}
    for choice in choices:
        found.setdefault(name_of(choice), []).append(choice)
    return found


def _written(shards: dict[str, list[Choice]], held: frozenset[Choice], told: Report) -> Iterator[tuple[str, str, int]]:
    """Each shard's name, text and number of states; several at once where there are several cores."""
    selections = frozenset(selection(choice) for choice in held)
    total, done = sum(map(len, shards.values())), 0
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    few = min(cores, len(shards))
    with ProcessPoolExecutor(few, mp_context=get_context("spawn"), initializer=_end_with_parent) as workers:
        largest = sorted(shards, key=lambda name: -len(shards[name]))
        jobs = {workers.submit(_shard, shards[name], selections): name for name in largest}
        for job in as_completed(jobs):
            text, count = job.result()
            done += count
            told(done, total, "choices")
            yield jobs[job], text, count


def _end_with_parent() -> None:
    """A worker ends when the export does, however that ended: nobody would take what it makes."""

    def wait() -> None:
        parent = parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    Thread(target=wait, daemon=True).start()


def _shard(choices: list[Choice], selections: frozenset[str]) -> tuple[str, int]:
    return shard(choices, lambda choice: selection(choice) in selections)


def _pages(folder: Path, facts: str) -> None:
    policy = f'<meta http-equiv="content-security-policy" content="{POLICY}">'
    write_text(folder / "index.html", page("index.html").replace("<!-- policy -->", policy))
    for name in ("panel.css", "icon.svg", *SCRIPTS):
        write_text(folder / name, page(name))
    for language in LANGUAGES:
        write_text(folder / f"strings.{language}.js", strings(language))
    write_text(folder / "source.js", page("exported.js"))
    write_text(folder / "about.js", facts)
