"""Answers as they come over the wire: put together right, and nothing that comes makes the reader fall over."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3stack.verify.answer import Answer
from k3stack.verify.reading import StreamReader, read_answer


def event(delta: dict[str, Any], reason: str | None = None, **more: Any) -> str:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return "data: " + json.dumps({"id": "a", "object": "chat.completion.chunk", "choices": [choice], **more})


def read(*lines: str) -> Answer:
    reader = StreamReader({})
    for line in lines:
        reader.line(line)
        reader.line("")
    return reader.finish()


GOOD = (
    event({"role": "assistant", "content": ""}),
    ": keep-alive",
    event({"reasoning": "let me "}),
    event({"reasoning": "see"}),
    event({"content": "Hé"}),
    event({"content": "llo"}),
    event({"tool_calls": [{"index": 0, "id": "c0", "function": {"name": "f", "arguments": '{"a"'}}]}),
    event({"tool_calls": [{"index": 1, "id": "c1", "function": {"name": "g", "arguments": "{}"}}]}),
    event({"tool_calls": [{"index": 0, "function": {"arguments": ": 1}"}}]}),
    event({}, "tool_calls"),
    'data: {"id": "a", "object": "chat.completion.chunk", "choices": [], "usage": {"prompt_tokens": 3, '
    '"completion_tokens": 2, "total_tokens": 5, "prompt_tokens_details": {"cached_tokens": 1}}}',
    "data: [DONE]",
)


def test_a_stream_is_put_together() -> None:
    answer = read(*GOOD)
    assert answer.faults == ()
    assert (answer.reasoning, answer.content, answer.finish) == ("let me see", "Héllo", "tool_calls")
    assert [(call.id, call.name, call.arguments) for call in answer.calls] == [
        ("c0", "f", '{"a": 1}'),
        ("c1", "g", "{}"),
    ]
    assert answer.usage and (answer.usage.prompt, answer.usage.total, answer.usage.cached) == (3, 5, 1)
    assert answer.reasoning_field == "reasoning" and len(answer.gaps_s) == 6


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        (GOOD[:-1], "without [DONE]"),
        ((*GOOD, "data: {}"), "after [DONE]"),
        ((*GOOD[:-1], event({}, "stop"), GOOD[-1]), "2 finish reasons"),
        ((*GOOD[:9], GOOD[-1]), "0 finish reasons"),
        ((event({"content": "x"}, id="b"), *GOOD), "2 ids"),
        (("data: {oops", *GOOD), "no JSON"),
        (("what is this", *GOOD), "no event"),
        ((*GOOD[:-1], event({"content": "late"}), GOOD[-1]), "after the finish reason"),
        ((*GOOD[:3], 'data: {"error": {"message": "boom"}}', *GOOD[3:]), "boom"),
        ((event({"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]}), *GOOD[8:]), "lacks its id or name"),
        ((event({"tool_calls": [{"id": "c", "function": {"name": "f"}}]}), *GOOD[9:]), "without an index"),
        ((*GOOD[:8], event({"tool_calls": [{"index": 0, "function": {"name": "f"}}]}), *GOOD[8:]), "named again"),
        ((*GOOD[:3], GOOD[-2], *GOOD[3:]), "after the last event"),
        ((event({}, created=1_790_000_000_000), *GOOD), "not in seconds"),
    ],
)
def test_what_is_wrong_with_a_stream_is_said(lines: tuple[str, ...], fault: str) -> None:
    assert any(fault in one for one in read(*lines).faults)


def test_events_need_an_empty_line_between_them_and_their_own_content_type() -> None:
    reader = StreamReader({})
    reader.kind("text/plain")
    reader.line(GOOD[0])
    reader.line(GOOD[2])
    faults = reader.finish(ended=False).faults
    assert len(faults) == 2 and "'text/plain'" in faults[0] and "empty line" in faults[1]


def test_further_choices_are_kept_apart() -> None:
    second = event({"content": "other"}).replace('"index": 0', '"index": 1')
    answer = read(*GOOD[:5], second, second, *GOOD[5:])
    assert answer.faults == () and answer.content == "Héllo" and answer.others == ("otherother",)


def test_a_whole_answer_is_read() -> None:
    message = {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [
        {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}  # fmt: skip
    top = [{"token": "a", "logprob": -0.5}]
    logprobs = {"content": [{"token": "a", "logprob": -0.5, "top_logprobs": top}, {"token": "b", "logprob": None}]}
    data = {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [
        {"message": message, "finish_reason": "tool_calls", "logprobs": logprobs}]}  # fmt: skip
    answer = read_answer({}, json.dumps(data), 0.5)
    assert answer.faults == () and answer.content == "" and answer.reasoning == "hm"
    assert answer.calls[0].name == "f" and answer.usage is None
    assert answer.chances[0].top == (("a", -0.5),) and math.isnan(answer.chances[1].logprob)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                "id object choices delta message content tool_calls function name arguments index usage prompt_tokens "
                "logprobs finish_reason reasoning error token logprob top_logprobs prompt_tokens_details".split()
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


@given(st.lists(st.text(max_size=40) | _json.map(lambda value: "data: " + json.dumps(value)), max_size=8))
def test_no_stream_makes_the_reader_fall_over(lines: list[str]) -> None:
    assert read(*lines).faults


@given(_json)
def test_no_answer_makes_the_reader_fall_over(value: object) -> None:
    message = {"id": "x", "object": "chat.completion", "choices": [{"message": value, "logprobs": value}]}
    for text in (json.dumps(value), json.dumps(message), json.dumps({**message, "usage": value})):
        read_answer({}, text, 0.0)
