"""The parsing rules once more, for a whole text with free look-ahead: short, slow, and independent of the parser.

Works on a list of tokens and looks as far ahead as it likes, where the parser holds, corrects and replays.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from typing import Any

TAGS = "message|think|response|tools|call|argument|json"
SPACE = r"[ \t\r\n\f\v]"
CONTROL = r"<\|(?:open|close|sep|end_of_msg)\|>"
ATTRIBUTES = rf"(?:{SPACE}(?:(?!{CONTROL}).)*)?"
MARKER = re.compile(
    rf"<\|open\|>{SPACE}*(?P<open>{TAGS})(?P<attributes>{ATTRIBUTES})<\|sep\|>"
    rf"|<\|close\|>{SPACE}*(?P<close>{TAGS}){SPACE}*<\|sep\|>|(?P<end><\|end_of_msg\|>)",
    re.DOTALL,
)
CANONICAL = re.compile(rf"<\|(?:open|close)\|>(?:{TAGS})(?: [^ \t\r\n\f\v]|<)", re.DOTALL)
ATTRIBUTE = re.compile(r"""(?P<name>[^\s="']+)(?P<equals>\s*=\s*)(?:"(?P<d>[^"]*)"|'(?P<s>[^']*)')|(?P<junk>\S)""")
FOLLOWS_VALUE = ("open argument", "close call", "open call", "close tools", "the end")


@dataclass(frozen=True)
class Token:
    kind: str  # "text", "open call", "close tools", "end of message"
    raw: str
    attributes: str = ""

    @property
    def loose(self) -> bool:
        tag_end = self.raw.removesuffix("<|sep|>")
        return self.kind[:4] in ("open", "clos") and (
            not CANONICAL.match(self.raw) or tag_end[-1:] in " \t\r\n\f\v"
        )


@dataclass
class Result:
    reasoning: str = ""
    content: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    problems: set[str] = field(default_factory=set)


def tokens_of(raw: str) -> tuple[list[Token], str]:
    """The tokens, and the beginning of a marker that the end cut off."""
    tokens: list[Token] = []
    position = 0
    for match in MARKER.finditer(raw):
        if match.start() > position:
            tokens.append(Token("text", raw[position : match.start()]))
        tag = match["open"] or match["close"]
        kind = "end of message" if match["end"] else f"{'open' if match['open'] else 'close'} {tag}"
        tokens.append(Token(kind, match[0], match["attributes"] or ""))
        position = match.end()
    rest = raw[position:]
    for start in range(len(rest)):
        if rest[start] == "<" and begins_marker(rest[start:]):
            if start:
                tokens.append(Token("text", rest[:start]))
            return tokens, rest[start:]
    if rest:
        tokens.append(Token("text", rest))
    return tokens, ""


def begins_marker(text: str) -> bool:
    """Whether something can be added that makes this one whole marker."""
    if any(start.startswith(text) for start in ("<|open|>", "<|close|>", "<|end_of_msg|>")):
        return True
    head = re.match(rf"<\|(open|close)\|>{SPACE}*", text)
    if head is None:
        return False
    body = text[head.end() :]
    cut = max((n for n in range(1, 8) if "<|sep|>".startswith(body[-n:]) and len(body) >= n), default=0)
    whole = body[: len(body) - cut]
    for tag in TAGS.split("|"):
        if not cut and tag.startswith(body):
            return True
        if whole.startswith(tag):
            tail = whole[len(tag) :]
            good = not tail or (tail[0] in " \t\r\n\f\v" if head[1] == "open" else not tail.strip(" \t\r\n\f\v"))
            if good and not re.search(CONTROL, whole):
                return True
    return False


def attributes_of(text: str, result: Result) -> dict[str, str]:
    found: dict[str, str] = {}
    pattern = re.compile(
        r"""(?P<name>[^\s="']+)(?P<equals>\s*=\s*)(?:"(?P<d>[^"]*)"|'(?P<s>[^']*)')|(?P<junk>\S)"""
    )
    rest = text
    while match := pattern.search(rest):
        rest = rest[match.end() :]
        if match["junk"]:
            result.problems.add("bad_attribute")
            rest = re.sub(r"""^[^\s="']*""", "", rest) if match["junk"] not in "=\"'" else rest
            continue
        value = match["d"] if match["d"] is not None else match["s"]
        if match["d"] is None or match["equals"] != "=" or match["name"] in found:
            result.problems.add("bad_attribute")
        found.setdefault(match["name"], value.replace("&quot;", '"').replace("&amp;", "&"))
    return found


def value_of(text: str, kind: str | None, result: Result) -> Any:
    """The decoded value; the text itself if it is bad."""
    if kind == "string":
        return text

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(items)) < len(items):
            repeated.append(True)
        return dict(items)

    def finite(value: Any) -> bool:
        if isinstance(value, dict):
            return all(map(finite, value.values()))
        if isinstance(value, list):
            return all(map(finite, value))
        try:
            return not isinstance(value, (int, float)) or math.isfinite(float(value))
        except OverflowError:
            return False

    repeated: list[bool] = []
    names = {bool: "boolean", type(None): "null", int: "number", float: "number", dict: "object", list: "array"}
    try:
        value = json.loads(text, object_pairs_hook=pairs)
        if names.get(type(value)) == kind and finite(value):
            if repeated:
                result.problems.add("duplicate_key")
            return value
    except ValueError:
        pass
    result.problems.add("bad_value")
    return text


def parse_whole(raw: str, starts_in: str, declared: set[str], tool_choice: object = "auto") -> Result:
    """Parse a whole completion by the rules."""
    result = Result()
    tokens, partial = tokens_of(raw)
    if tokens and tokens[-1].kind == "end of message":
        tokens.pop()
    closed = bool(tokens) and tokens[-1].kind == "close message"
    if closed:
        note_marker(tokens.pop(), result)
    else:
        result.problems.add("truncated")
    walk = Walk(tokens, partial, closed, declared, bool(declared) and tool_choice != "none", result)
    walk.think() if starts_in == "think" else walk.response()
    return result


def note_marker(token: Token, result: Result) -> None:
    if token.loose:
        result.problems.add("loose_marker")
    if token.attributes.strip():
        result.problems.add("bad_attribute")


@dataclass
class Walk:
    tokens: list[Token]
    partial: str
    closed: bool
    declared: set[str]
    allowed: bool
    result: Result
    at: int = 0
    tools_channels: int = 0
    responses: int = 0

    def kind(self, ahead: int = 0) -> str:
        place = self.at + ahead
        return self.tokens[place].kind if place < len(self.tokens) else "the end"

    def take(self) -> Token:
        self.at += 1
        return self.tokens[self.at - 1]

    def note(self) -> None:
        note_marker(self.take(), self.result)

    def say(self, code: str) -> None:
        self.result.problems.add(code)

    def think(self) -> None:
        kinds = [token.kind for token in self.tokens]
        if "close think" in kinds:
            end = kinds.index("close think")
            self.reasoning_until(end)
            self.note()
            return self.outside()
        for place, kind in enumerate(kinds):
            if kind == "open response":
                self.reasoning_until(place)
                self.say("unclosed_think")
                return self.outside()
            if kind == "open tools" and kinds[place + 1 : place + 2] == ["open call"]:
                self.reasoning_until(place)
                self.say("unclosed_think")
                return self.outside()
            if kind == "close response":
                self.reasoning_until(place)
                self.result.content, self.result.reasoning = self.result.reasoning, ""
                self.say("skipped_think")
                self.responses = 1
                self.note()
                return self.outside()
        if not self.closed and kinds[-1:] == ["open tools"]:
            self.tokens.pop()
        self.reasoning_until(len(self.tokens))
        if self.closed:
            self.say("unclosed_think")
        return None

    def reasoning_until(self, place: int) -> None:
        self.result.reasoning = "".join(token.raw for token in self.tokens[:place])
        self.at = place

    def response(self) -> None:
        self.responses += 1
        while self.kind() != "the end":
            if self.kind() == "close response":
                self.note()
                return self.outside()
            if self.kind() == "open tools":
                following = self.kind(1)
                cut_off = following == "the end" and not self.closed
                if following in ("open call", "close tools") or cut_off:
                    self.say("unclosed_response")
                    return self.outside()
            self.result.content += self.take().raw
        if self.closed:
            self.say("unclosed_response")
        return None

    def stray(self, text: str) -> None:
        self.say("stray_text")
        self.result.content += text

    def misplaced(self) -> None:
        token = self.take()
        keep = token.kind in ("text", "open argument", "open json", "open message")
        self.stray(token.raw if keep else "")

    def outside(self) -> None:
        while self.kind() != "the end":
            if self.kind() == "open response":
                if self.responses or self.tools_channels:
                    self.say("stray_text")
                self.note()
                return self.response()
            if self.kind() == "open tools":
                space = self.kind(1) == "text" and not self.tokens[self.at + 1].raw.strip()
                if self.kind(1) == "text" and not (space and self.kind(2) != "text"):
                    self.stray(self.take().raw)
                else:
                    self.note()
                    if self.tools(implied=False):
                        continue
                    return None
            elif self.kind() == "open call":
                self.say("missing_tools")
                if not self.tools(implied=True):
                    return None
            else:
                self.misplaced()
        return None

    def tools(self, implied: bool) -> bool:
        """A tools channel; True: the message goes on behind it."""
        if not implied:
            self.tools_channels += 1
            if self.tools_channels > 1:
                self.say("repeated_tools")
        calls = 0
        while True:
            kind = self.kind()
            if kind == "open call":
                calls += 1
                self.call()
                continue
            ends = kind in ("close tools", "open tools", "open response", "close message", "the end")
            if ends and not calls:
                self.say("empty_tools")
            if kind == "close tools":
                self.note()
                return True
            if kind == "the end":
                if self.closed and not implied:
                    self.say("unclosed_tools")
                return False
            if ends:
                if not implied:
                    self.say("unclosed_tools")
                if kind == "open tools":
                    self.note()
                    return self.tools(implied=False)
                return True
            self.misplaced()

    def call(self) -> None:
        opener = self.take()
        if opener.loose:
            self.say("loose_marker")
        name = attributes_of(opener.attributes, self.result).get("tool")
        if not name:
            self.say("missing_name")
        if not self.allowed:
            self.say("unexpected_call")
        arguments: dict[str, Any] = {}
        good = self.arguments(arguments)
        if name and good and self.allowed:
            if name not in self.declared:
                self.say("undeclared_tool")
            self.result.calls.append({"name": name, "arguments": arguments})

    def arguments(self, arguments: dict[str, Any]) -> bool:
        good = True
        while True:
            kind = self.kind()
            if kind == "close call":
                self.note()
                return good
            if kind in ("open argument", "open json"):
                good &= self.argument(kind.split()[1], arguments)
            elif kind == "the end":
                self.say("unclosed_call")
                return good and not may_begin_value(self.partial)
            elif kind in ("open call", "close tools", "open tools", "open response", "close message"):
                self.say("unclosed_call")
                return good
            elif kind == "text" and not self.allowed:
                self.take()
            elif not self.allowed and kind in ("open message",):
                self.say("stray_text")
                self.take()
            else:
                self.misplaced()

    def argument(self, tag: str, arguments: dict[str, Any]) -> bool:
        opener = self.take()
        if opener.loose:
            self.say("loose_marker")
        attributes = attributes_of(opener.attributes, self.result)
        if tag == "argument" and "key" not in attributes:
            self.say("missing_key")
        for place in range(self.at, len(self.tokens)):
            follows = self.tokens[place + 1].kind if place + 1 < len(self.tokens) else "the end"
            if self.tokens[place].kind == f"close {tag}" and follows in FOLLOWS_VALUE:
                return self.finished_argument(tag, attributes, place, arguments)
        return self.unfinished_argument()

    def finished_argument(self, tag: str, attributes: dict[str, str], end: int, into: dict[str, Any]) -> bool:
        inside = self.tokens[self.at : end]
        if any(re.search(CONTROL, token.raw) for token in inside):
            self.say("ambiguous_marker")
        self.at = end
        self.note()
        text = "".join(token.raw for token in inside)
        if tag == "json":
            value = value_of(text, "object", self.result)
            items = value.items() if isinstance(value, dict) else []
        else:
            value = value_of(text, attributes.get("type"), self.result)
            items = [(attributes["key"], value)] if "key" in attributes else []
        for key, item in items:
            if key in into:
                self.say("duplicate_key")
            into[key] = item
        return "key" in attributes if tag == "argument" else isinstance(value, dict)

    def unfinished_argument(self) -> bool:
        places = range(self.at, len(self.tokens)) if self.closed else range(0)
        resume = [place for place in places if self.tokens[place].kind in ("open call", "close tools")]
        self.at = resume[0] if resume else len(self.tokens)
        if resume and self.kind() == "open call":
            self.say("ambiguous_marker")
        return False


def may_begin_value(partial: str) -> bool:
    if not partial:
        return False
    if "<|open|>".startswith(partial):
        return True
    head = re.match(rf"<\|open\|>{SPACE}*", partial)
    if head is None:
        return False
    body = partial[head.end() :]
    return any(tag.startswith(body) or body.startswith(tag) for tag in ("argument", "json"))
