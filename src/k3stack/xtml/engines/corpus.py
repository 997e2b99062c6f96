"""Completions as Kimi-K3 writes them, well-formed and not, and what a careful parser makes of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources
from typing import Any

from k3stack.xtml.events import Call, Message
from k3stack.xtml.parser import parse
from k3stack.xtml.wire import Channel, ProblemCode

__all__ = ["Case", "corpus_json", "load_corpus"]


@dataclass(frozen=True, slots=True)
class Case:
    """One completion.

    Attributes:
        id: a short name.
        title: what is special about it, in words.
        starts_in: the channel that the prompt left open.
        tools: the declared tools as OpenAI objects; empty: none.
        tool_choice: the request's `tool_choice`.
        raw: the completion.
        want: what a careful parser makes of it.
    """

    id: str
    title: str
    starts_in: Channel
    tools: tuple[dict[str, Any], ...]
    tool_choice: str | None
    raw: str
    want: Message

    def parse(self) -> Message:
        """What k3stack's parser makes of it."""
        return parse(self.raw, self.starts_in, tools=self.tools, tool_choice=self.tool_choice)


def corpus_json() -> str:
    """The corpus as the probe reads it."""
    return resources.files("k3stack.xtml.engines").joinpath("corpus.json").read_text(encoding="utf-8")


def load_corpus() -> tuple[Case, ...]:
    """All cases, in order."""
    data = json.loads(corpus_json())
    tools = tuple(data["tools"])
    return tuple(_case(case, tools if case["tools"] else ()) for case in data["cases"])


def _case(case: dict[str, Any], tools: tuple[dict[str, Any], ...]) -> Case:
    want = case["want"]
    message = Message(
        reasoning=want["reasoning"],
        content=want["content"],
        tool_calls=tuple(Call(call["name"], call["arguments"]) for call in want["tool_calls"]),
        problems=frozenset(ProblemCode(code) for code in want["problems"]),
    )
    return Case(case["id"], case["title"], case["starts_in"], tools, case["tool_choice"], case["raw"], message)
