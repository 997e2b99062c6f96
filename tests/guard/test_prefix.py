"""Which front of a prompt repeats, and what is said where it does not."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k3stack.guard import parse_chat_request
from k3stack.guard.codec import dumps
from k3stack.guard.prefix import Cause, PrefixWatch, Repeat
from k3stack.guard.rendered import BLOCK_BYTES, common_bytes, render
from k3stack.xtml import encode, segments_text
from tests.guard.answers import DELETE, NOOP, WEATHER

SYSTEM = "You are a careful assistant. " * 20
CALL = {"id": "c1", "type": "function", "function": {"name": "noop", "arguments": "{}"}}
TURN = [
    {"role": "user", "content": "first question"},
    {"role": "assistant", "content": "", "reasoning_content": "let me think", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "result " * 50},
]


def conversation(**changes: Any) -> dict[str, Any]:
    body = {"messages": [{"role": "system", "content": SYSTEM}, *TURN], "tools": [WEATHER, DELETE, NOOP]}
    return copy.deepcopy(body | changes)


def compare(first: dict[str, Any], second: dict[str, Any]) -> Repeat:
    watch = PrefixWatch()
    watch.see("key", render(parse_chat_request(dumps(first))))
    return watch.see("key", render(parse_chat_request(dumps(second))))


def with_system(text: str) -> dict[str, Any]:
    body = conversation()
    body["messages"][0]["content"] = text + SYSTEM
    return body


def test_the_next_turn_continues() -> None:
    longer = conversation()
    longer["messages"] += [
        {"role": "assistant", "content": "done", "reasoning": "r"},
        {"role": "user", "content": "x"},
    ]
    repeat = compare(conversation(), longer)
    assert repeat.cause is Cause.CONTINUES and repeat.repeated_bytes == repeat.known_bytes < repeat.total_bytes


@pytest.mark.parametrize("field", ["tool_choice", "response_format", "max_tokens"])
def test_what_stands_at_the_end_costs_nothing(field: str) -> None:
    values = {"tool_choice": "required", "response_format": {"type": "json_object"}, "max_tokens": 5}
    assert compare(conversation(), conversation(**{field: values[field]})).cause is Cause.CONTINUES


@pytest.mark.parametrize(
    ("second", "cause", "where"),
    [
        (conversation(tools=[WEATHER, NOOP, DELETE]), Cause.TOOLS_REORDERED, "the tools"),
        (conversation(tools=[WEATHER, DELETE]), Cause.TOOLS_CHANGED, "the tools"),
        (conversation(reasoning_effort="low"), Cause.EFFORT_CHANGED, "the thinking effort"),
        (conversation(messages=[{"role": "system", "content": SYSTEM}, {"role": "user", "content": "other"}]),
         Cause.NEW_CONVERSATION, "messages[1] (user)"),
        (with_system("Be brief. "), Cause.SYSTEM_CHANGED, "messages[0] (system)"),
    ],
)  # fmt: skip
def test_each_cause_is_told_apart(second: dict[str, Any], cause: Cause, where: str) -> None:
    repeat = compare(conversation(), second)
    assert (repeat.cause, repeat.where) == (cause, where)
    assert repeat.repeated_bytes < repeat.total_bytes


def test_a_time_and_an_id_in_the_system_prompt_are_named() -> None:
    repeat = compare(with_system("It is 2026-11-29T16:45:01Z. "), with_system("It is 2026-11-29T16:47:30Z. "))
    assert repeat.cause is Cause.TIME_IN_SYSTEM and "16:47:30" in repeat.detail and "16:45:01" in repeat.detail
    one, other = "2f1c9d0e-1111-4222-8333-444455556666", "3f1c9d0e-1111-4222-8333-444455556666"
    assert compare(with_system(f"Session {one}. "), with_system(f"Session {other}. ")).cause is Cause.ID_IN_SYSTEM
    # A number elsewhere that happens to look like a time is no reason.
    assert compare(with_system("at 10:30 eat plums"), with_system("at 10:30 eat pears")).cause is Cause.SYSTEM_CHANGED


def test_lost_reasoning_is_named() -> None:
    second = conversation()
    del second["messages"][2]["reasoning_content"]
    assert compare(conversation(), second).cause is Cause.REASONING_DROPPED
    second = conversation()
    second["messages"][3]["content"] = "shortened"
    repeat = compare(conversation(), second)
    assert (repeat.cause, repeat.where) == (Cause.HISTORY_CHANGED, "messages[3] (tool)")


def test_another_image_is_another_prompt() -> None:
    def seen(url: str) -> dict[str, Any]:
        body = conversation()
        body["messages"][1]["content"] = [{"type": "image_url", "image_url": {"url": url}}]
        return body

    assert compare(seen("data:image/png;base64,aaaa"), seen("data:image/png;base64,bbbb")).cause.value != "continues"
    assert compare(seen("data:image/png;base64,aaaa"), seen("data:image/png;base64,aaaa")).cause is Cause.CONTINUES


def test_keys_are_kept_apart_and_never_kept() -> None:
    watch = PrefixWatch()
    prompt = render(parse_chat_request(dumps(conversation())))
    watch.see("sk-one", prompt)
    assert watch.see("sk-two", prompt).cause is Cause.FIRST
    assert watch.see("sk-one", prompt).cause is Cause.CONTINUES
    assert "sk-one" not in repr(vars(watch))


def test_memory_is_bounded() -> None:
    watch = PrefixWatch(max_bytes=300_000, per_key=8)
    for number in range(200):
        watch.see(f"key {number % 20}", render(parse_chat_request(dumps(with_system(str(number) * 5000)))))
        assert watch.size_bytes <= 300_000 + 80_000
    assert watch.size_bytes > 0
    for key in range(300):
        watch.see(f"other {key}", render(parse_chat_request(dumps(conversation()))))
    assert len(watch._known) < 300


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 150_000), st.integers(0, 150_000), st.integers(0, 150_000))
def test_the_common_front_is_right(shared: int, one_rest: int, other_rest: int) -> None:
    def body(text: str) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": text}]}

    one, other = body("x" * shared + "a" * one_rest), body("x" * shared + "b" * other_rest)
    texts = [segments_text(encode(each["messages"], add_generation_prompt=False)).encode() for each in (one, other)]
    true = next((at for at, pair in enumerate(zip(*texts, strict=False)) if pair[0] != pair[1]), len(min(texts)))
    found = common_bytes(*(render(parse_chat_request(dumps(each))) for each in (one, other)))
    assert found <= true + BLOCK_BYTES and found > true - BLOCK_BYTES
    if true < 60_000:
        assert found == true
