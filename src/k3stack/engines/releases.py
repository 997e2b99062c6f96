"""Releases: every flag and environment variable that a release of an engine knows, as its own parser told them.

Snapshots ship in data/snapshots, one file per engine: the first release whole, the later ones as what changed. They
are made by `probe.py` in the engine's own Python and packed by `pack`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files
from typing import Any

from packaging.version import Version

from k3stack.errors import NotKnownError

__all__ = ["FlagInfo", "Release", "engines", "latest", "pack", "release", "versions"]


@dataclass(frozen=True, slots=True)
class FlagInfo:
    """One flag of one release.

    Attributes:
        name: the canonical long name without dashes: the one that equals the engine's own field.
        kind: flag (takes no value), int, size (int that may end in k, M, ...), float, str or json.
        aliases: other spellings, with dashes.
        negations: spellings that turn it off, with dashes.
        choices: the only values it takes; empty where any value of the kind is taken.
        known: values that the engine names where others may be given too.
        count: argparse's nargs: "+" or "*" for several values, "?" for an optional one.
        fields: for JSON: the keys it may have, each with its choices.
        repeats: given more than once, it collects.
        deprecated: the engine's words, empty if it is not.
    """

    name: str
    kind: str
    aliases: tuple[str, ...] = ()
    negations: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    known: tuple[str, ...] = ()
    count: int | str | None = None
    default: bool | int | float | str | None = None
    fields: dict[str, list[str]] = field(default_factory=dict)
    repeats: bool = False
    deprecated: str = ""


@dataclass(frozen=True, slots=True)
class Release:
    """One release of an engine.

    Attributes:
        abbreviations: whether its parser takes a unique beginning of a flag for the flag.
        variables: environment variables that its source reads.
    """

    engine: str
    version: str
    abbreviations: bool
    flags: dict[str, FlagInfo]
    variables: frozenset[str]
    spellings: dict[str, tuple[FlagInfo, bool]]

    def flag(self, name: str) -> FlagInfo | None:
        """The flag with this name or alias, with or without dashes; None if this release has none."""
        found = self.spellings.get(name if name.startswith("-") else f"--{name}")
        return None if found is None else found[0]


def engines() -> tuple[str, ...]:
    """Engines and routers there are snapshots of."""
    folder = files("k3stack.engines").joinpath("data/snapshots")
    return tuple(sorted(file.name.removesuffix(".json") for file in folder.iterdir()))


def versions(engine: str) -> tuple[str, ...]:
    """Releases of an engine there are snapshots of, oldest first.

    Raises:
        NotKnownError: no such engine.
    """
    return tuple(_file(engine))


def latest(engine: str) -> str:
    """The newest release there is a snapshot of."""
    return versions(engine)[-1]


@lru_cache(maxsize=32)
def release(engine: str, version: str) -> Release:
    """One release.

    Raises:
        NotKnownError: no snapshot of it; lists those there are.
    """
    known = _file(engine)
    if version not in known:
        raise NotKnownError(
            f"there is no snapshot of {engine} {version}",
            where="--engine-version",
            hint=f"Known: {', '.join(known)}. `k3 engines snapshot` makes one of an installed engine.",
        )
    return from_data(known[version])


def from_data(data: dict[str, Any]) -> Release:
    """A release from what the probe printed."""
    flags = {name: _flag(name, about) for name, about in data["flags"].items()}
    spellings: dict[str, tuple[FlagInfo, bool]] = {}
    for flag in flags.values():
        for word in flag.negations:
            spellings[word] = (flag, False)
        for word in (*flag.aliases, f"--{flag.name}"):
            spellings[word] = (flag, True)
    return Release(
        data["engine"], data["version"], data["abbreviations"], flags, frozenset(data["variables"]), spellings
    )


def _flag(name: str, about: dict[str, Any]) -> FlagInfo:
    lists: dict[str, Any] = {key: tuple(about.get(key, ())) for key in ("aliases", "negations", "choices", "known")}
    rest = {key: value for key, value in about.items() if key not in lists}
    return FlagInfo(name=name, **lists, **rest)


@lru_cache(maxsize=8)
def _file(engine: str) -> dict[str, dict[str, Any]]:
    file = files("k3stack.engines").joinpath(f"data/snapshots/{engine}.json")
    if not file.is_file():
        raise NotKnownError(
            f"there are no snapshots of {engine!r}", where="--engine", hint=f"Known: {', '.join(engines())}."
        )
    return _unpack(json.loads(file.read_text()))


def pack(snapshots: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Snapshots of one engine as one value: what they share is written once."""
    ordered = sorted(snapshots, key=lambda one: Version(one["version"]))
    before: dict[str, Any] = {"flags": {}, "variables": []}
    steps = []
    for now in ordered:
        changed = {name: flag for name, flag in now["flags"].items() if before["flags"].get(name) != flag}
        steps.append(
            {
                "version": now["version"],
                "abbreviations": now["abbreviations"],
                "flags": changed,
                "gone": sorted(before["flags"].keys() - now["flags"].keys()),
                "variables": sorted(set(now["variables"]) - set(before["variables"])),
                "variables_gone": sorted(set(before["variables"]) - set(now["variables"])),
            }
        )
        before = now
    return {"engine": ordered[0]["engine"], "releases": steps}


def _unpack(data: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    flags: dict[str, Any] = {}
    variables: set[str] = set()
    for step in data["releases"]:
        flags = {name: flag for name, flag in {**flags, **step["flags"]}.items() if name not in step["gone"]}
        variables = (variables | set(step["variables"])) - set(step["variables_gone"])
        found[step["version"]] = {
            "engine": data["engine"],
            "version": step["version"],
            "abbreviations": step["abbreviations"],
            "flags": flags,
            "variables": sorted(variables),
        }
    return found
