"""Turning a value of the wrong JSON type into the one its schema names, where there is exactly one meaning.

Only a schema whose `type` is one plain string is followed; unions, `enum` without a type and references out of the
document are left alone. The caller validates the result as a whole and keeps the original when it is not valid.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from k3stack.guard.codec import StrictJsonError, strict_object

__all__ = ["coerced"]

_INTEGER = re.compile(r"-?(0|[1-9]\d{0,17})")
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
_WORDS = {"true": True, "True": True, "false": False, "False": False}
_MAX_DEPTH = 64


def coerced(value: Any, schema: Mapping[str, Any]) -> Any:
    """`value` with every part that has one meaning under `schema` turned into it; equal to `value` if none has.

    >>> coerced({"days": "3", "note": "3"}, {"properties": {"days": {"type": "integer"}}})
    {'days': 3, 'note': '3'}
    """
    return _coerced(value, schema, schema, _MAX_DEPTH)


def _coerced(value: Any, schema: Any, root: Mapping[str, Any], depth: int) -> Any:
    schema = _resolved(schema, root)
    if schema is None or depth == 0:
        return value
    value = _leaf(value, schema.get("type"))
    if isinstance(value, dict):
        properties = schema.get("properties")
        others = schema.get("additionalProperties")
        if not isinstance(properties, dict):
            properties = {}
        return {key: _coerced(part, properties.get(key, others), root, depth - 1) for key, part in value.items()}
    if isinstance(value, list) and isinstance(schema.get("items"), dict) and "prefixItems" not in schema:
        return [_coerced(part, schema["items"], root, depth - 1) for part in value]
    return value


def _resolved(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The schema behind a reference into the same document, or None where it cannot be followed."""
    for _ in range(8):
        if not isinstance(schema, dict):
            return None
        reference = schema.get("$ref")
        if reference is None:
            return schema
        if not isinstance(reference, str) or not reference.startswith("#/"):
            return None
        schema = root
        for part in reference[2:].split("/"):
            name = part.replace("~1", "/").replace("~0", "~")
            schema = schema.get(name) if isinstance(schema, dict) else None
    return None


def _leaf(value: Any, wanted: Any) -> Any:
    if isinstance(value, str):
        return _from_text(value, wanted)
    if wanted == "string" and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value


def _from_text(text: str, wanted: Any) -> Any:
    if wanted == "integer":
        return int(text) if _INTEGER.fullmatch(text) else text
    if wanted == "number":
        return _number(text)
    if wanted == "boolean":
        return _WORDS.get(text, text)
    if wanted == "null":
        return None if text in ("null", "None") else text
    if wanted in ("object", "array"):
        return _container(text, wanted)
    return text


def _number(text: str) -> Any:
    if _INTEGER.fullmatch(text):
        return int(text)
    if _NUMBER.fullmatch(text) and abs(float(text)) != float("inf"):
        return float(text)
    return text


def _container(text: str, wanted: str) -> Any:
    """An object or array that came as its JSON text."""
    try:
        value = strict_object('{"value":' + text + "}")
    except StrictJsonError:
        return text
    if len(value) != 1:
        return text
    inner = value["value"]
    return inner if isinstance(inner, dict if wanted == "object" else list) else text
