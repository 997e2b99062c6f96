"""The OpenAI API, asked by the openai SDK."""

from __future__ import annotations

import base64
import io
import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families

from tests.reference.conftest import Served

HI: list[Any] = [{"role": "user", "content": "Hello"}]
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "enum": ["Paris", "Oslo"]},
                    "days": {"type": "integer"},
                    "units": {"type": "array", "items": {"type": "string", "maxLength": 3}},
                },
                "required": ["city", "days"],
            },
        },
    },
    {"type": "function", "function": {"name": "stop", "parameters": {"type": "object", "properties": {}}}},
]


def ask(served: Served, **more: Any) -> Any:
    fields = {"model": "tiny-k3", "messages": HI, "max_tokens": 8, "temperature": 0, **more}
    return served.client.chat.completions.create(**fields)


def wait_until(check: Callable[[], bool], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.02)


def picture(color: str = "red", size: tuple[int, int] = (60, 40), kind: str = "PNG") -> str:
    buffer = io.BytesIO()
    Image.new("RGB", size, color).save(buffer, kind)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def with_image(url: str) -> list[Any]:
    return [
        {"role": "user", "content": [{"type": "text", "text": "?"}, {"type": "image_url", "image_url": {"url": url}}]}
    ]


def test_the_model_says_that_its_weights_are_random(served: Served) -> None:
    (model,) = served.client.models.list().data
    assert (model.id, model.max_model_len, model.random_weights) == ("tiny-k3", 4096, True)  # type: ignore[attr-defined]
    assert served.client.models.retrieve("tiny-k3").id == "tiny-k3"
    assert ask(served).system_fingerprint.endswith("-random-weights")


def test_a_chat_and_its_usage(served: Served) -> None:
    first, again = ask(served), ask(served)
    message = first.choices[0].message
    assert message.role == "assistant"
    assert message.reasoning == message.reasoning_content != ""
    assert message.reasoning == again.choices[0].message.reasoning
    assert first.choices[0].finish_reason == "length"
    assert first.usage.completion_tokens == 8 == first.usage.completion_tokens_details.reasoning_tokens
    assert again.usage.prompt_tokens_details.cached_tokens == first.usage.prompt_tokens - 1


def test_thinking_off_opens_the_response(served: Served) -> None:
    for off in (
        {"reasoning_effort": "none"},
        {"extra_body": {"thinking": {"type": "disabled"}}},
        {"extra_body": {"chat_template_kwargs": {"thinking": False}}},
    ):
        answer = ask(served, **off)
        assert answer.choices[0].message.content
        assert answer.choices[0].message.reasoning is None
        assert answer.usage.completion_tokens_details.reasoning_tokens == 0


