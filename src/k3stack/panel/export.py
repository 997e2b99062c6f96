"""The page as a site of files, which opens from a disk or any web server, with the network off.

The answers are asked of the same functions as the served page's, for every choice that clicks lead to and every stop
of the sliders, and written down: nothing is computed a second time in another language. One file for each GPU, engine
and release is loaded when it is needed.

All files are made in a folder of their own and change places with those of an earlier export at the end. What an
interrupted or an earlier export made is kept if the same question would give the same answer.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, as_completed
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from importlib.resources import files
from pathlib import Path

from k3stack.errors import InputError, UnavailableError, UsageError, next_step
from k3stack.files import sync_folder, write_text
from k3stack.panel.about import about
from k3stack.panel.files import LANGUAGES, POLICY, SCRIPTS, call, page, strings
from k3stack.panel.rows import selection
from k3stack.panel.shard import name_of, shard
from k3stack.panel.walk import Coverage, beginning, reachable
from k3stack.panel.workers import workers
from k3stack.plan.site import saved
from k3stack.recipe.choice import Choice
from k3stack.values import dump

__all__ = ["Site", "export"]

Report = Callable[[int, "int | None", str], None]

_DATA, _PART, _OLD = "data", "data.part", "data.old"
"""The answers, those that an export is making, and those that it replaces."""

_OWN = frozenset(
    (
        *(_DATA, _PART, _OLD, "index.html", "panel.css", "icon.svg", "about.js", "source.js"),
        *SCRIPTS,
        *(f"strings.{language}.js" for language in LANGUAGES),
    )
)
"""What a site consists of."""


@dataclass(frozen=True, slots=True)
class Site:
    """What was written.

    Attributes:
        covers: what the site is limited to, in words; empty when it holds everything.
        states: choices in it.
        kept: how many of these an earlier export had made.
    """

    folder: str
    covers: tuple[str, ...]
    states: int
    kept: int
    files: int
    size_bytes: int


def export(
    folder: Path, hardware: tuple[str, ...] = (), all_releases: bool = False, report: Report | None = None
) -> Site:
    """Write the site. Interrupted, it goes on where it was when it is called again.

    Args:
        folder: made if it is not there; only files of an earlier export are replaced.
        hardware: GPUs by id; all by default.
        all_releases: every release instead of the newest.

    Raises:
        InputError: the folder holds something else.
        UnavailableError: it cannot be written.
        UsageError: none of the GPUs can be chosen.
    """
    told = report or (lambda done, total, what: None)
    coverage = Coverage(hardware, all_releases)
    begin = _begin(coverage)
    _source()  # of the files as they are loaded
    _prepare(folder)
    with workers() as pool:
        told(0, None, "finding the choices")
        choices = reachable(begin, coverage, pool.map)
        jobs = _jobs(folder, choices)
        kept = sum(job.keep() for job in jobs)
        _make([job for job in jobs if not job.made], pool, kept, len(choices), told)
    _exchange(folder, {job.path.name for job in jobs})
    facts = {**dump(about(begin, served=False, covers=coverage.words())), "shards": sorted(job.name for job in jobs)}
    _pages(folder, call("about", facts))
    written = [path for path in folder.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in written)
    return Site(str(folder), coverage.words(), len(choices), kept, len(written), size)


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
            (folder / _PART).mkdir(exist_ok=True)
    except OSError as error:
        raise UnavailableError(f"cannot be written: {error.strerror}", where=folder, hint=next_step(error)) from error
    if foreign:
        raise InputError(f"holds other files: {foreign[0]}", where=folder, hint="Give an empty or a new folder.")


@dataclass(frozen=True, slots=True)
class _Job:
    """One file to make.

    Attributes:
        held: all selections of the site.
        mark: the file's last line, which says what was asked: the choices, and all that an answer depends on.
    """

    folder: Path
    name: str
    choices: tuple[Choice, ...]
    held: frozenset[str]
    mark: str

    @property
    def path(self) -> Path:
        """Where it is made."""
        return self.folder / _PART / f"{self.name}.js"

    @property
    def made(self) -> bool:
        """Whether it is there, by this or an interrupted export of the same."""
        return _last_line(self.path) == self.mark

    def keep(self) -> int:
        """Take over what an earlier export made, if it is the same; returns the choices that need not be made."""
        before = self.folder / _DATA / self.path.name
        if not self.made and _last_line(before) == self.mark:
            write_text(self.path, before.read_text())
        return len(self.choices) if self.made else 0

    def make(self) -> int:
        """Write the file; returns the number of choices in it."""
        write_text(self.path, f"{shard(self.choices, self.held).script(self.name)}{self.mark}\n")
        return len(self.choices)


def _jobs(folder: Path, choices: Iterable[Choice]) -> list[_Job]:
    """The files to make, largest first."""
    grouped: dict[str, list[Choice]] = {}
    for choice in choices:
        grouped.setdefault(name_of(choice), []).append(choice)
    held = frozenset(selection(choice) for group in grouped.values() for choice in group)
    everything = sha256("\n".join([_source(), *sorted(held)]).encode())
    jobs = []
    for name, group in sorted(grouped.items(), key=lambda item: -len(item[1])):
        asked = everything.copy()
        asked.update("\n".join([repr(saved(group[0].engine, group[0].gpu.id)), *map(selection, group)]).encode())
        jobs.append(_Job(folder, name, tuple(group), held, f"// {asked.hexdigest()}"))
    return jobs


@lru_cache(maxsize=1)
def _source() -> str:
    """A digest of this package's files: a site made by other code or from other data is made again."""
    digest = sha256()
    root = Path(str(files("k3stack")))
    for path in sorted(root.rglob("*")):
        if path.is_file() and path.suffix != ".pyc":
            digest.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def _last_line(path: Path) -> str:
    """The last line of a file; empty where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 128))
            return file.read().decode(errors="replace").rstrip("\n").rpartition("\n")[2]
    except OSError:
        return ""


def _make(jobs: list[_Job], pool: Executor, done: int, total: int, told: Report) -> None:
    told(done, total, "choices")
    for job in as_completed([pool.submit(job.make) for job in jobs]):
        done += job.result()
        told(done, total, "choices")


def _exchange(folder: Path, names: set[str]) -> None:
    """Put the new files in the place of the old."""
    data, part, old = folder / _DATA, folder / _PART, folder / _OLD
    for path in part.iterdir():
        if path.name not in names:
            path.unlink()
    shutil.rmtree(old, ignore_errors=True)
    if data.exists():
        data.rename(old)
    part.rename(data)
    sync_folder(folder)
    shutil.rmtree(old, ignore_errors=True)


def _pages(folder: Path, facts: str) -> None:
    policy = f'<meta http-equiv="content-security-policy" content="{POLICY}">'
    write_text(folder / "index.html", page("index.html").replace("<!-- policy -->", policy))
    for name in ("panel.css", "icon.svg", *SCRIPTS):
        write_text(folder / name, page(name))
    for language in LANGUAGES:
        write_text(folder / f"strings.{language}.js", strings(language))
    write_text(folder / "source.js", page("exported.js"))
    write_text(folder / "about.js", facts)
