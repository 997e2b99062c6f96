"""Faults of tool calls, as parsers, gateways and hosted vendors have had them."""

from __future__ import annotations

import itertools
import json
from typing import Any

from tests.verify.broken_wire import deltas, streamed_calls
from tests.verify.proxy import Body, Proxy, message_of


def whole_calls(answer: Body) -> list[Body]:
    return message_of(answer).get("tool_calls") or []


class RepeatsIdsBetweenTurns(Proxy):
    """Counts the calls of each answer from 0."""

    expected = ("call-ids",)

    def whole(self, answer: Body, body: Body) -> Body:
        for number, call in enumerate(whole_calls(answer)):
            call["id"] = f"call_{number}"
        return answer

    def event(self, event: Body, seen: int, body: Body) -> list[Body]:
        for call in streamed_calls(event):
            if "id" in call:
                call["id"] = f"call_{call['index']}"
        return [event]


class EncodesArgumentsTwice(Proxy):
    expected = ("tool-single",)

    def whole(self, answer: Body, body: Body) -> Body:
        for call in whole_calls(answer):
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
        return answer


class ArgumentsAsObject(Proxy):
    expected = ("tool-single",)

    def whole(self, answer: Body, body: Body) -> Body:
        for call in whole_calls(answer):
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
        return answer


class IndexAlwaysZero(Proxy):
    """Parallel calls of a stream run into each other."""

    expected = ("tool-parallel",)

    def event(self, event: Body, seen: int, body: Body) -> list[Body]:
        for call in streamed_calls(event):
            call["index"] = 0
        return [event]


class NoCallIndex(Proxy):
    expected = ("tool-single",)

    def event(self, event: Body, seen: int, body: Body) -> list[Body]:
        for call in streamed_calls(event):
            del call["index"]
        return [event]


class RepeatsNames(Proxy):
    """Every delta of a call names the tool again: clients that add the pieces up call get_weatherget_weather."""

    expected = ("tool-stream",)
    name = ""

    def event(self, event: Body, seen: int, body: Body) -> list[Body]:
        for call in streamed_calls(event):
            self.name = call["function"].setdefault("name", self.name)
        return [event]


class ArgumentsSoFar(Proxy):
    """Every delta has all arguments that came so far, instead of the new ones."""

    expected = ("tool-stream",)

    def __init__(self, upstream: str) -> None:
        super().__init__(upstream)
        self.known: dict[tuple[str, int], str] = {}

    def event(self, event: Body, seen: int, body: Body) -> list[Body]:
        for call in streamed_calls(event):
            key = (event["id"], call["index"])
            self.known[key] = self.known.get(key, "") + call["function"].get("arguments", "")
            call["function"]["arguments"] = self.known[key]
        return [event]


class StopsWithCalls(Proxy):
    """finish_reason is stop though there are calls: agents take it for the last answer."""

    expected = ("tool-single",)

    def whole(self, answer: Body, body: Body) -> Body:
        if whole_calls(answer):
            answer["choices"][0]["finish_reason"] = "stop"
        return answer


class IgnoresNamedTool(Proxy):
    expected = ("tool-named",)
    only_warned = True

    def request(self, body: Body) -> Body:
        return {**body, "tool_choice": "auto"} if isinstance(body.get("tool_choice"), dict) else body


class CallsInParallelAnyway(Proxy):
    """parallel_tool_calls false is not passed on."""

    expected = ("tool-one",)

    def request(self, body: Body) -> Body:
        return {name: value for name, value in body.items() if name != "parallel_tool_calls"}


class NothingForNoArguments(Proxy):
    """A call without arguments has an empty text for them, which is no JSON."""

    expected = ("tool-empty",)

    def whole(self, answer: Body, body: Body) -> Body:
        for call in whole_calls(answer):
            if call["function"]["arguments"] == "{}":
                call["function"]["arguments"] = ""
        return answer

    def event(self, event: Body, seen: int, body: Body) -> list[Body]:
        for call in streamed_calls(event):
            if call["function"].get("arguments") == "{}":
                call["function"]["arguments"] = ""
        return [event]


