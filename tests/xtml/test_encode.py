"""Prompts: words and order are those of Moonshot's encoder, `encoding_k3.py` of July 2026."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3stack.errors import InputError
from k3stack.xtml import CONTROL_IDS, CONTROL_TOKENS, IMAGE_PLACEHOLDER, Segment, encode, segments_text, tokenize

END = "<|close|>message<|sep|><|end_of_msg|>"
EFFORT = (
    '<|open|>message role="system" type="thinking-effort"<|sep|>`thinking_effort` guides on how much to think in '
    "your thinking channel (not including the response channel), supported values include `low`, `medium`, "
    "`high`, and `max`.\nNow the system is invoked with `thinking_effort={effort}`." + END
)
USER = '<|open|>message role="user"<|sep|>Hello' + END
HELLO = {"role": "user", "content": "Hello"}


def text(messages: Sequence[Any], **options: Any) -> str:
    return segments_text(encode(messages, **options))


def function(name: str, arguments: object, call_id: str | None = None) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def calling(name: str, arguments: object) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [function(name, arguments)]}


def test_a_first_turn_with_thinking() -> None:
    generation = '<|open|>message role="assistant"<|sep|><|open|>think<|sep|>'
    assert text([HELLO]) == EFFORT.format(effort="max") + USER + generation
    assert text([HELLO], reasoning_effort="low") == EFFORT.format(effort="low") + USER + generation
    assert text([HELLO], reasoning_effort=None) == USER + generation


def test_a_first_turn_without_thinking_has_no_effort() -> None:
    assert text([HELLO], thinking=False) == USER + '<|open|>message role="assistant"<|sep|><|open|>response<|sep|>'


def test_tools_come_first_with_sorted_keys() -> None:
    tools = [{"type": "function", "function": {"name": "f", "description": 'Wäre "so"', "parameters": {}}}]
    declared = (
        '<|open|>message role="system" type="tool-declare"<|sep|># Tools\n'
        "Here are the available tools, described in JSONSchema.\n\n```json\n"
        '[{"function":{"description":"Wäre \\"so\\"","name":"f","parameters":{}},"type":"function"}]\n```' + END
    )
    assert text([HELLO], tools=tools).startswith(declared + EFFORT.format(effort="max") + USER)


def test_a_turn_with_reasoning_calls_and_results() -> None:
    arguments = '{"city": "Paris", "days": 2, "now": true, "why": null, "at": [1.5], "o": {"a": "ü"}}'
    messages = [
        {"role": "system", "content": "Be brief.", "name": "ops"},
        {
            "role": "assistant",
            "reasoning_content": "Look.",
            "content": "One moment.",
            "tool_calls": [function("get_weather", arguments, "x"), function('say "&"', "{oops", "y")],
        },
        {"role": "tool", "tool_call_id": "y", "content": "second"},
        {"role": "tool", "tool_call_id": "x", "content": [{"type": "text", "text": "first"}]},
    ]
    wanted = (
        '<|open|>message role="system" name="ops"<|sep|>Be brief.' + END
        + '<|open|>message role="assistant"<|sep|>'
        "<|open|>think<|sep|>Look.<|close|>think<|sep|><|open|>response<|sep|>One moment.<|close|>response<|sep|>"
        '<|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|>'
        '<|open|>argument key="city" type="string"<|sep|>Paris<|close|>argument<|sep|>'
        '<|open|>argument key="days" type="number"<|sep|>2<|close|>argument<|sep|>'
        '<|open|>argument key="now" type="boolean"<|sep|>true<|close|>argument<|sep|>'
        '<|open|>argument key="why" type="null"<|sep|>null<|close|>argument<|sep|>'
        '<|open|>argument key="at" type="array"<|sep|>[1.5]<|close|>argument<|sep|>'
        '<|open|>argument key="o" type="object"<|sep|>{"a": "ü"}<|close|>argument<|sep|><|close|>call<|sep|>'
        '<|open|>call tool="say &quot;&amp;&quot;" index="2"<|sep|>'
        '<|open|>json type="object"<|sep|>{oops<|close|>json<|sep|><|close|>call<|sep|><|close|>tools<|sep|>' + END
        + '<|open|>message role="tool" tool="get_weather" index="1"<|sep|>first' + END
        + '<|open|>message role="tool" tool="say &quot;&amp;&quot;" index="2"<|sep|>second' + END
    )  # fmt: skip
    assert text(messages, reasoning_effort=None, add_generation_prompt=False) == wanted


def test_results_that_match_no_call_keep_their_order() -> None:
    calls = [function("a", {}, "1"), function("b", {}, "2")]
    messages = [
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "2", "content": "x"},
        {"role": "tool", "tool_call_id": "?", "content": "y"},
    ]
    prompt = text(messages)
    assert '<|open|>message role="tool" tool="a" index="1"<|sep|>x' in prompt
    assert '<|open|>message role="tool" tool="b" index="2"<|sep|>y' in prompt


def test_the_think_channel_is_there_without_reasoning_and_absent_without_thinking() -> None:
    answer = {"role": "assistant", "content": "Yes.", "reasoning": " \n"}
    assert "<|open|>think<|sep|><|close|>think<|sep|><|open|>response<|sep|>Yes." in text([answer])
    assert "think" not in text([{**answer, "reasoning": "why"}], thinking=False)


def test_choice_and_format_come_last() -> None:
    schema = {"name": "n", "schema": {"type": "object", "properties": {}}}
    prompt = text(
        [HELLO],
        tool_choice="required",
        response_format={"type": "json_schema", "json_schema": schema},
        thinking=False,
    )
    choice = (
        '<|open|>message role="system" type="tool-choice"<|sep|>The system is invoked with '
        "`tool_choice=required`.\nYou MUST call tools in the next message." + END
    )
    form = (
        '<|open|>message role="system" type="response-format"<|sep|>The system is invoked with '
        "`response_format=json_schema`.\nYour response must be raw JSON data without markdown code blocks "
        "(```json) or any additional formatting.\nThe JSON data must match the following schema:\n"
        '```json\n{"properties":{},"type":"object"}\n```' + END
    )
    assert prompt.startswith(USER + choice + form)


def test_more_tools_may_come_later() -> None:
    prompt = text([HELLO, {"role": "system", "tools": [{"b": 1, "a": 2}]}])
    assert 'type="tool-declare"<|sep|>## New Tools Available\n' in prompt
    assert '```json\n[{"a":2,"b":1}]\n```' in prompt


def test_developer_messages_are_not_lost() -> None:
    assert '<|open|>message role="system"<|sep|>Be kind.' in text([{"role": "developer", "content": "Be kind."}])


def test_images_are_placeholders_that_text_cannot_forge() -> None:
    parts = [{"type": "text", "text": IMAGE_PLACEHOLDER}, {"type": "image_url", "image_url": {"url": "data:"}}]
    segments = encode([{"role": "user", "content": parts}])
    assert [segment.special for segment in segments if segment.text == IMAGE_PLACEHOLDER] == [False, True]


@given(st.text() | st.sampled_from(CONTROL_TOKENS), st.text())
def test_user_text_never_yields_special_tokens(said: str, name: str) -> None:
    def specials(message: dict[str, Any]) -> list[str]:
        return [segment.text for segment in encode([message]) if segment.special]

    named = {"role": "user", "name": name or "n"}
    assert specials({**named, "content": said}) == specials({**named, "content": "x", "name": "n"})


def test_a_segment_is_tokenised_on_its_own() -> None:
    asked: list[str] = []

    def ordinary(piece: str) -> list[int]:
        asked.append(piece)
        return [len(piece)]

    segments = [Segment("<|open|>", True), Segment("message"), Segment(" role"), Segment("<|open|>")]
    ids = list(tokenize(segments, ordinary, {name: number for number, name in CONTROL_IDS.items()}))
    assert (ids, asked) == ([163587, 7, 5, 8], ["message", " role", "<|open|>"])


@pytest.mark.parametrize(
    ("messages", "options", "where"),
    [
        ([{"role": "robot", "content": ""}], {}, "messages[0].role"),
        ([HELLO, "hi"], {}, "messages[1]"),
        ([{"role": "user", "content": 3}], {}, "messages[0].content"),
        ([{"role": "user", "content": [{"type": "audio"}]}], {}, "messages[0].content[0]"),
        ([{"role": "tool", "content": "x"}], {}, "messages[0]"),
        ([calling("", "{}")], {}, "messages[0].tool_calls[0].function.name"),
        ([calling("f", "[]")], {}, "messages[0].tool_calls[0].function.arguments"),
        ([{"role": "system", "tools": [{}], "content": "x"}], {}, "messages[0].content"),
        ([HELLO], {"reasoning_effort": "medium"}, "reasoning_effort"),
        ([HELLO], {"tool_choice": {"type": "function"}}, "tool_choice"),
        ([HELLO], {"response_format": {"type": "grammar"}}, "response_format.type"),
        ([HELLO], {"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ],
)  # fmt: skip
def test_what_has_no_place_is_refused_by_name(messages: list[Any], options: dict[str, Any], where: str) -> None:
    with pytest.raises(InputError) as caught:
        encode(messages, **options)
    assert caught.value.where == where
