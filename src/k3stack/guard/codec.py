"""JSON in and out: fast where the bytes are ordinary, and strict where a client will act on the value."""

from __future__ import annotations

import json
import math
from typing import Any

import orjson

from k3stack.guard.policy import Problem

__all__ = ["StrictJsonError", "dumps", "loads", "strict_object"]

MAX_DEPTH = 200
"""Deeper JSON than this is refused: parsers in other languages refuse it too."""


class StrictJsonError(ValueError):
    """Arguments that are not one strict JSON object; `problem` says why."""

    def __init__(self, problem: Problem, detail: str) -> None:
        super().__init__(detail)
        self.problem = problem


def loads(data: bytes | str) -> Any:
    """The JSON value of bytes from the wire.

    Raises:
        ValueError: not JSON.
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        # orjson refuses lone surrogates, which other encoders write as escapes; Python's own reader takes them.
        try:
            return json.loads(data)
        except RecursionError:
            raise ValueError("JSON nested too deeply") from None


def dumps(value: Any) -> bytes:
    """Compact JSON bytes."""
    try:
        return orjson.dumps(value)
    except TypeError:  # lone surrogates and integers past 64 bits
        return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def strict_object(text: str) -> dict[str, Any]:
    """The object that `text` means in every JSON reader, or an error.

    Refused: anything but an object, NaN, Infinity, numbers that overflow a double, a key given twice, lone
    surrogates, nesting deeper than `MAX_DEPTH`.

    Raises:
        StrictJsonError: with the problem code.
    """
    try:
        value = json.loads(
            text, object_pairs_hook=_unique, parse_constant=_refuse_constant, parse_float=_finite, parse_int=_whole
        )
    except StrictJsonError:
        raise
    except (ValueError, RecursionError) as error:
        raise StrictJsonError(Problem.NOT_JSON, str(error)) from None
    if not isinstance(value, dict):
        raise StrictJsonError(Problem.NOT_AN_OBJECT, f"arguments are {type(value).__name__}, not an object")
    try:
        text.encode()
        # A surrogate may also be written as an escape, which only shows in the decoded value.
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise StrictJsonError(Problem.NOT_JSON, "a lone surrogate") from None
    if text.count("{") + text.count("[") > MAX_DEPTH and _depth(value) > MAX_DEPTH:
        raise StrictJsonError(Problem.NOT_JSON, "nested too deeply")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise StrictJsonError(Problem.DUPLICATE_KEY, f"the key {twice!r} is given twice")
    return value


def _refuse_constant(name: str) -> Any:
    raise StrictJsonError(Problem.NOT_JSON, f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise StrictJsonError(Problem.NOT_JSON, f"the number {text[:40]} overflows a double")
    return value


def _whole(text: str) -> int:
    # 309 digits overflow a double, and Python limits digits only much later.
    if len(text) > 308:
        _finite(text)
    return int(text)


def _depth(value: Any) -> int:
    deepest, level = 0, [value]
    while level:
        deepest += 1
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                below.extend(item.values())
            elif isinstance(item, list):
                below.extend(item)
        level = below
    return deepest
