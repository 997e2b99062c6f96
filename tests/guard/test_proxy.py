"""`k3 guard` in front of an upstream that misbehaves, seen through the real openai SDK."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from k3stack.ports import free_port
from tests.guard.answers import PARIS, TOOLS
from tests.guard.scripted import Guard, ScriptedUpstream, running_guard

BOTH = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
MESSAGES = [{"role": "user", "content": "weather?"}]


@pytest.fixture(scope="module")
def client(guard: Guard) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=guard.url + "/v1", api_key="sk-secret-of-mine", max_retries=0, timeout=20) as each:
        yield each


class Final:
    """What the SDK hands over in the end."""

    def __init__(self) -> None:
        self.content = ""
        self.reasoning = ""
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.ids: list[str] = []
        self.reason: str | None = None
        self.verdict = "clean"


def ask(client: openai.OpenAI, script: str, streamed: bool, **fields: Any) -> Final:
    """Ask through the SDK; every call's arguments must be JSON, or this fails."""
    final = Final()
    make: Any = client.chat.completions.create
    if not streamed:
        answer = make(model=script, messages=MESSAGES, tools=TOOLS, **fields)
        message = answer.choices[0].message
        final.content = message.content or ""
        final.reasoning = getattr(message, "reasoning_content", None) or ""
        final.calls = [(each.function.name, json.loads(each.function.arguments)) for each in message.tool_calls or ()]
        final.ids = [each.id for each in message.tool_calls or ()]
        final.reason = answer.choices[0].finish_reason
        final.verdict = (getattr(answer, "k3_guard", None) or {"verdict": "clean"})["verdict"]
        return final
    parts: dict[int, list[str]] = {}
    for chunk in make(model=script, messages=MESSAGES, tools=TOOLS, stream=True, **fields):
        final.verdict = (getattr(chunk, "k3_guard", None) or {"verdict": final.verdict})["verdict"]
        for choice in chunk.choices:
            final.content += choice.delta.content or ""
            final.reasoning += getattr(choice.delta, "reasoning_content", None) or ""
            final.reason = choice.finish_reason or final.reason
            for each in choice.delta.tool_calls or ():
                part = parts.setdefault(each.index, ["", "", ""])
                part[0] += each.id or ""
                part[1] += each.function.name or ""
                part[2] += each.function.arguments or ""
    final.calls = [(name, json.loads(arguments)) for _, name, arguments in parts.values()]
    final.ids = [part[0] for part in parts.values()]
    return final


@BOTH
@pytest.mark.parametrize(
    ("script", "verdict"),
    [
        ("good", "clean"),
        ("bad_schema", "resampled"),
        ("not_json", "resampled"),
        ("half_json", "resampled"),
        ("undeclared", "resampled"),
        ("leaked", "repaired"),
        ("length", "repaired"),
        ("slow", "clean"),
    ],
)
def test_the_client_gets_a_valid_call(client: openai.OpenAI, script: str, verdict: str, streamed: bool) -> None:
    final = ask(client, script, streamed)
    assert final.calls == [("get_weather", json.loads(PARIS))]
    assert final.verdict == verdict
    assert final.reason == ("length" if script == "length" else "tool_calls")
    assert final.reasoning == ("why" if script == "leaked" else "thinking")


@BOTH
def test_two_calls_at_once(client: openai.OpenAI, streamed: bool) -> None:
    final = ask(client, "two_calls", streamed)
    assert [arguments["city"] for _, arguments in final.calls] == ["Paris", "Rome"] and len(set(final.ids)) == 2
    final = ask(client, "same_ids", streamed)
    assert [name for name, _ in final.calls] == ["get_weather", "noop"] and len(set(final.ids)) == 2


