"""JSON as every language reads it, and JSON Schema."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs

__all__ = ["call_fault", "schema_fault", "strict_json"]


def strict_json(text: str) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: no JSON, or JSON that readers disagree about: NaN, Infinity, a key given twice.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in pairs]
        for key in keys:
            if keys.count(key) > 1:
                raise ValueError(f"the key {key!r} is given twice")
        return dict(pairs)

    def refuse(word: str) -> Any:
        raise ValueError(f"{word} is no JSON")

    try:
        return json.loads(text, object_pairs_hook=unique, parse_constant=refuse)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def schema_fault(value: Any, schema: dict[str, Any]) -> str:
    """What JSON Schema 2020-12 says against a value, or nothing."""
    error = next(iter(jsonschema_rs.Draft202012Validator(schema).iter_errors(value)), None)
    return "" if error is None else str(error).splitlines()[0]


def call_fault(name: str, arguments: str, tools: list[dict[str, Any]]) -> str:
    """What is wrong with a call to one of these tools, or nothing: undeclared, no JSON, or against the schema."""
    declared = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
    if name not in declared:
        return f"it calls {name!r}, which is not declared"
    try:
        value = strict_json(arguments)
    except ValueError as error:
        return f"the arguments of {name} are no JSON: {error}"
    fault = schema_fault(value, declared[name])
    return f"the arguments of {name} break its schema: {fault}" if fault else ""
