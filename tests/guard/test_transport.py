"""The transport inside the openai SDK: both httpx libraries, sync and async, a real server that misbehaves."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import httpx2
import openai
import pytest

from k3stack.guard import AsyncTransport, OnExhausted, Policy, Transport
from k3stack.guard.report import Report
from tests.guard.answers import PARIS, TOOLS
from tests.guard.scripted import ScriptedUpstream
from tests.guard.test_proxy import MESSAGES, ask

BOTH = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
LIBRARIES = pytest.mark.parametrize("library", [httpx, httpx2], ids=["httpx", "httpx2"])


def sdk(upstream: ScriptedUpstream, library: Any, transport: Transport) -> openai.OpenAI:
    client = library.Client(transport=transport, timeout=20)
    url = f"http://127.0.0.1:{upstream.port}/v1"
    return openai.OpenAI(base_url=url, api_key="x", http_client=client, max_retries=0)


@LIBRARIES
@BOTH
@pytest.mark.parametrize(
    ("script", "verdict"),
    [
        ("good", "clean"),
        ("bad_schema", "resampled"),
        ("not_json", "resampled"),
        ("leaked", "repaired"),
        ("length", "repaired"),
    ],
)
def test_the_client_gets_a_valid_call(
    upstream: ScriptedUpstream, library: Any, script: str, verdict: str, streamed: bool
) -> None:
    reports: list[Report] = []
    upstream.attempts.clear()
    with sdk(upstream, library, Transport(on_report=reports.append)) as client:
        final = ask(client, script, streamed)
    assert final.calls == [("get_weather", json.loads(PARIS))] and final.verdict == verdict
    assert [each.verdict for each in reports] == [verdict]


@LIBRARIES
@BOTH
@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("always_nan", "no valid tool call in 2 attempts"),
        ("500", "engine died"),
        ("malformed", "not"),
        ("cut", "broke off|Connection error"),
    ],
)
def test_or_an_error(upstream: ScriptedUpstream, library: Any, script: str, error: str, streamed: bool) -> None:
    upstream.attempts.clear()
    with sdk(upstream, library, Transport()) as client, pytest.raises(openai.APIError, match=error):
        ask(client, script, streamed)


@BOTH
def test_a_failing_resample_leaves_the_first_answer(upstream: ScriptedUpstream, streamed: bool) -> None:
    upstream.attempts.clear()
    with sdk(upstream, httpx2, Transport()) as client:
        assert ask(client, "bad_then_500", streamed).verdict == "exhausted"
    upstream.attempts.clear()
    policy = Policy(on_exhausted=OnExhausted.ERROR)
    with (
        sdk(upstream, httpx2, Transport(policy=policy)) as client,
        pytest.raises(openai.APIError, match="required"),
    ):
        ask(client, "bad_then_500", streamed)


def test_a_refused_request_never_leaves(upstream: ScriptedUpstream) -> None:
    upstream.seen.clear()
    with (
        sdk(upstream, httpx2, Transport()) as client,
        pytest.raises(openai.BadRequestError, match="no tool is declared"),
    ):
        client.chat.completions.create(model="good", messages=MESSAGES, tool_choice="required")  # type: ignore[call-overload]
    assert not upstream.seen["good"]


def test_other_requests_pass_through(upstream: ScriptedUpstream) -> None:
    with sdk(upstream, httpx2, Transport()) as client:
        assert [each.id for each in client.models.list()] == ["k3"]


@LIBRARIES
@pytest.mark.parametrize("script", ["good", "bad_schema", "bad_then_500"])
def test_async(upstream: ScriptedUpstream, library: Any, script: str) -> None:
    upstream.attempts.clear()

    async def both() -> tuple[Any, list[Any]]:
        http = library.AsyncClient(transport=AsyncTransport(), timeout=20)
        url = f"http://127.0.0.1:{upstream.port}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="x", http_client=http, max_retries=0) as client:
            make: Any = client.chat.completions.create
            whole = await make(model=script, messages=MESSAGES, tools=TOOLS)
            upstream.attempts.clear()
            stream = await make(model=script, messages=MESSAGES, tools=TOOLS, stream=True)
            return whole, [chunk async for chunk in stream]

    whole, chunks = asyncio.run(both())
    wanted = {"days": 3} if script == "bad_then_500" else json.loads(PARIS)
    assert json.loads(whole.choices[0].message.tool_calls[0].function.arguments) == wanted
    calls = [call for chunk in chunks for choice in chunk.choices for call in choice.delta.tool_calls or ()]
    assert [json.loads(call.function.arguments) for call in calls] == [wanted]


def test_leaving_a_stream_early_closes_the_connection(upstream: ScriptedUpstream) -> None:
    upstream.cancelled.clear()
    with sdk(upstream, httpx2, Transport()) as client:
        make: Any = client.chat.completions.create
        with make(model="endless", messages=MESSAGES, stream=True) as stream:
            next(iter(stream))
        assert upstream.cancelled.wait(5)
