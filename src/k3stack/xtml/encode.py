"""Conversations as segments of text and control tokens, in the order of Moonshot's encoder.

    tool declaration, thinking effort, messages, tool choice, response format, generation prompt

The order decides what a change costs: everything behind the first changed byte is computed again, so a changed
tool or effort voids the whole prefix, a changed tool choice or response format nothing before it.

What the words and the order must be is defined by `encoding_k3.py` of the checkpoint moonshotai/Kimi-K3.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from k3stack.errors import InputError
from k3stack.xtml.attributes import escape_attribute
from k3stack.xtml.toolturns import in_call_order
from k3stack.xtml.wire import CLOSE, END, OPEN, SEP

__all__ = ["IMAGE_PLACEHOLDER", "Effort", "Segment", "encode", "segments_text", "tokenize"]

Effort = Literal["low", "high", "max"]

EFFORTS = ("low", "high", "max")

IMAGE_PLACEHOLDER = "<|kimi_image_placeholder|>"

_IMAGE_PARTS = frozenset({"image", "image_url", "input_image"})
_TEXT_PARTS = frozenset({"text", "input_text", "output_text"})

_TOOLS = "# Tools\nHere are the available tools, described in JSONSchema.\n\n```json\n{tools}\n```"
_MORE_TOOLS = (
    "## New Tools Available\nThe system dynamically extends the toolset via lazy-loading.\n"
    "You have access to all existing and extended tools.\nHere are the specs for the extended tools.\n\n"
    "```json\n{tools}\n```"
)
_EFFORT = (
    "`thinking_effort` guides on how much to think in your thinking channel (not including the response channel), "
    "supported values include `low`, `medium`, `high`, and `max`.\n"
    "Now the system is invoked with `thinking_effort={effort}`."
)
_CHOICES = {
    "required": "The system is invoked with `tool_choice=required`.\nYou MUST call tools in the next message.",
    "none": "The system is invoked with `tool_choice=none`.\nYou MUST NOT call any tools in the next message.",
}
_RAW_JSON = (
    "Your response must be raw JSON data without markdown code blocks (```json) or any additional formatting."
)
_JSON_OBJECT = f"The system is invoked with `response_format=json_object`.\n{_RAW_JSON}"
_JSON_SCHEMA = (
    f"The system is invoked with `response_format=json_schema`.\n{_RAW_JSON}\n"
    "The JSON data must match the following schema:\n```json\n"
)


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of a prompt that is tokenised on its own.

    Attributes:
        text: the text, never empty.
        special: False: ordinary text, to be tokenised with special tokens disallowed, whatever it spells. True:
            one control token, or `IMAGE_PLACEHOLDER` where the caller puts the tokens of the next image.
    """

    text: str
    special: bool = False


def encode(
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] = (),
    tool_choice: object = None,
    response_format: Mapping[str, Any] | None = None,
    reasoning_effort: Effort | None = "max",
    thinking: bool = True,
    add_generation_prompt: bool = True,
) -> list[Segment]:
    """Render a conversation of OpenAI chat messages as a prompt.

    Args:
        messages: roles system, developer (rendered as system: Moonshot's encoder drops it silently), user,
            assistant and tool. An assistant's reasoning is `reasoning_content` or `reasoning`. A system message
            with `tools` declares more tools. Tool results are put into the order of the calls they answer.
        tools: OpenAI tool objects, rendered with sorted keys.
        tool_choice: None, "auto", "none" or "required".
        response_format: OpenAI's, of type text, json_object or json_schema.
        reasoning_effort: Moonshot's default is max. None leaves the message out.
        thinking: False: no think channels, and the generation prompt opens the response.
        add_generation_prompt: end with the opening of the assistant's next message.

    Raises:
        InputError: a message, a part or an option that the grammar has no place for; names its position.
    """
    prompt = _Prompt(thinking)
    if tools:
        prompt.system("tool-declare", _TOOLS.format(tools=_sorted_json(tools)))
    if thinking and reasoning_effort is not None:
        if reasoning_effort not in EFFORTS:
            known = f"Give one of {', '.join(EFFORTS)}"
            raise InputError(f"no effort {reasoning_effort!r}", where="reasoning_effort", hint=known)
        prompt.system("thinking-effort", _EFFORT.format(effort=reasoning_effort))
    _add_messages(prompt, messages)
    _add_tool_choice(prompt, tool_choice)
    _add_response_format(prompt, response_format)
    if add_generation_prompt:
        prompt.open("message", role="assistant")
        prompt.open("think" if thinking else "response")
    return prompt.segments


