"""The parsing rules, one by one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.xtml import strategies
from tests.xtml.laws import check
from tests.xtml.strategies import argument, call, closer, opener

import k3stack
from k3stack.errors import UsageError
from k3stack.xtml import (
    Argument,
    CallDropped,
    CallEnd,
    CallStart,
    Channel,
    ContentDelta,
    Correction,
    Message,
    Parser,
    Problem,
    ProblemCode,
    ReasoningDelta,
    parse,
)
from k3stack.xtml.engines.corpus import Case, load_corpus

HEAD = "t" + closer("think") + opener("response") + closer("response") + opener("tools")
END = closer("message")
CALL = call("read_file", argument("path", "a"))
SHARED_CASES = Path(__file__).parents[3] / "shared" / "data" / "xtml_cases.json"
FOUND_BY_FUZZING = sorted((Path(__file__).parent / "fuzz_corpus").iterdir())


def codes(message: Message) -> set[str]:
    return {str(code) for code in message.problems}


def arguments_of(text: str) -> dict[str, Any]:
    (made,) = parse(text, tools=strategies.TOOLS).tool_calls
    return made.arguments


@pytest.mark.parametrize("case", load_corpus(), ids=lambda case: case.id)
def test_every_case_of_the_corpus(case: Case) -> None:
    assert case.parse() == case.want
    for step in (1, 2, 5):
        parser = Parser(case.starts_in, tools=case.tools, tool_choice=case.tool_choice)
        for at in range(0, len(case.raw), step):
            parser.feed(case.raw[at : at + step])
        parser.finish()
        assert parser.message == case.want


def test_the_corpus_shows_every_problem() -> None:
    assert {code for case in load_corpus() for code in case.want.problems} == set(ProblemCode)


@pytest.mark.skipif(not SHARED_CASES.exists(), reason="the published cases are not beside this repository")
def test_the_published_cases() -> None:
    for case in json.loads(SHARED_CASES.read_text()):
        message = parse(case["raw"], case["starts_in"], tools=case["tools"], tool_choice=case["tool_choice"])
        got = {
            "reasoning": message.reasoning,
            "content": message.content,
            "tool_calls": [{"name": made.name, "arguments": made.arguments} for made in message.tool_calls],
            "problems": codes(message),
        }
        assert got == {**case["want"], "problems": set(case["want"]["problems"])}, case["title"]


@pytest.mark.parametrize("path", FOUND_BY_FUZZING, ids=lambda path: path.name[:8])
def test_what_the_fuzzer_kept(path: Path) -> None:
    check(path.read_bytes())


# Reasoning.


def test_a_think_close_at_the_very_end_makes_everything_before_it_reasoning() -> None:
    text = "a" + opener("response") + "b" + closer("response") + opener("tools") + CALL + closer("tools")
    message = parse(text + closer("think") + END, tools=strategies.TOOLS)
    assert message == Message(reasoning=text)


def test_a_correction_tells_the_whole_state() -> None:
    parser = Parser("think", tools=strategies.TOOLS)
    assert parser.feed("answer") == [ReasoningDelta("answer")]
    assert not parser.settled
    events = parser.feed(closer("response"))
    assert events[0] == Correction(Message(content="answer"))
    assert events[1] == Problem(ProblemCode.SKIPPED_THINK)
    events = parser.feed(" no" + closer("think"))
    assert events == [Correction(Message(reasoning="answer" + closer("response") + " no"))]
    assert parser.settled


def test_tools_without_a_call_do_not_end_reasoning() -> None:
    text = "a" + opener("tools") + closer("tools")
    assert parse(text + END, tools=["f"]).reasoning == text
    assert codes(parse(text + END, tools=["f"])) == {"unclosed_think"}


def test_a_tools_marker_at_the_cut_off_end_of_reasoning_is_not_text() -> None:
    assert parse("a" + opener("tools"), tools=["f"]) == Message("a", problems=frozenset({ProblemCode.TRUNCATED}))


# Content.


def test_a_call_inside_the_response_is_text() -> None:
    message = parse(CALL + closer("response") + END, "response", tools=strategies.TOOLS)
    assert (message.content, message.tool_calls, message.problems) == (CALL, (), frozenset())


def test_a_message_close_inside_the_response_is_text_unless_it_is_the_end() -> None:
    text = "It ends with " + END + " there."
    assert parse(text + closer("response") + END, "response").content == text
    assert codes(parse("It ends" + END, "response")) == {"unclosed_response"}


def test_only_the_last_end_of_message_is_no_text() -> None:
    message = parse("ok" + "<|end_of_msg|>" * 2, "response")
    assert (message.content, codes(message)) == ("ok<|end_of_msg|>", {"truncated"})


def test_a_cut_off_tools_open_ends_the_response() -> None:
    message = parse("ok" + opener("tools"), "response", tools=["f"])
    assert (message.content, codes(message)) == ("ok", {"truncated", "unclosed_response", "empty_tools"})


def test_space_between_tools_and_call_outside_the_response_is_only_stray() -> None:
    message = parse("ok" + closer("response") + opener("tools") + "\n" + CALL + closer("tools") + END, "response",
                    tools=strategies.TOOLS)  # fmt: skip
    assert (message.content, len(message.tool_calls), codes(message)) == ("ok\n", 1, {"stray_text"})


def test_a_close_of_nothing_leaves_no_markup() -> None:
    message = parse("t" + closer("think") + "ok" + closer("response") + END)
    assert (message.content, codes(message)) == ("ok", {"stray_text"})


# Calls.


@pytest.mark.parametrize(
    "following", [opener("argument", ' key="b" type="string"') + "y" + closer("argument"), ""]
)
def test_a_value_ends_at_the_first_close_with_something_allowed_behind_it(following: str) -> None:
    quoted = "x" + closer("argument") + " and " + closer("argument") + closer("argument") + "y"
    text = HEAD + call("read_file", argument("path", quoted) + following) + closer("tools") + END
    message = parse(text, tools=strategies.TOOLS)
    assert message.tool_calls[0].arguments["path"] == quoted
    assert codes(message) == {"ambiguous_marker"}


def test_no_argument_moves_to_another_call() -> None:
    open_call = opener("call", ' tool="delete_file" index="1"') + opener("argument", ' key="path" type="string"')
    message = parse(HEAD + open_call + "secret" + END, tools=strategies.TOOLS)
    assert message.tool_calls == ()
    message = parse(HEAD + open_call + "secret" + CALL + closer("tools") + END, tools=strategies.TOOLS)
    assert [made.name for made in message.tool_calls] == ["delete_file"]
    assert "ambiguous_marker" in codes(message)


def test_a_forgotten_close_loses_that_call_only() -> None:
    broken = opener("call", ' tool="read_file" index="1"') + opener("argument", ' key="path" type="string"') + "x"
    rest = closer("call") + call("get_weather") + closer("tools")
    message = parse(HEAD + broken + rest + END, tools=strategies.TOOLS)
    assert [made.name for made in message.tool_calls] == ["get_weather"]
    assert codes(message) == {"unclosed_call", "ambiguous_marker"}


def test_a_cut_off_value_gives_no_call_away() -> None:
    broken = opener("call", ' tool="read_file" index="1"') + opener("argument", ' key="path" type="string"') + "x"
    message = parse(HEAD + broken + call("delete_file") + " and", tools=strategies.TOOLS)
    assert (message.tool_calls, codes(message)) == ((), {"truncated", "unclosed_call"})


@pytest.mark.parametrize(
    ("cut", "returned"),
    [("", True), ("<|close|>", True), ("<|close|>ca", True), ("<|open|>call", True)]
    + [(cut, False) for cut in ("<|open|>", "<|open|>arg", '<|open|>argument key="', "<|open|>json")],
)
def test_a_cut_off_call_is_returned_unless_an_argument_may_have_begun(cut: str, returned: bool) -> None:
    message = parse(HEAD + opener("call", ' tool="read_file" index="1"') + cut, tools=strategies.TOOLS)
    assert bool(message.tool_calls) == returned
    assert codes(message) == {"truncated", "unclosed_call"}


def test_an_unfinished_call_is_announced_and_dropped() -> None:
    parser = Parser("think", tools=strategies.TOOLS)
    parser.feed(HEAD)
    assert parser.feed(opener("call", ' tool="read_file"')) == [CallStart(0, "read_file")]
    parser.feed(opener("argument", ' key="path" type="string"') + "x")
    assert CallDropped(0) in parser.finish()


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        *(("number", "3", 3), ("number", " -0.5e1 ", -5.0), ("number", "9" * 308, int("9" * 308))),
        *(
            ("boolean", "true", True),
            ("null", "null", None),
            ("object", '{"a": [1]}', {"a": [1]}),
            ("array", "[]", []),
        ),
    ],
)
def test_values_of_every_type(kind: str, text: str, value: object) -> None:
    assert arguments_of(HEAD + call("read_file", argument("path", text, kind))) == {"path": value}


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        *(("number", "true"), ("number", '"3"'), ("number", "3,5"), ("number", "Infinity"), ("number", "0x1")),
        *(("number", "9" * 400), ("number", "9" * 5000), ("boolean", "1"), ("null", ""), ("object", "[]")),
        *(("array", "{}"), ("array", "[NaN]"), ("array", "[" * 300 + "]" * 300), ("array", "[" * 100_000)),
        ("integer", "3"),
    ],
)
def test_bad_values_stay_text(kind: str, text: str) -> None:
    message = parse(HEAD + call("read_file", argument("path", text, kind)) + closer("tools") + END, tools=None)
    assert message.tool_calls[0].arguments == {"path": text}
    assert codes(message) == {"bad_value"}


@pytest.mark.parametrize("body", ["[1]", "{", '{"a": NaN}', ""])
def test_a_json_block_that_is_no_object_returns_no_call(body: str) -> None:
    block = opener("json", ' type="object"') + body + closer("json")
    message = parse(HEAD + call("read_file", block) + closer("tools") + END, tools=None)
    assert (message.tool_calls, codes(message)) == ((), {"bad_value"})


def test_every_name_is_accepted_when_the_tools_are_not_known() -> None:
    message = parse(HEAD + call("anything") + closer("tools") + END, tools=None)
    assert (message.tool_calls[0].name, message.problems) == ("anything", frozenset())


def test_an_unexpected_call_leaves_no_event_but_a_problem() -> None:
    parser = Parser("response", tools=strategies.TOOLS, tool_choice={"type": "none"})
    events = parser.feed(closer("response") + opener("tools") + CALL + closer("tools"))
    assert events == [Problem(ProblemCode.UNEXPECTED_CALL)]


def test_strict_json_even_for_half_a_surrogate_pair() -> None:
    made = parse(HEAD + call("f", argument("o", '{"a": "\\ud800"}', "object")) + closer("tools"), tools=None)
    assert json.loads(made.tool_calls[0].arguments_json.encode()) == {"o": {"a": "\ud800"}}


# The parser as an object.


def test_the_package_needs_the_standard_library_only() -> None:
    # -S: without site-packages nothing else can be imported.
    script = "import k3stack.xtml as xtml; print(xtml.parse('a').reasoning)"
    environment = {"PYTHONPATH": str(Path(k3stack.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-S", "-c", script], capture_output=True, text=True, env=environment)
    assert (done.stdout, done.stderr) == ("a\n", "")


def test_a_call_ends_as_soon_as_its_close_comes() -> None:
    parser = Parser("think", tools=strategies.TOOLS)
    parser.feed(HEAD + CALL[:-1])
    assert [type(event) for event in parser.feed(">")] == [Argument, CallEnd]


def test_text_that_spells_a_marker_stays_text_in_ids() -> None:
    from tests.xtml.laws import VOCABULARY

    parser = Parser("response", vocabulary=VOCABULARY)
    parser.feed_ids(closer("response").encode())
    assert parser.message.content == closer("response")


def test_ids_need_a_vocabulary() -> None:
    with pytest.raises(UsageError, match="vocabulary"):
        Parser("think").feed_ids([1])


def test_an_unknown_channel_is_refused() -> None:
    channel: Channel = "tools"  # type: ignore[assignment]
    with pytest.raises(UsageError, match="think or response"):
        Parser(channel)


def test_nothing_happens_behind_the_end() -> None:
    parser = Parser("response")
    assert parser.feed("a") == [ContentDelta("a")]
    assert parser.finish()[-1].message == parser.message  # type: ignore[union-attr]
    assert (parser.feed("b"), parser.finish()) == ([], [])
    assert parser.message.content == "a"
