"""`k3 guard` in front of a real vLLM: proxying, streaming, a real tool call, cancellation, metrics."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests.engines.guard.vllm_cpu import serving_vllm
from tests.guard.scripted import Guard, running_guard

pytestmark = pytest.mark.engines

MESSAGES: Any = [{"role": "user", "content": "Say something."}]
PICK: Any = {
    "type": "function",
    "function": {
        "name": "pick",
        "parameters": {
            "type": "object",
            "properties": {"number": {"type": "integer", "enum": [1, 2, 3]}},
            "required": ["number"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture(scope="module")
def vllm_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    folder = tmp_path_factory.mktemp("llama")
    with (folder / "vllm.log").open("w+b") as log:
        try:
            with serving_vllm(folder, log) as port:
                yield port
        except RuntimeError as error:
            log.seek(0)
            raise RuntimeError(log.read().decode()[-3000:]) from error


@pytest.fixture(scope="module")
def guard(vllm_port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guard]:
    with (
        (tmp_path_factory.mktemp("guard") / "log").open("w+b") as log,
        running_guard([vllm_port], log, "--explain-prefix") as each,
    ):
        yield each


@pytest.fixture(scope="module")
def client(guard: Guard) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=guard.url + "/v1", api_key="x", max_retries=0, timeout=120) as each:
        yield each


def test_the_same_answer_as_without_the_guard(client: openai.OpenAI, vllm_port: int) -> None:
    fields: Any = {"model": "k3", "messages": MESSAGES, "max_tokens": 40, "temperature": 0}
    through = client.chat.completions.create(**fields).choices[0]
    direct = httpx.post(f"http://127.0.0.1:{vllm_port}/v1/chat/completions", json=fields, timeout=120).json()
    assert through.message.content == direct["choices"][0]["message"]["content"]
    assert through.finish_reason == direct["choices"][0]["finish_reason"]
    stream = list(client.chat.completions.create(**fields, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.delta.content or "" for chunk in stream for c in chunk.choices) == through.message.content
    assert stream[-1].usage.completion_tokens == 40


def test_models_and_completions_pass_through(client: openai.OpenAI) -> None:
    assert [each.id for each in client.models.list()] == ["k3"]
    assert client.completions.create(model="k3", prompt="a", max_tokens=5).choices[0].text is not None


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "pick"}}])
def test_a_call_of_a_random_model_is_valid_or_not_sent(
    client: openai.OpenAI, guard: Guard, choice: Any, streamed: bool
) -> None:
    """A random model's calls are valid only where a grammar makes them so; what is not must not come through."""
    fields: Any = {"model": "k3", "messages": MESSAGES, "tools": [PICK], "tool_choice": choice, "max_tokens": 100}
    before = guard.metric("k3_guard_calls_sent_total")
    try:
        if streamed:
            chunks = list(client.chat.completions.create(**fields, stream=True))
            calls = [each for chunk in chunks for c in chunk.choices for each in c.delta.tool_calls or ()]
            reasons = [c.finish_reason for chunk in chunks for c in chunk.choices if c.finish_reason]
            flags = [chunk.k3_guard for chunk in chunks if hasattr(chunk, "k3_guard")]
        else:
            answer = client.chat.completions.create(**fields)
            calls = list(answer.choices[0].message.tool_calls or ())
            reasons = [answer.choices[0].finish_reason]
            flags = [answer.k3_guard] if hasattr(answer, "k3_guard") else []
    except openai.APIError as error:
        assert error.code == "tool_call_invalid" and "pick" in str(error)
        return
    assert guard.metric("k3_guard_calls_sent_total") == before + len(calls)
    for call in calls:
        arguments = json.loads(call.function.arguments)
        assert call.id and isinstance(arguments, dict)
        assert flags or (call.function.name == "pick" and arguments["number"] in (1, 2, 3))
    assert calls or flags or reasons == ["length"]


def test_leaving_early_stops_vllm(client: openai.OpenAI, vllm_port: int) -> None:
    def metric(name: str) -> float:
        text = httpx.get(f"http://127.0.0.1:{vllm_port}/metrics", timeout=10).text
        return sum(float(each.split()[-1]) for each in text.splitlines() if each.startswith(name))

    def generated_after_leaving() -> float:
        before = metric("vllm:generation_tokens_total")
        fields: Any = {"model": "k3", "messages": MESSAGES, "max_tokens": 1900, "extra_body": {"ignore_eos": True}}
        stream = client.chat.completions.create(**fields, stream=True)
        for number, _ in enumerate(stream):
            if number == 3:
                break
        stream.close()
        generated, last = -1.0, -2.0
        while generated != last:
            time.sleep(1)
            generated, last = metric("vllm:generation_tokens_total") - before, generated
        return generated

    # So small a model may be done before a busy machine has noticed that nobody listens: it gets some tries.
    assert min(generated_after_leaving() for _ in range(5)) < 1500, "it always went on although nobody listened"
    assert metric("vllm:num_requests_running") == 0


def test_metrics_and_errors(client: openai.OpenAI, guard: Guard) -> None:
    assert guard.metric('k3_guard_requests_total{kind="chat",status="200"}') >= 4
    assert guard.metric("k3_guard_upstream_up") == 1
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="other", messages=MESSAGES)
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="k3", messages=MESSAGES, max_tokens=100_000)
    assert httpx.get(guard.url + "/health").json()["status"] == "ok"
