"""What changed between two releases of an engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from k3stack.engines.releases import FlagInfo, Release

__all__ = ["Change", "Difference", "difference"]


@dataclass(frozen=True, slots=True)
class Change:
    """One property of a flag that is not what it was."""

    flag: str
    what: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Difference:
    """Flags and environment variables that came, went or changed."""

    engine: str
    before: str
    after: str
    new_flags: tuple[str, ...]
    gone_flags: tuple[str, ...]
    changes: tuple[Change, ...]
    new_variables: tuple[str, ...]
    gone_variables: tuple[str, ...]


def difference(old: Release, new: Release) -> Difference:
    """What a command written for `old` must know about `new`."""
    shared = sorted(old.flags.keys() & new.flags.keys())
    return Difference(
        engine=new.engine,
        before=old.version,
        after=new.version,
        new_flags=tuple(sorted(new.flags.keys() - old.flags.keys())),
        gone_flags=tuple(sorted(old.flags.keys() - new.flags.keys())),
        changes=tuple(change for name in shared for change in _changes(old.flags[name], new.flags[name])),
        new_variables=tuple(sorted(new.variables - old.variables)),
        gone_variables=tuple(sorted(old.variables - new.variables)),
    )


def _changes(old: FlagInfo, new: FlagInfo) -> Iterator[Change]:
    for field in fields(FlagInfo):
        before, after = getattr(old, field.name), getattr(new, field.name)
        if before == after:
            continue
        if field.name == "fields":
            yield from _field_changes(new.name, before, after)
        elif isinstance(before, tuple):
            lost, gained = sorted(set(before) - set(after)), sorted(set(after) - set(before))
            yield Change(new.name, field.name, _lost(lost), _gained(gained))
        else:
            yield Change(new.name, field.name, str(before), str(after))


def _field_changes(name: str, before: dict[str, Any], after: dict[str, Any]) -> Iterator[Change]:
    lost, gained = sorted(before.keys() - after.keys()), sorted(after.keys() - before.keys())
    if lost or gained:
        yield Change(name, "JSON keys", _lost(lost), _gained(gained))
    for key in sorted(before.keys() & after.keys()):
        if before[key] != after[key]:
            lost, gained = sorted(set(before[key]) - set(after[key])), sorted(set(after[key]) - set(before[key]))
            yield Change(name, f"choices of {key}", _lost(lost), _gained(gained))


def _lost(names: list[str]) -> str:
    return "lost " + ", ".join(names) if names else ""


def _gained(names: list[str]) -> str:
    return "gained " + ", ".join(names) if names else ""
