"""What two engines made of malformed completions, through the guard; and the completions themselves, raw."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import pytest

from k3stack.guard import Policy, Source
from tests.guard.answers import PARIS, Answer, Got, body, call, run_stream, run_whole, xtml_cases

ENGINES = ("vllm_full", "vllm_stream", "sglang_full", "sglang_stream")
RAW_GOOD = (
    "why<|close|>think<|sep|><|open|>response<|sep|><|close|>response<|sep|><|open|>tools<|sep|>"
    '<|open|>call tool="get_weather" index="1"<|sep|><|open|>argument key="city" type="string"<|sep|>Paris'
    "<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>"
)

# The engine's parser merged calls, injected arguments, cut text or lost a call, and nothing of it shows outside.
INVISIBLE = {14: "all", 16: "all", 19: "all", 25: "all", 37: "all", 5: "sglang_stream", 40: "sglang_stream"}


def fails_to_validate(case: dict[str, Any], got: Got) -> list[str]:
    """What a careful client would object to."""
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in case["tools"]}
    wrong = []
    for name, arguments in got.calls:
        if name not in schemas:
            wrong.append(f"undeclared {name}")
        elif not jsonschema_rs.is_valid(schemas[name], json.loads(arguments, parse_constant=_refuse)):
            wrong.append(f"invalid {name}{arguments}")
    return wrong


def _refuse(name: str) -> Any:
    raise AssertionError(f"{name} is not JSON")


def play(case: dict[str, Any], answer: Answer, good: Answer, streamed: bool, piece: int, policy: Policy) -> Got:
    """The case's answer, and a good one in case the guard asks again."""
    fields = {"tools": case["tools"] or None, "tool_choice": case["tool_choice"], "stream": streamed}
    request = body(**fields)

    def attempt(answers: list[Answer]) -> Got:
        if streamed:
            return run_stream([list(each.chunks(piece)) for each in answers], request, policy)[0]
        return run_whole([each.whole() for each in answers], request, policy)[0]

    try:
        return attempt([answer])
    except IndexError:  # it asked again
        return attempt([answer, good])


def as_wanted(case: dict[str, Any], got: Got) -> bool:
    want = case["want"]
    calls = [(each["name"], each["arguments"]) for each in want["tool_calls"]]
    return (
        got.reasoning == (want["reasoning"] or "")
        and got.content == (want["content"] or "")
        and [(name, json.loads(arguments)) for name, arguments in got.calls] == calls
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_what_engines_make_of_it_reaches_the_client_valid(engine: str) -> None:
    for case in xtml_cases():
        made = case["got"][engine]
        answer = Answer(
            made["reasoning"],
            made["content"],
            [(each["name"], each["arguments"]) for each in made["tool_calls"]],
            reason="length" if "truncated" in case["want"]["problems"] else None,
            reasoning_field="reasoning" if "vllm" in engine else "reasoning_content",
        )
        for piece in (1, 3, 1000) if engine.endswith("stream") else (1000,):
            got = play(case, answer, Answer(calls=[call()]), engine.endswith("stream"), piece, Policy())
            where = f"case {case['id']} {engine} piece {piece}: {got}"
            assert got.error is None and got.done, where
            assert not fails_to_validate(case, got), where
            if got.verdict in ("clean", "repaired") and INVISIBLE.get(case["id"]) not in ("all", engine):
                markers_in_want = "<|" in str(case["want"])
                assert markers_in_want or "<|" not in got.content, where
                assert len(got.calls) == len(case["want"]["tool_calls"]), where


@pytest.mark.parametrize("streamed", [False, True])
def test_raw_completions_come_out_as_wanted_or_are_asked_again(streamed: bool) -> None:
    policy = Policy(source=Source.RAW)
    asked_again = set()
    for case in xtml_cases():
        truncated = "truncated" in case["want"]["problems"]
        answer = Answer(None, case["raw"], reason="length" if truncated else None)
        for piece in (1, 7, 1000) if streamed else (1000,):
            got = play(case, answer, Answer(None, RAW_GOOD), streamed, piece, policy)
            where = f"case {case['id']} piece {piece}: {got}"
            assert not fails_to_validate(case, got) and got.error is None, where
            if got.verdict == "resampled":
                asked_again.add(case["id"])
            elif case["id"] not in (11, 41):  # repaired: "True" to true, and the prefix of a name stripped
                # A stream cannot take reasoning back once it is out; the answer is complete all the same.
                assert as_wanted(case, got) or (streamed and got.content == case["want"]["content"]), where
    assert asked_again == {8, 10, 13, 14, 17, 26, 28}


def test_held_reasoning_is_never_shown_as_the_wrong_thing() -> None:
    policy = Policy(hold_reasoning=True)
    for case in xtml_cases():
        made = case["got"]["vllm_stream"]
        if case["id"] not in (4, 5, 40):
            continue
        got = play(case, Answer(made["reasoning"], made["content"]), Answer(calls=[call()]), True, 3, policy)
        assert as_wanted(case, got), got


LEAKED = (
    '<|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|><|open|>argument key="city" '
    'type="string"<|sep|>Paris<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>'
)


@pytest.mark.parametrize("streamed", [False, True])
def test_a_leaked_call_is_recovered_only_where_it_is_clear(streamed: bool) -> None:
    case = {"tools": json.loads(body())["tools"], "tool_choice": "auto"}
    good = Answer(calls=[call('{"city": "Rome"}')])
    got = play(case, Answer("why", "ok" + LEAKED), good, streamed, 3, Policy())
    assert (got.content, got.calls, got.reason) == ("ok", [("get_weather", PARIS)], "tool_calls")
    assert got.flag is not None and got.flag["repairs"] == ["recovered_call"]
    # the same call in its place and as text: one call; another one as text: nobody can tell
    got = play(case, Answer("why", "ok" + LEAKED, [call()]), good, streamed, 3, Policy())
    assert got.calls == [("get_weather", PARIS)]
    got = play(case, Answer("why", "ok" + LEAKED, [call("{}", "noop")]), good, streamed, 3, Policy())
    assert got.calls == [("get_weather", '{"city": "Rome"}')] and got.verdict == "resampled"


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("text", ["a <", "<|", "x <|open|", "use <|open|>call tool=<|sep|> here", "1 <| 2 <|sep|> 3"])
def test_text_that_only_looks_like_a_marker_stays(streamed: bool, text: str) -> None:
    case = {"tools": json.loads(body())["tools"], "tool_choice": "auto"}
    for piece in (1, 1000):
        got = play(case, Answer("why", text), Answer(), streamed, piece, Policy())
        assert got.content == text, got