def test_a_stream_is_the_whole_answer_in_pieces(served: Served) -> None:
    whole = ask(served, max_tokens=20)
    chunks = list(ask(served, max_tokens=20, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(getattr(c.choices[0].delta, "reasoning", None) or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.reasoning
    assert [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason] == ["length"]
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 20
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert len(chunks) > 10


@pytest.mark.parametrize(("stream", "effort"), [(False, "low"), (True, "none")])
def test_a_required_call_is_valid(served: Served, stream: bool, effort: str) -> None:
    fields = {"tools": TOOLS, "tool_choice": "required", "reasoning_effort": effort, "stream": stream}
    given = ask(served, **fields, max_tokens=330, temperature=1, seed=5)
    if stream:
        choices = [chunk.choices[0] for chunk in given]
        calls = [call for choice in choices for call in choice.delta.tool_calls or ()]
        assert [call.index for call in calls] == list(range(len(calls)))
        finish = choices[-1].finish_reason
    else:
        calls, finish = given.choices[0].message.tool_calls, given.choices[0].finish_reason
    assert finish == "tool_calls"
    assert calls and len({call.id for call in calls}) == len(calls)
    for call in calls:
        arguments = json.loads(call.function.arguments)
        if call.function.name == "stop":
            assert arguments == {}
        else:
            assert arguments["city"] in ("Paris", "Oslo") and isinstance(arguments["days"], int)
            assert all(len(unit) <= 3 for unit in arguments.get("units", ()))


def test_a_named_call_is_of_that_tool_alone(served: Served) -> None:
    named = {"type": "function", "function": {"name": "stop"}}
    one = {"parallel_tool_calls": False, "reasoning_effort": "none"}
    answer = ask(served, tools=TOOLS, tool_choice=named, max_tokens=200, **one)
    assert [call.function.name for call in answer.choices[0].message.tool_calls] == ["stop"]
    assert answer.choices[0].message.content is None


def test_json_that_fits_a_schema(served: Served) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "sizes": {"type": "array", "items": {"type": "number"}}},
        "required": ["name", "sizes"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    answer = ask(served, response_format=form, max_tokens=160, temperature=1, seed=2)
    value = json.loads(answer.choices[0].message.content)
    assert set(value) == {"name", "sizes"} and isinstance(value["name"], str)
    assert all(isinstance(size, int | float) for size in value["sizes"])
    assert answer.choices[0].finish_reason == "stop"
    answer = ask(served, response_format={"type": "json_object"}, max_tokens=90, reasoning_effort="none")
    assert isinstance(json.loads(answer.choices[0].message.content), dict)


def test_images_count_as_tokens_and_are_told_apart(served: Served) -> None:
    red = ask(served, messages=with_image(picture("red")))
    again = ask(served, messages=with_image(picture("red", kind="BMP")))
    blue = ask(served, messages=with_image(picture("blue")))
    plain = ask(served, messages=[{"role": "user", "content": "?"}])
    assert red.usage.prompt_tokens == blue.usage.prompt_tokens > plain.usage.prompt_tokens
    assert again.usage.prompt_tokens_details.cached_tokens == red.usage.prompt_tokens - 1
    assert blue.usage.prompt_tokens_details.cached_tokens < red.usage.prompt_tokens - 6
    assert red.choices[0].message.reasoning == again.choices[0].message.reasoning


def test_log_probabilities(served: Served) -> None:
    answer = ask(served, logprobs=True, top_logprobs=3)
    entries = answer.choices[0].logprobs.content
    assert len(entries) == 8
    for entry in entries:
        assert len(entry.top_logprobs) == 3
        assert entry.logprob == entry.top_logprobs[0].logprob  # temperature 0 takes the most likely
        assert bytes(entry.bytes).decode(errors="replace") == entry.token
    chunks = list(ask(served, logprobs=True, top_logprobs=3, stream=True))
    streamed = [e for c in chunks if c.choices[0].logprobs for e in c.choices[0].logprobs.content]
    assert [e.logprob for e in streamed] == [e.logprob for e in entries]


def test_several_choices_and_seeds(served: Served) -> None:
    answers = [ask(served, n=3, temperature=1, seed=11, max_tokens=6) for _ in range(2)]
    texts = [[choice.message.reasoning for choice in answer.choices] for answer in answers]
    assert texts[0] == texts[1] and len(set(texts[0])) == 3
    assert answers[0].usage.completion_tokens == 18


def test_stop_texts_end_an_answer_and_are_not_part_of_it(served: Served) -> None:
    whole = ask(served, max_tokens=30).choices[0].message.reasoning
    stop = whole[10:14]
    cut = whole[: whole.index(stop)]
    for stream in (False, True):
        given = ask(served, max_tokens=30, stop=[stop], stream=stream)
        if stream:
            choices = [chunk.choices[0] for chunk in given]
            text = "".join(getattr(choice.delta, "reasoning", None) or "" for choice in choices)
            assert (text, choices[-1].finish_reason) == (cut, "stop")
        else:
            assert given.choices[0].message.reasoning == cut
            assert given.choices[0].finish_reason == "stop"
    wait_until(served.idle)


def test_completions_of_text_and_of_ids(served: Served) -> None:
    client = served.client
    text = client.completions.create(model="tiny-k3", prompt="abc", max_tokens=5, temperature=0, logprobs=2)
    ids = client.completions.create(model="tiny-k3", prompt=[97, 98, 99], max_tokens=5, temperature=0)
    assert text.choices[0].text == ids.choices[0].text
    assert text.choices[0].logprobs is not None and len(text.choices[0].logprobs.tokens or ()) == 5
    several = client.completions.create(model="tiny-k3", prompt=["abc", "abd"], max_tokens=5, temperature=0, n=2)
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3]
    assert several.choices[0].text == text.choices[0].text == several.choices[1].text
    echoed = client.completions.create(model="tiny-k3", prompt="abc", max_tokens=0, echo=True, logprobs=1)
    assert echoed.choices[0].text == "abc"
    assert echoed.choices[0].logprobs is not None
    assert [value is None for value in echoed.choices[0].logprobs.token_logprobs or ()] == [True, False, False]
    chunks = list(client.completions.create(model="tiny-k3", prompt="abc", max_tokens=5, temperature=0, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == text.choices[0].text


def test_tokens_to_text_and_back(served: Served) -> None:
    def post(path: str, body: dict[str, Any]) -> Any:
        return served.http.post(path, json=body).json()

    told = post("/tokenize", {"prompt": "Zoë <|open|>"})
    assert told["count"] == len(told["tokens"]) == len("Zoë <|open|>".encode())
    assert max(told["tokens"]) < 256  # text that spells a control token is no control token
    assert post("/detokenize", {"tokens": told["tokens"]})["prompt"] == "Zoë <|open|>"
    chat = post("/tokenize", {"messages": HI})
    assert chat["count"] == ask(served).usage.prompt_tokens
    assert post("/detokenize", {"tokens": chat["tokens"]})["prompt"].endswith('assistant"<|sep|><|open|>think<|sep|>')


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"messages": [{"role": "user", "content": "x" * 5000}]}, 400, "messages"),
        ({"max_tokens": 5000}, 400, "max_tokens"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "nope"}}}, 400, "tool_choice"),
        ({"tool_choice": "required"}, 400, "tool_choice"),
        ({"tools": [{"type": "function", "function": {}}]}, 400, "tools[0].function.name"),
        ({"messages": with_image("data:image/png;base64,AAAA")}, 400, "messages[0].content[1]"),
        ({"messages": with_image("data:image/png;base64,%%%")}, 400, "messages[0].content[1]"),
        ({"messages": with_image("http://example.com/a.png")}, 400, "messages[0].content[1]"),
        ({"messages": with_image("https://127.0.0.1/a.png")}, 400, "messages[0].content[1]"),
        ({"messages": with_image("https://[::ffff:10.0.0.1]/a.png")}, 400, "messages[0].content[1]"),
        ({"messages": with_image("https://169.254.169.254/latest")}, 400, "messages[0].content[1]"),
        (
            {"messages": [{"role": "user", "content": [{"type": "video_url", "video_url": {}}]}]},
            400,
            "messages[0].content[0]",
        ),
        ({"messages": [{"role": "nobody", "content": "x"}]}, 400, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": ["a"]}]}]}, 400, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "messages"),
        ({"temperature": 3}, 400, "temperature"),
        ({"n": 1000}, 400, "n"),
        ({"reasoning_effort": "extreme"}, 400, "reasoning_effort"),
        ({"logit_bias": {"99999": 1}}, 400, "logit_bias"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, 400, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "wrong"}}}}, 400, "schema"),
        ({"model": "other"}, 404, "model"),
    ],
)
def test_what_cannot_be_answered_is_an_openai_error(
    served: Served, fields: dict[str, Any], status: int, param: str
) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        ask(served, **fields)
    error = caught.value
    assert error.status_code == status
    assert error.param is not None and error.param.startswith(param)
    assert error.message and error.type == "invalid_request_error"


