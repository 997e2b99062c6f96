"""The guard's decisions, streamed and whole: the same answer must end the same way in both forms."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from k3stack.guard import OnExhausted, Policy
from tests.guard.answers import PARIS, TOOLS, Answer, body, call, run, run_stream, run_whole, sse

BOTH = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
GOOD = Answer(calls=[call()])


@BOTH
def test_a_clean_call_goes_through_with_its_text(streamed: bool) -> None:
    got, guard = run([Answer("thinking", "let me look", [call()])], streamed)
    assert (got.reasoning, got.content, got.calls) == ("thinking", "let me look", [("get_weather", PARIS)])
    assert (got.reason, got.verdict, got.flag) == ("tool_calls", "clean", None)
    assert guard.report.first_calls == guard.report.first_valid == guard.report.sent_calls == 1


@BOTH
@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_reasoning_goes_out_under_both_names(streamed: bool, field: str) -> None:
    got, _ = run([Answer("thinking", "hello", reasoning_field=field)], streamed)
    assert (got.reasoning, got.content, got.reason) == ("thinking", "hello", "stop")


@BOTH
@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (call('{"city": NaN}'), "not_json"),
        (call('{"city": "Paris", "days": 1e999}'), "not_json"),
        (call('{"city": "Paris", "days": Infinity}'), "not_json"),
        (call('{"city": "Paris"'), "not_json"),
        (call('["Paris"]'), "not_an_object"),
        (call('{"city": "Paris", "city": "Rome"}'), "duplicate_key"),
        (call('{"city": "Paris", "days": 0}'), "schema"),
        (call('{"days": 3}'), "schema"),
        (call('{"city": "Paris", "undeclared": 1}'), "schema"),
        (call('{"city": "a<|close|>argument<|sep|>b"}'), "marker_in_call"),
        (call('{"city": "a\\u003c|close|>b"}'), "marker_in_call"),
        (call(name="rm_rf"), "undeclared_tool"),
        (call(name=""), "missing_name"),
    ],
)
def test_a_bad_call_is_asked_again_and_never_seen(streamed: bool, bad: tuple[str, ...], problem: str) -> None:
    got, guard = run([Answer(calls=[bad]), GOOD], streamed)
    assert got.calls == [("get_weather", PARIS)]
    assert got.verdict == "resampled"
    assert got.flag is not None and problem in got.flag["problems"]
    assert guard.report.first_valid == 0 and guard.report.first_calls == 1


@BOTH
def test_one_bad_call_among_two_spoils_both(streamed: bool) -> None:
    got, _ = run([Answer(calls=[call(), call("{}")]), GOOD], streamed)
    assert got.calls == [("get_weather", PARIS)]


@BOTH
@pytest.mark.parametrize(
    ("sent", "name", "arguments", "repair"),
    [
        (call('{"city": "Paris", "days": "3"}'), "get_weather", {"city": "Paris", "days": 3}, "coerced"),
        (call('{"city": 75001}'), "get_weather", {"city": "75001"}, "coerced"),
        (
            call('{"path": "a", "force": "True"}', "delete_file"),
            "delete_file",
            {"path": "a", "force": True},
            "coerced",
        ),
        (call(PARIS, "functions.get_weather"), "get_weather", {"city": "Paris"}, "prefix_stripped"),
        (call("", "noop"), "noop", {}, "empty_arguments"),
    ],
)
def test_what_has_one_meaning_is_repaired_and_flagged(
    streamed: bool, sent: tuple[str, ...], name: str, arguments: dict[str, Any], repair: str
) -> None:
    got, guard = run([Answer(calls=[sent])], streamed)
    assert [(got.calls[0][0], json.loads(got.calls[0][1]))] == [(name, arguments)]
    assert got.flag == {"verdict": "repaired", "problems": [], "repairs": [repair], "resamples": 0}
    assert guard.report.first_valid == 0


@BOTH
def test_coercion_can_be_switched_off(streamed: bool) -> None:
    bad = Answer(calls=[call('{"city": "Paris", "days": "3"}')])
    got, _ = run([bad, GOOD], streamed, Policy(coerce=False))
    assert got.calls == [("get_weather", PARIS)]


@BOTH
@pytest.mark.parametrize("call_id", ["get_weather:0", "functions.get_weather:3", "exec.1", "", "old"])
def test_ids_are_unique_and_opaque(streamed: bool, call_id: str) -> None:
    history = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "tool_calls": [{"id": "old", "type": "function", "function": {"name": "noop"}}]},
    ]
    got, guard = run([Answer(calls=[call(PARIS, "get_weather", call_id)])], streamed, messages=history)
    assert got.ids[0].startswith("call_") and len(got.ids[0]) > 20
    assert got.flag is not None and got.flag["repairs"] == ["new_id"]
    assert guard.report.first_valid == 1, "an id is no fault of the model's"


@BOTH
def test_two_calls_with_one_id_get_two(streamed: bool) -> None:
    got, _ = run([Answer(calls=[call(call_id="same"), call('{"city": "Rome"}', call_id="same")])], streamed)
    assert len(set(got.ids)) == 2 and got.ids[0] == "same"


@BOTH
@pytest.mark.parametrize("on_exhausted", list(OnExhausted))
def test_exhausted(streamed: bool, on_exhausted: OnExhausted) -> None:
    bad = Answer(calls=[call('{"days": 3}')])
    got, guard = run([bad, bad], streamed, Policy(on_exhausted=on_exhausted))
    if on_exhausted is OnExhausted.PASS:
        assert got.calls == [("get_weather", '{"days": 3}')]
        assert got.verdict == "exhausted" and got.error is None and got.done
    else:
        assert got.error is not None and got.error["code"] == "tool_call_invalid" and not got.calls
        assert "'city' is a required property" in got.error["message"].replace('"', "'")
    assert guard.report.resamples == 1


@BOTH
def test_what_is_no_json_is_never_sent(streamed: bool) -> None:
    bad = Answer(calls=[call('{"city": NaN}')])
    got, _ = run([bad, bad], streamed)
    assert got.error is not None and got.error["code"] == "tool_call_invalid" and "NaN" in got.error["message"]
    assert not got.calls and (streamed is False or not got.done)


@BOTH
def test_the_better_of_two_bad_attempts_is_passed(streamed: bool) -> None:
    got, _ = run([Answer(calls=[call('{"days": 3}')]), Answer(calls=[call('{"city": NaN}')])], streamed)
    assert got.calls == [("get_weather", '{"days": 3}')] and got.verdict == "exhausted"


@BOTH
def test_no_resample_after_length(streamed: bool) -> None:
    cut = Answer(calls=[call(), call('{"city": "Pa')], reason="length")
    got, _ = run([cut], streamed)
    assert got.calls == [("get_weather", PARIS)] and got.reason == "length"
    assert got.flag is not None and got.flag["problems"] == ["cut_call", "not_json"]


@BOTH
def test_no_resample_at_temperature_zero(streamed: bool) -> None:
    got, _ = run([Answer(calls=[call('{"days": 3}')])], streamed, temperature=0)
    assert got.verdict == "exhausted"


@BOTH
@pytest.mark.parametrize("resamples", [0, 1, 2])
def test_as_many_attempts_as_allowed(streamed: bool, resamples: int) -> None:
    bad = Answer(calls=[call('{"days": 3}')])
    got, guard = run([bad] * (resamples + 1), streamed, Policy(resamples=resamples))
    assert got.verdict == "exhausted" and guard.report.resamples == resamples


@BOTH
def test_no_resample_past_the_time_limit(streamed: bool) -> None:
    got, _ = run([Answer(calls=[call('{"days": 3}')])], streamed, Policy(resample_within_s=0.0))
    assert got.verdict == "exhausted"


@BOTH
def test_usage_is_the_sum_of_attempts(streamed: bool) -> None:
    bad = Answer(calls=[call('{"days": 3}')])
    if streamed:
        request = body(stream=True, stream_options={"include_usage": True})
        got, _ = run_stream([list(each.chunks(usage=True)) for each in (bad, GOOD)], request)
    else:
        got, _ = run([bad, GOOD], streamed)
    assert got.usage == {"prompt_tokens": 20, "completion_tokens": 10, "total_tokens": 30}


@BOTH
@pytest.mark.parametrize("choice", ["none", None])
def test_a_call_nobody_asked_for_is_dropped(streamed: bool, choice: str | None) -> None:
    fields: dict[str, Any] = {"tool_choice": "none"} if choice else {"tools": None}
    got, _ = run([Answer(content="hello", calls=[call()])], streamed, **fields)
    assert got.calls == [] and got.content == "hello" and got.reason == "stop"
    assert got.flag is not None and "dropped_call" in got.flag["repairs"]


@BOTH
@pytest.mark.parametrize(
    ("choice", "first", "problem"),
    [
        ("required", Answer(content="no"), "no_call"),
        (
            {"type": "function", "function": {"name": "get_weather"}},
            Answer(calls=[call("{}", "noop")]),
            "wrong_tool",
        ),
    ],
)
def test_the_tool_choice_is_kept(streamed: bool, choice: Any, first: Answer, problem: str) -> None:
    got, _ = run([first, GOOD], streamed, tool_choice=choice)
    assert got.calls == [("get_weather", PARIS)]
    assert got.flag is not None and got.flag["problems"] == [problem]


@BOTH
def test_parallel_calls_only_where_allowed(streamed: bool) -> None:
    two = Answer(calls=[call(), call("{}", "noop")])
    got, _ = run([two], streamed)
    assert len(got.calls) == 2 and got.verdict == "clean"
    got, _ = run([two, GOOD], streamed, parallel_tool_calls=False)
    assert len(got.calls) == 1 and got.verdict == "resampled"


@BOTH
def test_reasoning_without_an_answer_is_asked_again(streamed: bool) -> None:
    got, _ = run([Answer("why"), Answer("because", "so")], streamed)
    assert got.content == "so" and got.verdict == "resampled"
    got, _ = run([Answer("why"), Answer("why")], streamed, Policy(on_exhausted=OnExhausted.ERROR))
    assert got.verdict == "exhausted" and got.done


def test_a_stream_never_mixes_the_words_of_two_attempts() -> None:
    first = Answer("r1", "I will look.", [call('{"days": 3}')])
    got, _ = run([first, Answer("r2", "Looking.", [call()])], streamed=True)
    assert (got.reasoning, got.content, got.roles) == ("r1", "I will look.", 1)
    assert got.calls == [("get_weather", PARIS)] and len(got.response_ids) == 1
    got, _ = run([first, Answer("r2", "It is sunny.")], streamed=True)
    assert got.content == "I will look." and got.verdict == "exhausted"
    got, _ = run([Answer("r1", None, [call('{"days": 3}')]), Answer("r2", "It is sunny.")], streamed=True)
    assert got.content == "It is sunny." and got.reason == "stop" and got.verdict == "resampled"


def test_a_whole_answer_is_replaced_as_a_whole() -> None:
    first = Answer("r1", "I will look.", [call('{"days": 3}')])
    got, _ = run([first, Answer("r2", "Looking.", [call()])], streamed=False)
    assert (got.reasoning, got.content) == ("r2", "Looking.")


def test_text_streams_at_once_and_calls_do_not() -> None:
    from k3stack.guard import StreamGuard, parse_chat_request

    guard = StreamGuard(parse_chat_request(body(stream=True)), Policy())
    *chunks, finish, done = Answer("why", "hello", [call()]).chunks(piece=1, argument_piece=2)
    for chunk in chunks:
        sent = guard.feed(chunk)
        assert (b"tool_calls" in chunk) == (sent == b"")
    assert b"Paris" in guard.feed(finish)
    assert guard.feed(done) == b"data: [DONE]\n\n"
    assert guard.report.max_held_bytes >= len(PARIS)


def test_plain_content_goes_out_byte_for_byte() -> None:
    from k3stack.guard import StreamGuard, parse_chat_request

    guard = StreamGuard(parse_chat_request(body(stream=True)), Policy())
    odd = b'data:  {"choices": [ {"index":0,"delta":{"content":"x <b> y"},"finish_reason":null} ], "id":"1"}\n\n'
    assert guard.feed(odd) == odd


def test_fragments_of_two_calls_may_interleave_and_share_an_index() -> None:
    def chunk(*fragments: dict[str, Any], reason: str | None = None) -> bytes:
        delta = {"tool_calls": list(fragments)} if fragments else {}
        base = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "k3"}
        return sse({**base, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]})

    def part(index: int, arguments: str, name: str = "", call_id: str = "") -> dict[str, Any]:
        return {"index": index, "id": call_id or None, "function": {"name": name or None, "arguments": arguments}}

    stream = [
        chunk(part(0, '{"city":', "get_weather", "aa")),
        chunk(part(1, '{"city":', "get_weather", "bb"), part(0, ' "Paris"')),
        chunk(part(1, ' "Rome"}'), part(0, "}")),
        chunk(part(0, '{"city": "Oslo"}', "get_weather", "cc")),
        chunk(reason="tool_calls"),
    ]
    got, _ = run_stream([stream])
    cities = [json.loads(arguments)["city"] for _, arguments in got.calls]
    assert sorted(cities) == ["Oslo", "Paris", "Rome"]


@pytest.mark.parametrize(
    ("tail", "code"),
    [
        (b"", "upstream_cut"),
        (b'data: {"id": "1", "cho', "upstream_malformed"),
        (b"data: not json\n\n", "upstream_malformed"),
        (b"data: [1, 2]\n\n", "upstream_malformed"),
        (b'data: {"choices": [1]}\n\n', "upstream_malformed"),
    ],
)
def test_a_broken_stream_ends_in_an_error_and_no_call(tail: bytes, code: str) -> None:
    *chunks, _, _ = Answer("why", "hello", [call()]).chunks()
    got, guard = run_stream([[*chunks, tail]])
    assert got.content == "hello" and not got.calls and not got.done
    assert got.error is not None and got.error["code"] == code
    assert guard.report.verdict == "failed"


def test_a_resample_that_breaks_falls_back_on_the_first_attempt() -> None:
    bad = list(Answer(calls=[call('{"days": 3}')]).chunks())
    got, _ = run_stream([bad, [b""]])
    assert got.calls == [("get_weather", '{"days": 3}')] and got.verdict == "exhausted" and got.done


def test_an_error_event_is_passed_on() -> None:
    *chunks, _, _ = Answer("why", "hello").chunks()
    error = sse({"error": {"message": "engine died", "code": 500}})
    got, guard = run_stream([[*chunks, error]])
    assert got.error == {"message": "engine died", "code": 500} and guard.report.verdict == "failed"


def test_several_choices_are_judged_one_by_one_and_never_resampled() -> None:
    answer = json.loads(GOOD.whole())
    second = json.loads(Answer(calls=[call('{"days": 3}')]).whole())["choices"][0] | {"index": 1}
    answer["choices"].append(second)
    got, _ = run_whole([json.dumps(answer).encode()], body(n=2))
    assert got.verdict == "exhausted"


def test_an_answer_that_holds_too_much_is_an_error() -> None:
    big = Answer(calls=[call(json.dumps({"city": "x" * 5000}))])
    for streamed in (False, True):
        got, _ = run([big], streamed, Policy(max_held_bytes=1000))
        assert got.error is not None and got.error["code"] == "answer_too_large"


def test_a_fixed_seed_moves_on_and_nothing_else_changes() -> None:
    from k3stack.guard import parse_chat_request

    request = parse_chat_request(body(seed=7))
    assert json.loads(request.resample_body(1)) == json.loads(request.raw) | {"seed": 8}
    request = parse_chat_request(body())
    assert request.resample_body(1) is request.raw


def test_the_tools_of_system_messages_count() -> None:
    messages = [{"role": "system", "content": "x", "tools": TOOLS}, {"role": "user", "content": "y"}]
    got, _ = run([GOOD], True, tools=None, messages=messages)
    assert got.calls == [("get_weather", PARIS)] and got.verdict == "clean"


TEXTS = st.lists(
    st.one_of(
        st.text(max_size=8),
        st.sampled_from(
            ["<", "<|", "<|open|>", "\n", '"', "\\", "\x01", "\u2028", "\x7f", "é", "<|close|>think<|sep|>"]
        ),
    ),
    max_size=25,
)


def _chunks(reasoning: list[str], content: list[str], style: int) -> list[bytes]:
    """Chunks as vLLM, as SGLang (all fields, null where empty) and as a server with spaces writes them."""
    field = ["reasoning", "reasoning_content", "reasoning"][style]
    made: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    for name, texts in ((field, reasoning), ("content", content)):
        for text in texts:
            delta: dict[str, Any] = {name: text}
            nulls: dict[str, Any] = dict.fromkeys(("role", "content", field, "tool_calls")) if style == 1 else {}
            made.append({**nulls, **delta})
    base = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "k3"}
    chunks = [{**base, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in made]
    chunks.append({**base, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    separators = (", ", ": ") if style == 2 else (",", ":")
    raw = [b"data: " + json.dumps(each, ensure_ascii=style == 2, separators=separators).encode() for each in chunks]
    return [each + b"\n\n" for each in raw] + [b"data: [DONE]\n\n"]


@given(TEXTS, TEXTS, st.integers(0, 2), st.integers(1, 40))
@example(["0"], ["\r", "\r"], 0, 1)  # white space written as an escape is no answer
@example(["0"], [" ", " ", " "], 0, 40)
def test_the_fast_lane_changes_nothing(reasoning: list[str], content: list[str], style: int, size: int) -> None:
    chunks = _chunks(reasoning, content, style)
    blocks = [b"".join(chunks[start : start + size]) for start in range(0, len(chunks), size)]

    def play(lanes: int) -> tuple[Any, ...]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("k3stack.guard.stream._LANES", lanes)
            got, _ = run_stream([blocks], policy=Policy(resamples=0))
        return got.reasoning, got.content, got.reason, got.flag, got.done

    assert play(8) == play(0)