def segments_text(segments: Iterable[Segment]) -> str:
    """The prompt as one text, for people and for prefix comparison; not safe to tokenise."""
    return "".join(segment.text for segment in segments)


def tokenize(
    segments: Iterable[Segment], encode_ordinary: Callable[[str], Sequence[int]], specials: Mapping[str, int]
) -> Iterator[int]:
    """The token ids of a prompt.

    Args:
        segments: the prompt.
        encode_ordinary: ids of ordinary text (tiktoken's `encode_ordinary`); called once per segment, because
            tokens never reach over a segment's end.
        specials: the id of each special segment's text; images need an entry for `IMAGE_PLACEHOLDER`.
    """
    for segment in segments:
        if segment.special:
            yield specials[segment.text]
        else:
            yield from encode_ordinary(segment.text)


class _Prompt:
    """The segments so far."""

    def __init__(self, thinking: bool) -> None:
        self.thinking = thinking
        self.segments: list[Segment] = []

    def special(self, token: str) -> None:
        self.segments.append(Segment(token, special=True))

    def text(self, text: str) -> None:
        if text:
            self.segments.append(Segment(text))

    def open(self, tag: str, **attributes: object) -> None:
        # Name, quotes and value are segments of their own in Moonshot's encoder, which decides the token count.
        self.special(OPEN)
        self.text(tag)
        for name, value in attributes.items():
            self.text(f" {name}")
            self.text('="')
            self.text(escape_attribute(str(value)))
            self.text('"')
        self.special(SEP)

    def close(self, tag: str) -> None:
        self.special(CLOSE)
        self.text(tag)
        self.special(SEP)

    def end_message(self) -> None:
        self.close("message")
        self.special(END)

    def system(self, kind: str, body: str) -> None:
        self.open("message", role="system", type=kind)
        self.text(body.strip())
        self.end_message()


def _add_messages(prompt: _Prompt, messages: Sequence[Mapping[str, Any]]) -> None:
    for where, message in in_call_order(messages):
        match message.get("role"):
            case "system" | "developer" if message.get("tools"):
                if message.get("content"):
                    hint = "Declare more tools in a system message of their own"
                    raise InputError("content beside tools has no place", where=f"{where}.content", hint=hint)
                prompt.system("tool-declare", _MORE_TOOLS.format(tools=_sorted_json(message["tools"])))
            case "system" | "developer":
                _add_plain(prompt, "system", message, where)
            case "user":
                _add_plain(prompt, "user", message, where)
            case "assistant":
                prompt.open("message", **_named("assistant", message))
                _add_assistant(prompt, message, where)
                prompt.end_message()
            case "tool":
                prompt.open("message", role="tool", tool=message["tool"], index=message["index"])
                _add_content(prompt, message.get("content"), where)
                prompt.end_message()
            case role:
                known = "Use system, developer, user, assistant or tool"
                raise InputError(f"no role {role!r}", where=f"{where}.role", hint=known)


def _add_plain(prompt: _Prompt, role: str, message: Mapping[str, Any], where: str) -> None:
    prompt.open("message", **_named(role, message))
    _add_content(prompt, message.get("content"), where)
    prompt.end_message()


def _named(role: str, message: Mapping[str, Any]) -> dict[str, object]:
    name = message.get("name")
    return {"role": role, "name": name} if name else {"role": role}