def test_context_overflow_has_its_code(served: Served) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(served, max_tokens=5000)
    assert caught.value.code == "context_length_exceeded"


def test_other_requests_that_cannot_be_answered(served: Served) -> None:
    def status(method: str, path: str, content: bytes = b"") -> int:
        return served.http.request(method, path, content=content).status_code

    assert status("POST", "/v1/chat/completions", b"{") == 400
    assert status("POST", "/v1/chat/completions", b"[]") == 400
    assert status("POST", "/v1/completions", b'{"prompt": []}') == 400
    assert status("POST", "/v1/completions", b'{"prompt": [600]}') == 400
    assert status("POST", "/v1/chat/completions", b" " * 10**6 + b"{}") == 413
    assert status("GET", "/v1/chat/completions") == 405
    assert status("GET", "/nowhere") == 404
    assert status("GET", "/health") == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_hangs_up_frees_its_pages(served: Served, stream: bool) -> None:
    body = {"model": "tiny-k3", "messages": HI, "stream": stream, "ignore_eos": True}
    with (
        pytest.raises(httpx.ReadTimeout),
        httpx.Client(timeout=0.4) as client,
        client.stream("POST", f"{served.url}/v1/chat/completions", json=body) as answer,
    ):
        for _ in answer.iter_raw():
            raise httpx.ReadTimeout("left")
    wait_until(served.idle)


def test_64_clients_at_once_get_their_own_answers(served: Served) -> None:
    def one(number: int) -> str:
        said: list[Any] = [{"role": "user", "content": f"{number % 8}"}]
        return str(ask(served, messages=said, max_tokens=2, reasoning_effort="none").choices[0].message.content)

    with ThreadPoolExecutor(64) as pool:
        together = list(pool.map(one, range(64)))
    assert together[:8] == [one(number) for number in range(8)]
    assert all(together[number] == together[number % 8] for number in range(64))
    wait_until(served.idle)


def test_the_event_loop_answers_while_the_engine_works(served: Served) -> None:
    long = threading.Thread(
        target=lambda: ask(served, messages=[{"role": "user", "content": "x" * 3000}], max_tokens=1)
    )
    long.start()
    waits = []
    while long.is_alive():
        began = time.perf_counter()
        assert served.http.get("/health").status_code == 200
        waits.append(time.perf_counter() - began)
    assert sorted(waits)[len(waits) // 2] < 0.25


def test_metrics_have_vllms_names(served: Served) -> None:
    ask(served)
    text = served.http.get("/metrics").text
    families = {family.name: family for family in text_string_to_metric_families(text)}
    for name in (
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:prompt_tokens",
        "vllm:generation_tokens",
        "vllm:prefix_cache_queries",
        "vllm:prefix_cache_hits",
        "vllm:num_preemptions",
        "vllm:request_success",
        "vllm:time_to_first_token_seconds",
        "vllm:inter_token_latency_seconds",
        "vllm:e2e_request_latency_seconds",
    ):
        assert families[name].samples[0].labels["model_name"] == "tiny-k3", name
    assert families["vllm:generation_tokens"].samples[0].value > 0
