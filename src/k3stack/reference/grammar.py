"""Constrained decoding: what an answer must look like, as a grammar over tokens.

K3's markers are single control tokens; text between them is ordinary. So a grammar must tell the token `<|close|>`
from text that spells it. llguidance does: in its grammars a special token matches that token alone. (xgrammar ships a
tag for K3 but matches markers as strings: a byte-level vocabulary may spell one, which no parser by ids takes for a
marker. It also imports transformers.)

    answer     := [THINK <|close|>think<|sep|> <|open|>response<|sep|>] CONTENT <|close|>response<|sep|>
                  [<|open|>tools<|sep|> CALL+ <|close|>tools<|sep|>] <|close|>message<|sep|>

See `k3stack.xtml.wire` for the rest. THINK is any text. CONTENT is any text, or JSON of a schema. A CALL's name and
arguments are those of a declared tool, in the order of its schema; a value of type string is raw text, every other is
compact JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from k3stack.xtml.attributes import escape_attribute

__all__ = ["answer_grammar"]

_MOST_CALLS = 8
"""Calls in one forced answer: each has its own number, so each is a rule of its own."""

_TEXT = r"TEXT: /(?s:.+)/"
_SAYS_NOTHING = frozenset({"type", "description", "title", "default", "examples", "deprecated"})
_OBJECT = _SAYS_NOTHING | {"properties", "required", "additionalProperties", "$schema"}
_STRING = _SAYS_NOTHING | {"enum", "const", "minLength", "maxLength"}
_KINDS = {
    "string": "string",
    "number": "number",
    "integer": "number",
    "boolean": "boolean",
    "null": "null",
    "object": "object",
    "array": "array",
}
"""JSON Schema's types and what XTML calls them."""


def answer_grammar(
    *,
    thinking: bool,
    tools: Sequence[Mapping[str, Any]] = (),
    calls: Literal["never", "may", "must"] = "never",
    parallel: bool = True,
    content: Mapping[str, Any] | None = None,
) -> str:
    """The grammar of an answer, in llguidance's form of Lark.

    Args:
        thinking: the prompt left the think channel open, so the answer goes on there.
        tools: the OpenAI tool objects that may be called.
        calls: whether calls come. Behind a call the response is empty, as in most of K3's own answers that call.
        parallel: more than one call may come.
        content: the JSON schema of the response; None for any text.
    """
    thought = f"TEXT? {_close('think')} {_open('response')}" if thinking else ""
    said = f"{'TEXT?' if content is None else _json(content)} {_close('response')}"
    called = f"{_close('response')} {_open('tools')} calls_1 {_close('tools')}"
    answer = {"never": said, "may": f"({said} | {called})", "must": called}[calls]
    rules = [f"start: {thought} {answer} {_close('message')}", _TEXT]
    if calls != "never":
        rules += _calls(tools, _MOST_CALLS if parallel else 1)
    return "\n".join(rules)


def _calls(tools: Sequence[Mapping[str, Any]], most: int) -> list[str]:
    rules = []
    for index in range(1, most + 1):
        each = " | ".join(_call(tool, number, index) for number, tool in enumerate(tools))
        more = f" calls_{index + 1}?" if index < most else ""
        rules.append(f"calls_{index}: ({each}){more}")
    for number, tool in enumerate(tools):
        rules.append(f"arguments_{number}: {_arguments(tool['function'].get('parameters') or {})}")
    return rules


def _call(tool: Mapping[str, Any], number: int, index: int) -> str:
    name = escape_attribute(tool["function"]["name"])
    return f"{_open('call', tool=name, index=index)} arguments_{number} {_close('call')}"


def _arguments(schema: Mapping[str, Any]) -> str:
    """Each property in order, those not required optional; as one JSON block where a schema says more than that."""
    properties = schema.get("properties")
    if properties is None or not set(schema) <= _OBJECT or not all(map(_is_plain, properties.values())):
        return f"{_open('json', type='object')} {_json({'type': 'object', **schema})} {_close('json')}"
    required = schema.get("required") or ()
    parts = []
    for key, kind in properties.items():
        parts.append(_argument(key, kind) if key in required else f"({_argument(key, kind)})?")
    return " ".join(parts) or '""'


def _is_plain(schema: Any) -> bool:
    """Whether a property's schema names its types, and all that it says of a string can be said of raw text."""
    if not isinstance(schema, Mapping):
        return False
    kinds = _kinds(schema)
    if not kinds or not all(kind in _KINDS for kind in kinds) or "$ref" in json.dumps(schema):
        return False
    if "string" in kinds:
        return set(schema) <= _STRING and (len(kinds) == 1 or not set(schema) & {"enum", "const"})
    return True


def _kinds(schema: Mapping[str, Any]) -> list[str]:
    kind = schema.get("type")
    if isinstance(kind, str):
        return [kind]
    return [str(each) for each in kind] if isinstance(kind, list) else []


def _argument(key: str, schema: Mapping[str, Any]) -> str:
    each = []
    for kind in _kinds(schema):
        opening = _open("argument", key=escape_attribute(key), type=_KINDS[kind])
        each.append(f"{opening} {_value(kind, schema)} {_close('argument')}")
    return each[0] if len(each) == 1 else f"({' | '.join(each)})"


def _value(kind: str, schema: Mapping[str, Any]) -> str:
    if kind != "string":
        return _json({**schema, "type": kind})
    choices = [schema["const"]] if "const" in schema else schema.get("enum")
    if choices is not None:
        return f"({' | '.join(_literal(str(choice)) for choice in choices if isinstance(choice, str))})"
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    if not least and most is None:
        return "TEXT?"
    return f"/(?s:.{{{least},{'' if most is None else most}}})/"


def _open(tag: str, **attributes: object) -> str:
    text = tag + "".join(f' {name}="{value}"' for name, value in attributes.items())
    return f"<|open|> {_literal(text)} <|sep|>"


def _close(tag: str) -> str:
    return f"<|close|> {_literal(tag)} <|sep|>"


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _json(schema: Mapping[str, Any]) -> str:
    return f"%json {json.dumps({**schema, 'x-guidance': {'whitespace_flexible': False}}, ensure_ascii=False)}"