class SwapsResults(Proxy):
    """The results of two calls change places."""

    expected = ("tool-turns",)

    def request(self, body: Body) -> Body:
        messages = [dict(message) for message in body["messages"]]
        results = [message for message in messages if message.get("role") == "tool"]
        contents = [message["content"] for message in results]
        for message, content in zip(results, reversed(contents), strict=True):
            message["content"] = content
        return {**body, "messages": messages}


class CutsResults(Proxy):
    """Keeps 2,000 characters of a tool's result."""

    expected = ("tool-turns",)

    def request(self, body: Body) -> Body:
        messages = [{**m, "content": m["content"][:2_000]} if m.get("role") == "tool" else m for m in body["messages"]]
        return {**body, "messages": messages}


class RefusesNullContent(Proxy):
    """Wants text in each turn, though a turn with calls has none: the second request of every agent is refused."""

    expected = ("tool-turns",)

    def request(self, body: Body) -> Body:
        null = any(message.get("content", "") is None for message in body["messages"])
        return {**body, "messages": []} if null else body


class DropsReasoningOfCalls(Proxy):
    """An answer with calls has no reasoning, so that it cannot be given back."""

    expected = ("reasoning-calls",)
    beside = ("tool-single", "tool-parallel", "tool-nested", "tool-unicode", "chat", "call-ids", "needles-8")

    def whole(self, answer: Body, body: Body) -> Body:
        if whole_calls(answer):
            message_of(answer).pop("reasoning_content", None)
        return answer

    def event(self, event: Body, seen: int, body: Body) -> list[Body]:
        for delta in deltas(event):
            if body.get("tools"):
                delta.pop("reasoning_content", None)
        return [event]


class LosesRequired(Proxy):
    """Leaves out the last argument where there are several."""

    expected = ("schema-strict", "schema-accuracy")

    def whole(self, answer: Body, body: Body) -> Body:
        for call in whole_calls(answer):
            arguments = json.loads(call["function"]["arguments"])
            if len(arguments) > 1:
                arguments.popitem()
            if body.get("tool_choice") == "required" and "value" in arguments:
                arguments = {}
            call["function"]["arguments"] = json.dumps(arguments)
        return answer


class IgnoresEnums(Proxy):
    """What has to be one of a few words becomes another, as without a grammar."""

    expected = ("schema-accuracy", "json-schema")
    swaps = (('"high"', '"urgent"'), ('"cat"', '"kitten"'), ('"red"', '"crimson"'))

    def whole(self, answer: Body, body: Body) -> Body:
        message = message_of(answer)
        for call in whole_calls(answer):
            call["function"]["arguments"] = self.swapped(call["function"]["arguments"])
        if "response_format" in body:
            message["content"] = self.swapped(message["content"] or "")
        return answer

    def swapped(self, text: str) -> str:
        for old, new in self.swaps:
            text = text.replace(old, new)
        return text


class KeepsSixteenTools(Proxy):
    """Passes on the first sixteen tools."""

    expected = ("tool-many",)

    def request(self, body: Body) -> Body:
        return {**body, "tools": body["tools"][:16]} if isinstance(body.get("tools"), list) else body


class StripsSchemas(Proxy):
    """Drops descriptions and enums of tools, as translations between APIs do."""

    expected = ("tool-schemas",)

    def request(self, body: Body) -> Body:
        return {**body, "tools": stripped(body["tools"])} if isinstance(body.get("tools"), list) else body


def stripped(value: Any) -> Any:
    if isinstance(value, list):
        return [stripped(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {
        name: "" if name == "description" and isinstance(one, str) else stripped(one)
        for name, one in value.items()
        if not (name == "enum" and isinstance(one, list))
    }


class OneBadReplica(Proxy):
    """One replica of four has no parsers: calls arrive as text, reasoning in the content."""

    expected = ("schema-accuracy",)
    turns: Any = None

    def whole(self, answer: Body, body: Body) -> Body:
        self.turns = self.turns or itertools.count()
        if next(self.turns) % 4:
            return answer
        message = message_of(answer)
        calls = "".join(json.dumps(call["function"]) for call in message.pop("tool_calls", None) or [])
        message["content"] = message.pop("reasoning_content", "") + (message["content"] or "") + calls
        answer["choices"][0]["finish_reason"] = "stop"
        return answer
