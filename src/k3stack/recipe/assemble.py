"""Rules into one command: each lays its settings over the earlier ones, and leaves its reason."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from k3stack.engines.reading import merged
from k3stack.engines.rules import Rule
from k3stack.recipe.deployment import Flag, Reason, Variable, reason_of

__all__ = ["Assembly", "fill"]

_PLACE = re.compile(r"\{(\w+)\}")


class Assembly:
    """A command while it is put together.

    Args:
        values: what stands for the places in rules' values; a place that is not here is filled when a node runs.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values
        self.flags: dict[str, Flag] = {}
        self.environment: dict[str, Variable] = {}

    def apply(self, rules: Iterable[Rule]) -> None:
        """Lay rules over what is there, in order."""
        for rule in rules:
            reason = reason_of(rule)
            for name, value in rule.set.items():
                self.set(name, value, reason)
            for name, text in rule.env.items():
                self.environment[name] = Variable(name, str(fill(text, self.values)), reason)
            for name in rule.unset:
                self.flags.pop(name, None)
            for name in rule.unset_env:
                self.environment.pop(name, None)

    def set(self, name: str, value: Any, reason: Reason) -> None:
        """Set one flag; an object is laid over the one that is there, anything else replaces it."""
        filled = fill(value, self.values)
        before = self.flags.get(name)
        if before is not None and isinstance(before.value, dict) and isinstance(filled, dict):
            self.flags[name] = Flag(name, merged(before.value, filled), reason, (*before.also, before.reason))
        else:
            self.flags[name] = Flag(name, filled, reason)


def fill(value: Any, values: Mapping[str, Any]) -> Any:
    """The value with its places filled; a value that is one place keeps the type of what fills it."""
    if not isinstance(value, str):
        return value
    whole = _PLACE.fullmatch(value)
    if whole and whole[1] in values:
        return values[whole[1]]
    return _PLACE.sub(lambda place: str(values.get(place[1], place[0])), value)