def _add_content(prompt: _Prompt, content: object, where: str) -> None:
    if content is None:
        return
    if isinstance(content, str):
        prompt.text(content)
        return
    if not isinstance(content, Sequence):
        raise InputError("content is neither text nor a list of parts", where=f"{where}.content")
    for number, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind in _IMAGE_PARTS:
            prompt.special(IMAGE_PLACEHOLDER)
        elif kind in _TEXT_PARTS and isinstance(part.get("text"), str):
            prompt.text(part["text"])
        else:
            hint = "Kimi-K3 reads parts of type text and image_url"
            raise InputError(f"no part of type {kind!r}", where=f"{where}.content[{number}]", hint=hint)


def _add_assistant(prompt: _Prompt, message: Mapping[str, Any], where: str) -> None:
    if prompt.thinking:
        # The channel is always there: without it the model sees a turn that it would never write.
        prompt.open("think")
        reasoning = message.get("reasoning_content") or message.get("reasoning") or ""
        if str(reasoning).strip():
            prompt.text(str(reasoning))
        prompt.close("think")
    prompt.open("response")
    _add_content(prompt, message.get("content"), where)
    prompt.close("response")
    calls = message.get("tool_calls")
    if calls:
        prompt.open("tools")
        for number, call in enumerate(calls):
            _add_call(prompt, call, number, f"{where}.tool_calls[{number}]")
        prompt.close("tools")


def _add_call(prompt: _Prompt, call: Mapping[str, Any], number: int, where: str) -> None:
    function = call.get("function", call)
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str) or not name:
        raise InputError("a call without a name", where=f"{where}.function.name")
    prompt.open("call", tool=name, index=number + 1)
    arguments = _arguments(function.get("arguments"), where)
    if isinstance(arguments, str):
        prompt.open("json", type="object")
        prompt.text(arguments)
        prompt.close("json")
    else:
        for key, value in arguments.items():
            prompt.open("argument", key=key, type=_type_of(value))
            prompt.text(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
            prompt.close("argument")
    prompt.close("call")


def _arguments(arguments: object, where: str) -> Mapping[str, Any] | str:
    """The arguments of a call in the history; as text if they are no JSON."""
    if arguments is None:
        return {}
    if isinstance(arguments, str):
        if not arguments.strip():
            return {}
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return str(arguments)
    if not isinstance(arguments, Mapping):
        raise InputError("arguments are no JSON object", where=f"{where}.function.arguments")
    return arguments


def _type_of(value: object) -> str:
    match value:
        case bool():
            return "boolean"
        case None:
            return "null"
        case int() | float():
            return "number"
        case str():
            return "string"
        case Mapping():
            return "object"
        case _:
            return "array"


def _add_tool_choice(prompt: _Prompt, tool_choice: object) -> None:
    if tool_choice in (None, "auto"):
        return
    if not isinstance(tool_choice, str) or tool_choice not in _CHOICES:
        hint = "Kimi-K3 knows auto, none and required; the engines force a named tool by a grammar"
        raise InputError(f"no tool choice {tool_choice!r}", where="tool_choice", hint=hint)
    prompt.system("tool-choice", _CHOICES[tool_choice])


def _add_response_format(prompt: _Prompt, response_format: Mapping[str, Any] | None) -> None:
    kind = "text" if response_format is None else response_format.get("type")
    if response_format is None or kind == "text":
        return
    if kind == "json_object":
        prompt.system("response-format", _JSON_OBJECT)
    elif kind == "json_schema":
        given = response_format.get("json_schema")
        if not isinstance(given, Mapping):
            raise InputError("no schema", where="response_format.json_schema", hint="Give {schema: {...}}")
        schema = given.get("schema", given.get("json_schema", given))
        prompt.system("response-format", f"{_JSON_SCHEMA}{_sorted_json(schema)}\n```")
    else:
        hint = "Use text, json_object or json_schema"
        raise InputError(f"no response format {kind!r}", where="response_format.type", hint=hint)


def _sorted_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
