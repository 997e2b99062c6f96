"""The tools that requests declare, and requests whose right calls are known."""

from __future__ import annotations

import json
from dataclasses import dataclass
from random import Random
from typing import Any

__all__ = [
    "STRICT_SCHEMAS",
    "SWITCH",
    "TOOLS",
    "WEATHER",
    "Case",
    "cases",
    "has_free_text",
    "order",
    "submit_tool",
    "tool",
]


def tool(name: str, description: str, properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    """One tool as OpenAI's API declares it. Every field is given: engines render an absent one differently."""
    parameters = {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


_TEXT = {"type": "string"}
_COUNT = {"type": "integer", "minimum": 1}

WEATHER = tool("get_weather", "Weather of a city now", {"city": {"type": "string", "description": "City"}}, ["city"])
BOOK = tool(
    "book_table",
    "Book a table in a restaurant",
    {"restaurant": _TEXT, "people": _COUNT, "outside": {"type": "boolean"}},
    ["restaurant", "people"],
)
CONVERT = tool(
    "convert_money",
    "Convert an amount between currencies, which are three letters",
    {"amount": {"type": "number"}, "source": _TEXT, "target": _TEXT},
    ["amount", "source", "target"],
)
REMIND = tool(
    "set_reminder",
    "Set a reminder",
    {"text": _TEXT, "minutes": _COUNT, "priority": {"type": "string", "enum": ["low", "normal", "high"]}},
    ["text", "minutes"],
)
NOTE = tool("save_note", "Save a note", {"title": _TEXT, "text": _TEXT}, ["title", "text"])
PROFILE = tool(
    "save_profile",
    "Save a customer's profile",
    {
        "name": _TEXT,
        "address": {
            "type": "object",
            "properties": {"street": _TEXT, "zip": _TEXT, "geo": {"type": "array", "items": {"type": "number"}}},
            "required": ["street", "zip"],
        },
        "tags": {"type": "array", "items": _TEXT},
        "orders": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"sku": _TEXT, "count": {"type": "integer"}, "gift": {"type": "boolean"}},
                "required": ["sku", "count"],
            },
        },
        "note": {"type": ["string", "null"]},
        "number": {"type": "integer", "description": "The customer's number"},
    },
    ["name", "address", "orders"],
)
# Short and without free text: under a grammar, random weights fill a text until max_tokens.
SWITCH = tool("set", "Set a switch", {"on": {"type": "boolean"}}, ["on"])
TOOLS = [WEATHER, BOOK, CONVERT, REMIND, NOTE, PROFILE]


def has_free_text(schema: Any) -> bool:
    """Whether a schema leaves some text to the model."""
    if isinstance(schema, list):
        return any(map(has_free_text, schema))
    if not isinstance(schema, dict):
        return False
    return (schema.get("type") == "string" and "enum" not in schema) or any(map(has_free_text, schema.values()))


@dataclass(frozen=True, slots=True)
class Case:
    """A request in plain words; `tool` is the one it needs, empty where it needs none."""

    prompt: str
    tool: str


def cases(dice: Random, count: int) -> list[Case]:
    """Requests that clearly need one tool, and every fourth one that clearly needs none."""
    cities = ["Paris", "Tokyo", "Nairobi", "Lima", "Oslo", "Hanoi"]
    found = []
    for number in range(count):
        n = dice.randrange(2, 60)
        found.append(
            (
                Case(f"What is the weather in {dice.choice(cities)} right now?", "get_weather"),
                Case(f"Book a table for {n} people at restaurant Luna, please.", "book_table"),
                Case(f"Convert {n * 10} EUR to JPY.", "convert_money"),
                Case(f"What is {n} plus {n + 1}? Answer from your own head, without any tool.", ""),
                Case(f"Remind me to water the plants in {n} minutes, priority high.", "set_reminder"),
                Case(f"Save a note titled Tickets with the text: bring {n} tickets.", "save_note"),
                Case(f"What is the weather in {dice.choice(cities)} right now?", "get_weather"),
                Case(f"Say the word hello {dice.randrange(2, 5)} times. No tool is needed.", ""),
            )[number % 8]
        )
    return found


def order(calls: list[tuple[str, dict[str, Any]]]) -> str:
    """Asks for exactly these calls in one turn."""
    lines = [f"{name} {json.dumps(arguments, ensure_ascii=False)}" for name, arguments in calls]
    head = "Make exactly these tool calls, all in one turn, in this order, with exactly these arguments:"
    return "\n".join([head, *lines])


def submit_tool(schema: dict[str, Any]) -> dict[str, Any]:
    """A strict tool with one argument of a schema, as Moonshot's Kimi-Vendor-Verifier wraps the ones it tries."""
    made = tool("submit", "Submit one value", {"value": schema}, ["value"])
    made["function"]["strict"] = True
    return made


# Each tries another part of JSON Schema that Moonshot's schema subset allows.
STRICT_SCHEMAS: dict[str, dict[str, Any]] = {
    "string": {"type": "string"},
    "integer range": {"type": "integer", "minimum": 3, "maximum": 9},
    "number": {"type": "number"},
    "boolean": {"type": "boolean"},
    "enum": {"type": "string", "enum": ["red", "green", "blue"]},
    "array of integers": {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 4},
    "object": {
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
    "nested object": {
        "type": "object",
        "properties": {
            "inner": {
                "type": "object",
                "properties": {"on": {"type": "boolean"}, "mode": {"type": "string", "enum": ["x", "y"]}},
                "required": ["on", "mode"],
                "additionalProperties": False,
            }
        },
        "required": ["inner"],
        "additionalProperties": False,
    },
    "array of objects": {
        "type": "array",
        "minItems": 1,
        "maxItems": 2,
        "items": {
            "type": "object",
            "properties": {"k": {"type": "integer"}},
            "required": ["k"],
            "additionalProperties": False,
        },
    },
    "anyOf": {"anyOf": [{"type": "integer"}, {"type": "boolean"}]},
    "optional property": {
        "type": "object",
        "properties": {"must": {"type": "integer"}, "may": {"type": "integer"}},
        "required": ["must"],
        "additionalProperties": False,
    },
    "integer enum": {"type": "integer", "enum": [1, 2, 3]},
}
