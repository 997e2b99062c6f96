"""The words of XTML, Kimi-K3's message grammar: control tokens, tags, value types, problem codes.

    completion := [REASONING <|close|>think<|sep|> <|open|>response<|sep|>] CONTENT <|close|>response<|sep|>
                  [<|open|>tools<|sep|> CALL+ <|close|>tools<|sep|>] <|close|>message<|sep|> <|end_of_msg|>
    CALL       := <|open|>call tool="NAME" index="N"<|sep|>
                  (ARGUMENT* | <|open|>json type="object"<|sep|>JSON<|close|>json<|sep|>) <|close|>call<|sep|>
    ARGUMENT   := <|open|>argument key="K" type="T"<|sep|>VALUE<|close|>argument<|sep|>
    T          := string | number | boolean | null | object | array

The four control tokens are single ids; tag names and attributes are ordinary text between them. A VALUE of type
string is raw text without escapes, every other VALUE is JSON. The prompt opens the think channel, or with thinking
off the response channel; the completion goes on from there.

Ids: Kimi-K3's tokenizer (tiktoken, 163,584 ranks and 256 specials), as in its tokenizer_config.json.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

__all__ = ["CLOSE", "CONTROL_IDS", "CONTROL_TOKENS", "END", "OPEN", "SEP", "Channel", "ProblemCode"]

OPEN = "<|open|>"
CLOSE = "<|close|>"
SEP = "<|sep|>"
END = "<|end_of_msg|>"

CONTROL_TOKENS = (END, OPEN, CLOSE, SEP)

CONTROL_IDS: dict[int, str] = {163586: END, 163587: OPEN, 163588: CLOSE, 163589: SEP}
"""Kimi-K3's token ids of the control tokens."""

Channel = Literal["think", "response"]
"""The channel that the end of the prompt left open."""


class ProblemCode(StrEnum):
    """What can be wrong with a completion. An empty set of problems means that nothing is."""

    UNCLOSED_THINK = "unclosed_think"
    """Reasoning ended by a later marker instead of its own close."""
    UNCLOSED_RESPONSE = "unclosed_response"
    """Content ended by a later marker instead of its own close."""
    UNCLOSED_TOOLS = "unclosed_tools"
    """A tools channel ended by a later marker instead of its own close."""
    UNCLOSED_CALL = "unclosed_call"
    """A call ended by a later marker or by the end of the text instead of its own close."""
    SKIPPED_THINK = "skipped_think"
    """The think channel was never used: its text is the response."""
    TRUNCATED = "truncated"
    """No message close at the end."""
    BAD_VALUE = "bad_value"
    """An argument that is not of its declared type, or no JSON, NaN, infinite, or too large for a double."""
    DUPLICATE_KEY = "duplicate_key"
    """A key given twice; the last one wins."""
    MISSING_NAME = "missing_name"
    """A call without a tool name; it is not returned."""
    MISSING_KEY = "missing_key"
    """An argument without a key; its call is not returned."""
    UNDECLARED_TOOL = "undeclared_tool"
    """A call to a tool that was not declared; returned under the name as written."""
    UNEXPECTED_CALL = "unexpected_call"
    """A call although no tools are declared or `tool_choice` is none; not returned, and it leaves no text."""
    AMBIGUOUS_MARKER = "ambiguous_marker"
    """A value that holds a control token: nobody can tell a quoted marker from a real one."""
    BAD_ATTRIBUTE = "bad_attribute"
    """An attribute in single quotes (read as if in double quotes), or attribute text that is none."""
    LOOSE_MARKER = "loose_marker"
    """Spaces around a tag name; read as the marker."""
    MISSING_TOOLS = "missing_tools"
    """A call outside a tools channel; returned."""
    EMPTY_TOOLS = "empty_tools"
    """A tools channel without a call."""
    REPEATED_TOOLS = "repeated_tools"
    """A second tools channel; its calls are returned too."""
    STRAY_TEXT = "stray_text"
    """Text outside every channel, added to the content as it is; or a marker that has no place there."""