@BOTH
def test_repairs_and_exhaustion_are_flagged(client: openai.OpenAI, streamed: bool) -> None:
    assert ask(client, "coerce", streamed).calls == [("get_weather", {"city": "Paris", "days": 3})]
    assert ask(client, "coerce", streamed).verdict == "repaired"
    final = ask(client, "always_bad", streamed)
    assert final.calls == [("get_weather", {"days": 3})] and final.verdict == "exhausted"
    assert ask(client, "bad_then_500", streamed).verdict == "exhausted"


@BOTH
@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("always_nan", "no valid tool call in 2 attempts"),
        ("malformed", "not"),
        ("cut", "broke off"),
        ("500", "engine died"),
    ],
)
def test_or_an_error_that_says_why(client: openai.OpenAI, script: str, why: str, streamed: bool) -> None:
    with pytest.raises(openai.APIError, match=why):
        ask(client, script, streamed)


def test_a_stream_without_its_end_is_an_error_only_if_the_answer_is_incomplete(client: openai.OpenAI) -> None:
    assert ask(client, "no_done", True).calls
    with pytest.raises(openai.APIError, match="before the answer was complete"):
        ask(client, "no_finish", True)
    with pytest.raises(openai.APIError, match="silent for 1 s"):
        ask(client, "silent", True)
    with pytest.raises(openai.APIError, match="not a chat completion"):
        ask(client, "html", True)


def test_the_sdk_does_not_multiply_the_attempts(guard: Guard, upstream: ScriptedUpstream) -> None:
    before = upstream.seen["always_nan"]
    with (
        openai.OpenAI(base_url=guard.url + "/v1", api_key="x", max_retries=3) as client,
        pytest.raises(openai.APIError),
    ):
        ask(client, "always_nan", False)
    assert upstream.seen["always_nan"] == before + 2


def test_a_resample_is_the_same_request(client: openai.OpenAI, upstream: ScriptedUpstream) -> None:
    ask(client, "good", False)
    first = json.loads(upstream.last_body)
    ask(client, "bad_schema", False)
    assert json.loads(upstream.last_body) == first | {"model": "bad_schema"}


def test_keep_alives_while_calls_are_held(guard: Guard) -> None:
    request = {"model": "slow", "messages": MESSAGES, "tools": TOOLS, "stream": True}
    with httpx.stream("POST", guard.url + "/v1/chat/completions", json=request) as answer:
        text = b"".join(answer.iter_raw())
    assert b": k3-guard\n\n" in text and text.endswith(b"data: [DONE]\n\n")


def test_a_client_that_hangs_up_stops_the_upstream(guard: Guard, upstream: ScriptedUpstream) -> None:
    for streamed, script in ((True, "endless"), (False, "hang")):
        upstream.cancelled.clear()
        hung_up = guard.metric("k3_guard_disconnects_total")
        request = {"model": script, "messages": MESSAGES, "stream": streamed}
        with (
            httpx.Client(timeout=0.5) as client,
            pytest.raises(httpx.ReadTimeout) if not streamed else _nothing(),
            client.stream("POST", guard.url + "/v1/chat/completions", json=request) as answer,
        ):
            for _ in answer.iter_raw():
                break
        assert upstream.cancelled.wait(5), script
        _until(lambda hung_up=hung_up: guard.metric("k3_guard_disconnects_total") > hung_up)
    _until(lambda: guard.metric("k3_guard_in_flight") == 0)


