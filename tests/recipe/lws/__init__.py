"""The official schema of LeaderWorkerSet, as an API server with strict field validation reads it."""

from __future__ import annotations

import gzip
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import jsonschema_rs

__all__ = ["problems"]

_FILE = Path(__file__).with_name("leaderworkersets.json.gz")


def problems(document: dict[str, Any]) -> list[str]:
    """What the schema holds against a LeaderWorkerSet: places and reasons."""
    found = _validator().iter_errors(document)
    return [f"{'/'.join(map(str, error.instance_path))}: {error.message}" for error in found]


@lru_cache(maxsize=1)
def _validator() -> jsonschema_rs.Draft202012Validator:
    definition = json.loads(gzip.decompress(_FILE.read_bytes()))
    [version] = [one for one in definition["spec"]["versions"] if one["name"] == "v1" and one["served"]]
    return jsonschema_rs.Draft202012Validator(_closed(version["schema"]["openAPIV3Schema"], top=True))


def _closed(schema: Any, top: bool = False) -> Any:
    """The same schema, in which an object may hold only what is named: unknown fields are refused, not dropped."""
    if isinstance(schema, list):
        return [_closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: _closed(value) for name, value in schema.items()}
    named = "properties" in made and made.get("type") == "object" and "additionalProperties" not in made
    if named and not made.get("x-kubernetes-preserve-unknown-fields"):
        made["additionalProperties"] = False
    if top:
        made["required"] = ["apiVersion", "kind", "metadata", "spec"]
    return made
