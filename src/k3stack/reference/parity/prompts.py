"""Prompts to compare on: a built-in set, or a file's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from k3stack.errors import InputError
from k3stack.files import json_value
from k3stack.xtml import Segment, encode

__all__ = ["built_in", "read_prompts"]

_WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
_CHATS: dict[str, dict[str, Any]] = {
    "greeting": {"messages": [{"role": "user", "content": "Hello! Who are you?"}]},
    "arithmetic": {"messages": [{"role": "user", "content": "What is 17 times 23? Think step by step."}]},
    "no thinking": {
        "messages": [{"role": "user", "content": "Name three rivers in Europe."}],
        "thinking": False,
    },
    "code": {"messages": [{"role": "user", "content": "Write a Python function that reverses a linked list."}]},
    "Chinese": {"messages": [{"role": "user", "content": "请用一句话介绍长城。"}]},
    "tool": {"messages": [{"role": "user", "content": "Weather in Paris?"}], "tools": [_WEATHER]},
    "tool result": {
        "messages": [
            {"role": "user", "content": "Weather in Paris?"},
            {
                "role": "assistant",
                "tool_calls": [
                    {
                        "id": "a",
                        "type": "function",
                        "function": {"name": "get_weather", "arguments": '{"city":"Paris"}'},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "a", "content": "18 C, sunny"},
        ],
        "tools": [_WEATHER],
    },
    "system": {
        "messages": [
            {"role": "system", "content": "You answer in one short sentence."},
            {"role": "user", "content": "Why is the sky blue?"},
        ]
    },
}


def built_in() -> dict[str, list[Segment]]:
    """Eight chats: plain, with tools, with a tool's result, without thinking, in Chinese, about code."""
    return {name: _prompt(chat) for name, chat in _CHATS.items()}


def read_prompts(path: Path) -> dict[str, list[Segment]]:
    """A file with one JSON value a line: a text (the user's message), or a chat request with `messages`.

    Raises:
        InputError: names the line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        what = error.strerror if isinstance(error, OSError) else "it is no UTF-8"
        hint = 'Give a text file with one JSON value a line, as in "Hello"'
        raise InputError(f"cannot be read: {what}", where=path, hint=hint) from None
    prompts: dict[str, list[Segment]] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path}: line {number}"
        try:
            value = json_value(line)
        except ValueError:
            raise InputError("is not JSON", where=where, hint='Write one JSON value a line, as in "Hello"') from None
        if isinstance(value, str):
            value = {"messages": [{"role": "user", "content": value}]}
        if not isinstance(value, dict) or not isinstance(value.get("messages"), list):
            raise InputError("is neither a text nor an object with messages", where=where)
        prompts[f"line {number}"] = _prompt(value)
    if not prompts:
        raise InputError("holds no prompt", where=path)
    return prompts


def _prompt(chat: Mapping[str, Any]) -> list[Segment]:
    return encode(chat["messages"], tools=chat.get("tools") or (), thinking=chat.get("thinking", True))