def test_a_slow_reader_slows_the_upstream(guard: Guard, upstream: ScriptedUpstream) -> None:
    import socket

    body = json.dumps({"model": "flood", "messages": MESSAGES, "stream": True}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    upstream.seen["chunks"] = 0
    with socket.create_connection(("127.0.0.1", guard.port)) as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        reader.sendall(head + body)
        _until(lambda: upstream.seen["chunks"] > 10)
        time.sleep(1)
        early = upstream.seen["chunks"]
        time.sleep(0.5)
        assert upstream.seen["chunks"] == early < 1000, "the upstream went on although nobody reads"


def test_everything_else_passes_through(guard: Guard) -> None:
    with httpx.Client(base_url=guard.url) as client:
        assert client.get("/v1/models").json()["data"][0]["id"] == "k3"
        assert client.post("/v1/completions", content=b"x" * 3_000_000).json()["echo"] == 3_000_000
        odd = client.put("/any/where?a=b%20c&d", content=b"x")
        assert (odd.status_code, odd.text, odd.headers["x-from"]) == (418, "PUT /any/where?a=b%20c&d", "upstream")
        assert client.get("/health").json()["status"] == "ok"


def test_keys_pass_through_and_are_never_logged(
    client: openai.OpenAI, guard: Guard, upstream: ScriptedUpstream
) -> None:
    ask(client, "good", False, extra_headers={"x-request-id": "mine-1"}, extra_query={"key": "sk-in-query"})
    assert upstream.headers["Authorization"] == "Bearer sk-secret-of-mine"
    assert upstream.headers["X-Request-Id"] == "mine-1"
    _until(lambda: any(each["id"] == "mine-1" for each in guard.log_lines()))
    lines = guard.log_lines()
    assert "sk-" not in json.dumps(lines)
    (line,) = [each for each in lines if each["id"] == "mine-1"]
    assert line["verdict"] == "clean" and line["calls"] == 1 and line["status"] == 200


@pytest.mark.parametrize(
    ("content", "status", "where"),
    [
        (b"not json", 400, "body"),
        (b"[]", 400, "body"),
        (b'{"messages": []}', 400, "messages"),
        (b'{"messages": [{}], "tool_choice": "required"}', 400, "tool_choice"),
        (b'{"messages": [{}], "tool_choice": {"function": {"name": "x"}}, "tools": []}', 400, "tool_choice"),
        (b'{"messages": [{}], "reasoning_effort": "medium"}', 400, "reasoning_effort"),
        (b'{"messages": "' + b"x" * 8_100_000 + b'"}', 413, "body"),
    ],
)
def test_bad_requests_end_at_the_door(guard: Guard, content: bytes, status: int, where: str) -> None:
    answer = httpx.post(guard.url + "/v1/chat/completions", content=content)
    assert answer.status_code == status and answer.json()["error"]["param"] == where


def test_metrics_count_what_happened(client: openai.OpenAI, guard: Guard) -> None:
    names = ("calls_total", "calls_valid_first_total", "resamples_total", 'answers_total{verdict="resampled"}')
    before = [guard.metric("k3_guard_" + name) for name in names]
    ask(client, "good", True)
    ask(client, "bad_schema", True)
    after = [guard.metric("k3_guard_" + name) for name in names]
    assert [late - early for early, late in zip(before, after, strict=True)] == [2, 1, 1, 1]
    assert guard.metric('k3_guard_problems_total{problem="schema"}') >= 1
    assert guard.metric("k3_guard_added_seconds_count") > 0
    assert guard.metric("k3_guard_held_bytes") == 0


def test_an_upstream_that_is_down_is_left_out(upstream: ScriptedUpstream, tmp_path: Any) -> None:
    with (tmp_path / "log").open("w+b") as log, running_guard([free_port(), upstream.port], log) as guard:
        with openai.OpenAI(base_url=guard.url + "/v1", api_key="x", max_retries=0) as client:
            for _ in range(3):
                assert ask(client, "good", False).calls
        assert guard.metric("k3_guard_upstream_connection_errors_total") == 1
        assert httpx.get(guard.url + "/health").status_code == 200
        assert guard.metric("k3_guard_upstream_up") == 1


def test_no_upstream_at_all_is_said(tmp_path: Any) -> None:
    with (tmp_path / "log").open("w+b") as log, running_guard([free_port()], log) as guard:
        answer = httpx.post(guard.url + "/v1/chat/completions", json={"messages": MESSAGES})
        assert answer.status_code == 502 and "no upstream could be reached" in answer.json()["error"]["message"]
        assert httpx.get(guard.url + "/health").status_code == 503


def test_a_drain_finishes_what_has_begun(upstream: ScriptedUpstream, tmp_path: Any) -> None:
    with (tmp_path / "log").open("w+b") as log, running_guard([upstream.port], log) as guard:
        final: list[Final] = []

        def slow() -> None:
            with openai.OpenAI(base_url=guard.url + "/v1", api_key="x", max_retries=0) as client:
                final.append(ask(client, "slow", True))

        thread = threading.Thread(target=slow)
        thread.start()
        _until(lambda: guard.metric("k3_guard_in_flight") == 1)
        guard.child.terminate()
        thread.join(10)
        assert final and final[0].calls
        assert guard.child.wait(10) == 0


class _nothing:  # noqa: N801
    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


def _until(true: Any, seconds: float = 5) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.05)


