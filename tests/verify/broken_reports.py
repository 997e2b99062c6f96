"""Faults taken one after another from what a search for bugs of engines and gateways gave, whatever looks for them."""

from __future__ import annotations

import json
from typing import Any

from tests.verify.brain import think
from tests.verify.broken_calls import whole_calls
from tests.verify.broken_wire import deltas, streamed_calls
from tests.verify.proxy import Body, Proxy, has_text, message_of


class SometimesNoFinish(Proxy):
    """One stream of nine has no finish_reason: vLLM issue 27572."""

    expected = ("forms",)
    beside = ("needles-32",)
    ends = 0

    def event(self, event: Body, seen: int, body: Body) -> list[Body]:
        for choice in event.get("choices") or []:
            if choice.get("finish_reason"):
                self.ends += 1
                if self.ends % 9 == 0:
                    choice["finish_reason"] = None
        return [event]


class NoStreamedReasoning(Proxy):
    """Reasoning is passed on in whole answers, and not in streams: LiteLLM issue 23148."""

    expected = ("reasoning",)

    def event(self, event: Body, seen: int, body: Body) -> list[Body]:
        return [] if any(delta.get("reasoning_content") for delta in deltas(event)) else [event]


class EmptyNumbersOfEnums(Proxy):
    """Where an enum has no texts, the grammar allows an empty text alone: imp issue 1564."""

    expected = ("schema-strict",)

    def whole(self, answer: Body, body: Body) -> Body:
        for call in whole_calls(answer):
            if '"enum": [1' in json.dumps(body["tools"]):
                call["function"]["arguments"] = '{"value": ""}'
        return answer

    def event(self, event: Body, seen: int, body: Body) -> list[Body]:
        for call in streamed_calls(event):
            if "name" not in call["function"] and '"enum": [1' in json.dumps(body["tools"]):
                call["function"]["arguments"] = '{"value": ""}'
        return [event]


class SometimesThinksAloud(Proxy):
    """One answer of ten has its reasoning in the content: Kimi-K3 issue 45."""

    expected = ("reasoning-aloud",)
    beside = ("needles-32",)
    only_warned = True
    answers = 0

    def whole(self, answer: Body, body: Body) -> Body:
        message = message_of(answer)
        if message.get("content") and message.get("reasoning_content"):
            self.answers += 1
            if self.answers % 10 == 0:
                message["content"] = message.pop("reasoning_content") + message["content"]
        return answer


class CutsDottedNames(Proxy):
    """Of a tool's name only what comes after its last dot is left: vLLM pull request 44135, of Kimi's parser."""

    expected = ("tool-names",)

    def whole(self, answer: Body, body: Body) -> Body:
        for call in whole_calls(answer):
            call["function"]["name"] = call["function"]["name"].rpartition(".")[2]
        return answer


class MissesDashedNames(Proxy):
    """Calls of tools with a dash in their name are not seen: SGLang issue 20878, of Kimi's parser."""

    expected = ("tool-names",)

    def whole(self, answer: Body, body: Body) -> Body:
        if any("-" in call["function"]["name"] for call in whole_calls(answer)):
            message_of(answer).pop("tool_calls")
            answer["choices"][0]["finish_reason"] = "stop"
        return answer


class EightKilobytes(Proxy):
    """Streamed arguments end after 8 kB: vLLM issue 37445, of Kimi's parser."""

    expected = ("tool-long",)

    def __init__(self, upstream: str) -> None:
        super().__init__(upstream)
        self.sent: dict[str, int] = {}

    def event(self, event: Body, seen: int, body: Body) -> list[Body]:
        for call in streamed_calls(event):
            self.sent[event["id"]] = self.sent.get(event["id"], 0) + len(call["function"].get("arguments", ""))
            if self.sent[event["id"]] > 8_192:
                call["function"]["arguments"] = ""
        return [event]


class LosesTextBeforeCalls(Proxy):
    """What is said before a call is lost in streams: vLLM issue 38353, of Kimi's parser."""

    expected = ("tool-spoken",)

    def event(self, event: Body, seen: int, body: Body) -> list[Body]:
        spoken = any(delta.get("content") for delta in deltas(event))
        return [] if spoken and body.get("tools") and think(body).calls else [event]


class DropsOptional(Proxy):
    """Arguments that are not required are left out: SGLang issue 12932, about Kimi-K2."""

    expected = ("tool-nested",)

    def whole(self, answer: Body, body: Body) -> Body:
        required = {
            tool["function"]["name"]: tool["function"]["parameters"].get("required", [])
            for tool in body.get("tools") or []
        }
        for call in whole_calls(answer):
            function = call["function"]
            arguments: dict[str, Any] = json.loads(function["arguments"])
            kept = {name: value for name, value in arguments.items() if name in required[function["name"]]}
            function["arguments"] = json.dumps(kept)
        return answer


class SometimesExclaims(Proxy):
    """One answer of fifteen is exclamation marks in the reasoning, and no content: vLLM issue 42426."""

    expected = ("empty",)
    beside = ("needles-32",)
    answers = 0

    def whole(self, answer: Body, body: Body) -> Body:
        self.answers += 1
        if self.answers % 15 == 0:
            answer["choices"][0]["message"] = {"role": "assistant", "content": None, "reasoning_content": "!" * 40}
        return answer


class CutsBundledCalls(Proxy):
    """A streamed call that another one follows loses the end of its arguments: vLLM issue 38274."""

    expected = ("tool-parallel",)

    def event(self, event: Body, seen: int, body: Body) -> list[Body]:
        for call in streamed_calls(event):
            text = call["function"].get("arguments") or ""
            if call["index"] == 0 and text.endswith("}") and "in this order" in json.dumps(body["messages"]):
                call["function"]["arguments"] = text[:-1]
        return [event]


class ParserGivesUp(Proxy):
    """One call of eight is not understood and comes as text: SGLang issue 34604, about Kimi-K3."""

    expected = ("schema-accuracy",)
    answers = 0

    def whole(self, answer: Body, body: Body) -> Body:
        message = message_of(answer)
        if calls := whole_calls(answer):
            self.answers += 1
            if self.answers % 8 == 0:
                del message["tool_calls"]
                message["content"] = json.dumps(calls[0]["function"])
                answer["choices"][0]["finish_reason"] = "stop"
        return answer


class CallsStayInReasoning(Proxy):
    """A stream whose end of thinking is not seen keeps its call as reasoning: vLLM issue 53246, about Kimi-K3."""

    expected = ("tool-single",)

    def event(self, event: Body, seen: int, body: Body) -> list[Body]:
        for delta in deltas(event):
            if calls := delta.pop("tool_calls", None):
                delta["reasoning_content"] = calls[0]["function"].get("arguments") or " "
        return [event]


class ForgetsTheFirstPiece(Proxy):
    """The first piece of the answer is taken for the end of the thinking and lost, in streams."""

    expected = ("stream",)

    def event(self, event: Body, seen: int, body: Body) -> list[Body]:
        if has_text(event) and any(delta.get("content") for delta in deltas(event)) and "begun" not in body:
            body["begun"] = True
            return []
        return [event]
