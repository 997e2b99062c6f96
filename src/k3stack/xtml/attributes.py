"""Attributes of an opening marker: `tool="get_weather" index="1"`."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Attributes", "escape_attribute", "parse_attributes"]

# Possessive quantifiers keep this linear on any text: every character is given up at most once.
_ATTRIBUTE = re.compile(
    r"""(?P<space>\s++)"""
    r"""|(?P<name>[^\s="']++)(?P<equals>\s*+=\s*+)(?:"(?P<double>[^"]*+)"|'(?P<single>[^']*+)')"""
    r"""|(?P<junk>[^\s="']++|.)""",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Attributes:
    """The attributes by name, and whether every one was written as the grammar wants it."""

    values: dict[str, str]
    clean: bool


def parse_attributes(text: str) -> Attributes:
    """Read the attribute text of a marker. Single quotes count as double ones, what is no attribute is skipped.

    A name given twice keeps its first value.
    """
    values: dict[str, str] = {}
    clean = True
    for match in _ATTRIBUTE.finditer(text):
        if match["space"]:
            continue
        name = match["name"]
        if name is None:
            clean = False
            continue
        value = match["double"]
        if value is None or match["equals"] != "=" or name in values:
            clean = False
        values.setdefault(name, _unescape(match["single"] if value is None else value))
    return Attributes(values, clean)


def escape_attribute(value: str) -> str:
    """The value as it is written between double quotes."""
    return value.replace("&", "&amp;").replace('"', "&quot;")


def _unescape(text: str) -> str:
    return text.replace("&quot;", '"').replace("&amp;", "&")
