"""Argument values: text and a declared type in, a JSON value out. Strict: what is no JSON stays text."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

__all__ = ["MAX_DEPTH", "Decoded", "decode_value"]

MAX_DEPTH = 256
"""Deeper nesting counts as a bad value: Python's JSON encoder and most clients' would fail on it."""

_LONGEST_INT = 310
"""Characters of the largest integer a double can hold, with its sign."""

_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "object": (dict,),
    "array": (list,),
}


@dataclass(frozen=True, slots=True)
class Decoded:
    """A decoded value; with `bad` it is the text as it came."""

    value: Any
    bad: bool = False
    duplicate_key: bool = False


def decode_value(text: str, declared: str | None) -> Decoded:
    """Decode the text of a value by its `type` attribute. Never raises.

    Bad, and therefore left as text: no JSON, JSON of another type, NaN, infinities, numbers beyond a double,
    nesting deeper than `MAX_DEPTH`, an unknown or missing type.
    """
    if declared == "string":
        return Decoded(text)
    wanted = _PYTHON_TYPES.get(declared or "")
    if wanted is None:
        return Decoded(text, bad=True)
    pairs = _Pairs()
    try:
        value = json.loads(
            text,
            parse_constant=_refuse,
            parse_float=_finite_float,
            parse_int=_finite_int,
            object_pairs_hook=pairs.as_object,
        )
    except (ValueError, RecursionError):
        return Decoded(text, bad=True)
    is_wanted = isinstance(value, wanted) and isinstance(value, bool) == (declared == "boolean")
    if not is_wanted or _too_deep(text, value):
        return Decoded(text, bad=True)
    return Decoded(value, duplicate_key=pairs.repeated)


class _Pairs:
    """Builds objects and notices keys that come twice; the last one wins."""

    def __init__(self) -> None:
        self.repeated = False

    def as_object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        built = dict(pairs)
        self.repeated = self.repeated or len(built) < len(pairs)
        return built


def _refuse(name: str) -> Any:
    raise ValueError(name)


def _finite_float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(text)
    return number


def _finite_int(text: str) -> int:
    if len(text) > _LONGEST_INT or math.isinf(float(text)):
        raise ValueError(text)
    return int(text)


def _too_deep(text: str, value: Any) -> bool:
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return False
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [
            child
            for parent in level
            if isinstance(parent, (dict, list))
            for child in (parent.values() if isinstance(parent, dict) else parent)
        ]
        if not level:
            return False
    return True
