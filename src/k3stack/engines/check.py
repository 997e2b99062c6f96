"""Checking a finished command: does the release take every word and variable, and does it keep the engine's rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from k3stack.engines.reading import value_problem
from k3stack.engines.releases import Release
from k3stack.engines.rules import Rule, checks, holds

__all__ = ["Broken", "broken_rules", "engine_variable", "flag_problems", "has", "unknown_variables"]


@dataclass(frozen=True, slots=True)
class Broken:
    """A check that a command does not pass, and what it lacks or has."""

    rule: Rule
    what: str
    fix: str


def flag_problems(release: Release, values: Mapping[str, Any]) -> Iterator[str]:
    """What the release would not take of canonical flags and their values."""
    for name, value in values.items():
        flag = release.flags.get(name)
        if flag is None:
            yield f"{release.engine} {release.version} has no --{name}"
        elif (flag.kind == "flag") != isinstance(value, bool):
            yield f"--{name} {'takes no' if flag.kind == 'flag' else 'needs a'} value"
        elif value is False and not flag.negations:
            yield f"--{name} cannot be turned off in {release.engine} {release.version}"
        elif not isinstance(value, bool):
            for one in value if isinstance(value, list) and flag.kind != "json" else [value]:
                wrong = value_problem(flag, _text(one))
                if wrong:
                    yield wrong


def _text(value: Any) -> str:
    import json

    return json.dumps(value) if isinstance(value, dict | list) else str(value)


def engine_variable(name: str) -> bool:
    """Whether a variable with this name is the engine's own, so that it must be in the release's source."""
    return name.startswith(("VLLM_", "SGLANG_", "SGL_"))


def unknown_variables(release: Release, names: Mapping[str, str]) -> Iterator[str]:
    """Variables of the engine that this release does not read: set, they do nothing."""
    return (name for name in names if engine_variable(name) and name not in release.variables)


def broken_rules(
    engine: str, facts: Mapping[str, Any], values: Mapping[str, Any], variables: Mapping[str, str]
) -> Iterator[Broken]:
    """The checks that a command does not pass.

    Args:
        values: canonical flags of the command.
        variables: its environment; a check names one as `env:NAME`.
    """
    for rule in checks(engine, facts):
        if not all(has(key, wanted, values, variables) for key, wanted in rule.flags.items()):
            continue
        if rule.refuse:
            yield Broken(rule, ", ".join(map(_named, rule.flags)), rule.fix)
            continue
        for key, wanted in rule.needs.items():
            if not has(key, wanted, values, variables):
                yield Broken(rule, f"{_named(key)} is missing or is not what it must be", rule.fix or _ask(key, wanted))


def has(key: str, wanted: Any, values: Mapping[str, Any], variables: Mapping[str, str]) -> bool:
    """Whether a flag (or `env:NAME`, or `flag.key` inside JSON) is there with a wanted value."""
    value: Any
    if key.startswith("env:"):
        value = variables.get(key[4:])
    else:
        name, _, inner = key.partition(".")
        value = values.get(name)
        for part in inner.split(".") if inner else ():
            value = value.get(part) if isinstance(value, dict) else None
    if wanted == "unset":
        return value is None or value is False
    if wanted == "set":
        return value is not None and value is not False
    if value is None:
        return False
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    if isinstance(wanted, str) and wanted.startswith("has "):
        return wanted[4:] in str(value)
    if isinstance(value, int) and not isinstance(value, bool) and not isinstance(wanted, str | list):
        return bool(value == wanted)
    if isinstance(value, int) and isinstance(wanted, list):
        return value in wanted or str(value) in wanted
    return holds(key, wanted, {key: value})


def _named(key: str) -> str:
    return key[4:] if key.startswith("env:") else f"--{key}"


def _ask(key: str, wanted: Any) -> str:
    if wanted == "set":
        return f"Set {_named(key)}."
    return f"Set {_named(key)} to {' or '.join(map(str, wanted)) if isinstance(wanted, list) else wanted}."
