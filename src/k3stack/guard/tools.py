"""The tools a request declares, each with a compiled JSON Schema."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jsonschema_rs

from k3stack.guard import codec

__all__ = ["Tool", "ToolSet"]

_BACKTRACK_LIMIT = 100_000
_CACHED_SETS = 256


@dataclass(frozen=True, slots=True)
class Tool:
    """One declared function.

    Args:
        name: as declared.
        schema: the parameters' JSON Schema, {} where none was given.
        validator: the compiled schema; None where the schema itself is unusable, then `unusable` says why.
        unusable: why arguments cannot be checked, or None.
    """

    name: str
    schema: Mapping[str, Any]
    validator: jsonschema_rs.Validator | None
    unusable: str | None = None

    def errors(self, arguments: Mapping[str, Any]) -> list[str]:
        """What the schema says against `arguments`, at most five lines; [] when it has nothing to say."""
        if self.validator is None or self.validator.is_valid(arguments):
            return []
        found: list[str] = []
        for error in self.validator.iter_errors(arguments):
            where = "".join(f"[{part!r}]" for part in error.instance_path) or "arguments"
            found.append(f"{where}: {error.message[:300]}")
            if len(found) == 5:
                break
        return found


class ToolSet:
    """The declared tools by name. Sets are cached by content: agents send the same tools with every turn."""

    _cache: ClassVar[OrderedDict[bytes, ToolSet]] = OrderedDict()

    def __init__(self, tools: Mapping[str, Tool]) -> None:
        self._tools = tools

    @classmethod
    def declared(cls, declarations: list[Any]) -> ToolSet:
        """The set for a request's `tools` list. Entries that are not functions are left out."""
        key = codec.dumps(declarations)
        known = cls._cache.get(key)
        if known is None:
            known = cls({tool.name: tool for tool in map(_tool, declarations) if tool is not None})
            cls._cache[key] = known
            if len(cls._cache) > _CACHED_SETS:
                cls._cache.popitem(last=False)
        else:
            cls._cache.move_to_end(key)
        return known

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    def __len__(self) -> int:
        return len(self._tools)

    def get(self, name: str) -> Tool | None:
        """The tool of this name, or None."""
        return self._tools.get(name)

    @property
    def names(self) -> tuple[str, ...]:
        """The declared names, in order."""
        return tuple(self._tools)


def _tool(declaration: Any) -> Tool | None:
    function = declaration.get("function") if isinstance(declaration, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(function, dict) or not isinstance(name, str):
        return None
    schema = function.get("parameters")
    if schema is None:
        schema = {}
    if not isinstance(schema, dict):
        return Tool(name, {}, None, "the schema is not an object")
    try:
        return Tool(name, schema, _compile(schema))
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        return Tool(name, schema, None, str(error).splitlines()[0][:200])


def _compile(schema: dict[str, Any]) -> jsonschema_rs.Validator:
    """Compile without ever fetching a reference, with regexes that cannot run away where the pattern allows it."""
    try:
        return jsonschema_rs.validator_for(schema, offline=True, pattern_options=jsonschema_rs.RegexOptions())
    except ValueError:
        options = jsonschema_rs.FancyRegexOptions(backtrack_limit=_BACKTRACK_LIMIT)
        return jsonschema_rs.validator_for(schema, offline=True, pattern_options=options)