def test_a_log_that_nobody_reads_stops_nothing(upstream: ScriptedUpstream) -> None:
    import os

    reader, writer = os.pipe()
    with os.fdopen(writer, "wb") as log, running_guard([upstream.port], log) as guard:
        with httpx.Client() as client:
            for _ in range(500):  # a pipe holds 64 KiB, a line has about 350 bytes
                assert client.get(guard.url + "/v1/models").status_code == 200
        os.close(reader)


def test_too_many_at_a_time_are_told_to_wait(upstream: ScriptedUpstream, tmp_path: Any) -> None:
    with (
        (tmp_path / "log").open("w+b") as log,
        running_guard([upstream.port], log, "--max-in-flight", "1", "--first-byte-timeout", "1") as guard,
        openai.OpenAI(base_url=guard.url + "/v1", api_key="x", max_retries=0) as client,
    ):
        make: Any = client.chat.completions.create
        stream = make(model="endless", messages=MESSAGES, stream=True)
        next(iter(stream))
        answer = httpx.post(guard.url + "/v1/chat/completions", json={"messages": MESSAGES})
        assert answer.status_code == 429 and answer.headers["retry-after"] == "1"
        stream.close()
        _until(lambda: guard.metric("k3_guard_in_flight") == 0)
        with pytest.raises(openai.APIStatusError, match="no answer began within 1 s"):
            ask(client, "hang", False)


def test_raw_text_is_parsed_by_the_guard(upstream: ScriptedUpstream, tmp_path: Any) -> None:
    with (
        (tmp_path / "log").open("w+b") as log,
        running_guard([upstream.port], log, "--source", "raw") as guard,
        openai.OpenAI(base_url=guard.url + "/v1", api_key="x", max_retries=0) as client,
    ):
        for streamed in (False, True):
            final = ask(client, "raw", streamed)
            assert final.calls == [("get_weather", json.loads(PARIS))] and final.reason == "tool_calls"
            assert (final.reasoning, final.content, final.verdict) == ("why", "ok", "clean")
        asked = json.loads(upstream.last_body)
        assert asked["skip_special_tokens"] is False and asked["spaces_between_special_tokens"] is False


def test_prefixes_are_explained(upstream: ScriptedUpstream, tmp_path: Any) -> None:
    with (
        (tmp_path / "log").open("w+b") as log,
        running_guard([upstream.port], log, "--explain-prefix") as guard,
        httpx.Client(headers={"authorization": "Bearer sk-mine"}) as client,
    ):
        for minute in range(2):
            system = f"It is 2026-11-29T10:0{minute}:00Z. You are helpful."
            request = {"model": "text", "messages": [{"role": "system", "content": system}, *MESSAGES]}
            assert client.post(guard.url + "/v1/chat/completions", json=request).status_code == 200
        _until(lambda: guard.metric('k3_guard_prefix_divergences_total{cause="time_in_system_prompt"}') == 1)
        text = guard.output()
    assert "messages[0] (system): time in system prompt" in text and "10:01" in text and "sk-mine" not in text
