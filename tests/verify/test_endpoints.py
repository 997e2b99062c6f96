"""Endpoints that hang, die, want a key, refuse parameters, or cannot see: a clear end, in time, for each."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from k3stack.errors import UnavailableError, UsageError
from k3stack.verify import CheckReport, Level, Status, Target, run_checks
from tests.cli.run import k3
from tests.verify.fake_k3 import FakeK3, serving
from tests.verify.proxy import Proxy


class Hangs(Proxy):
    """Never answers a chat, after the first few."""

    after = 0
    chats = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.chats += request.path.endswith("/chat/completions")
        if self.chats > self.after and request.method == "POST":
            await asyncio.sleep(3600)
        return await super().handle(request)


class HangsLater(Hangs):
    after = 5


class Cuts(Hangs):
    """Cuts the connection instead."""

    after = 5

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.chats += request.path.endswith("/chat/completions")
        if self.chats > self.after and request.transport:
            request.transport.close()
        return await Proxy.handle(self, request)


class WantsKey(Proxy):
    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("Authorization") != "Bearer secret-key":
            return web.json_response({"error": {"message": "no key"}}, status=401)
        return await super().handle(request)


class Hosted(Proxy):
    """Like Moonshot's own API: temperature and seed are fixed, effort has another name, no logprobs."""

    def request(self, body: dict[str, Any]) -> dict[str, Any]:
        thinking = body.pop("thinking", {})
        if body.keys() & {"temperature", "top_p", "seed", "reasoning_effort", "chat_template_kwargs"}:
            return {**body, "messages": []}  # which the endpoint refuses
        if thinking.get("type") == "disabled":
            return {**body, "reasoning_effort": "none"}
        if "effort" in thinking:
            return {**body, "reasoning_effort": thinking["effort"]}
        return body


class Busy(Proxy):
    """Takes four requests at a time."""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if self.in_flight >= 4 or (self.number % 3 == 0 and request.method == "POST"):
            self.number += 1
            return web.json_response({"error": {"message": "too many"}}, status=429)
        return await super().handle(request)


class Different(Proxy):
    """All that an endpoint may do otherwise: an alias for the model, reasoning as vLLM names it, no log probabilities
    or details, lines that end with CR and LF, comments, an event without choices, no page but the API's own."""

    content_type = "text/event-stream; charset=utf-8"
    ending = b"\r\n\r\n: keep-alive\r\n\r\n"

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.path in ("/metrics", "/health", "/version"):
            return web.json_response({"error": {"message": "not found"}}, status=404)
        return await super().handle(request)

    def request(self, body: dict[str, Any]) -> dict[str, Any]:
        if body.get("n", 1) > 1:
            return {**body, "messages": []}  # which is refused
        return {name: value for name, value in body.items() if name not in ("logprobs", "top_logprobs")}

    def whole(self, answer: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
        message = answer["choices"][0]["message"]
        if "reasoning_content" in message:
            message["reasoning"] = message.pop("reasoning_content")
        answer["usage"].pop("prompt_tokens_details", None)
        return {**answer, "model": "moonshotai/kimi-k3", "system_fingerprint": None, "provider": "x"}

    def event(self, event: dict[str, Any], seen: int, body: dict[str, Any]) -> list[dict[str, Any]]:
        event["model"] = "moonshotai/kimi-k3"
        (event.get("usage") or {}).pop("prompt_tokens_details", None)
        for choice in event["choices"]:
            choice.pop("logprobs", None)
            choice["delta"].setdefault("content", None)
            if "reasoning_content" in choice["delta"]:
                choice["delta"]["reasoning"] = choice["delta"].pop("reasoning_content")
            if choice["delta"].get("role"):
                return [{**event, "choices": []}, event]
        return [event]


class Strict(Proxy):
    """Refuses what it does not know: parameters, several choices, a developer, system messages after the first turn,
    results in parts, and schemas with references."""

    known = frozenset(
        "model messages max_tokens max_completion_tokens temperature seed stop stream stream_options tools tool_choice "
        "parallel_tool_calls response_format reasoning_effort logprobs top_logprobs".split()
    )

    def request(self, body: dict[str, Any]) -> dict[str, Any]:
        roles = [message.get("role") for message in body["messages"]]
        strange = "system" in roles[1:] or "developer" in roles or '"$ref"' in json.dumps(body.get("tools"))
        parts = any(one.get("role") == "tool" and isinstance(one.get("content"), list) for one in body["messages"])
        return body if self.known >= body.keys() and not strange and not parts else {**body, "messages": []}


class TextOnly(Proxy):
    def request(self, body: dict[str, Any]) -> dict[str, Any]:
        return {**body, "messages": []} if "image_url" in json.dumps(body["messages"]) else body


def test_an_endpoint_that_never_answers_is_an_error_in_time(trained: str) -> None:
    started = time.perf_counter()
    with serving(Hangs(trained).app()) as url, pytest.raises(UnavailableError, match="no chat request"):
        run_checks(Target(url, silence_s=0.5), Level.QUICK)
    assert time.perf_counter() - started < 10


@pytest.mark.parametrize("kind", [HangsLater, Cuts])
def test_an_endpoint_that_stops_answering_ends_the_run(trained: str, kind: type[Hangs]) -> None:
    started = time.perf_counter()
    with serving(kind(trained).app()) as url:
        report = run_checks(Target(url, silence_s=0.5), Level.QUICK)
    assert time.perf_counter() - started < 10
    assert not report.passed and report.counts[Status.ERROR] > 10
    assert "stopped answering during" in report.results[-1].summary


def test_a_check_has_its_own_limit(trained: str) -> None:
    with serving(HangsLater(trained).app()) as url:
        report = run_checks(Target(url, silence_s=1.5, check_s=0.3), Level.QUICK, only=["stream"])
    assert report.result("stream").summary == "not done within 0.3 s"


def test_a_key_comes_from_the_environment_and_is_never_shown(
    trained: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with serving(WantsKey(trained).app()) as url:
        with pytest.raises(UnavailableError, match="wants an API key"):
            run_checks(Target(url), Level.QUICK)
        with pytest.raises(UsageError, match="not set"):
            run_checks(Target(url, key_variable="NO_SUCH_KEY"), Level.QUICK)
        monkeypatch.setenv("SOME_KEY", "secret-key")
        page = tmp_path / "report.html"
        ran = k3("check", url, "--key-variable", "SOME_KEY", "--only", "chat", "--html", str(page), "--json")
        assert ran.code == 0
        assert "secret-key" not in ran.out + ran.err + page.read_text()


def test_a_hosted_endpoint_is_judged_by_what_it_accepts(trained: str) -> None:
    with serving(Hosted(trained).app()) as url:
        report = run_checks(Target(url), Level.FULL, only=["chat", "stream", "effort", "repeat", "needles-8", "stop"])
    assert "temperature and seed are refused" in report.learned
    assert report.result("repeat").status is Status.NOT_APPLICABLE
    assert report.passed and report.counts[Status.PASS] == 5


def test_being_told_to_wait_is_no_fault(trained: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("k3stack.verify.endpoint._WAITS_S", (0.01, 0.05, 0.1, 0.2))
    with serving(Busy(trained).app()) as url:
        report = run_checks(Target(url), Level.QUICK, only=["chat", "stream", "needles-8"])
    assert report.passed and "HTTP 429" in report.learned[-1]


def test_an_endpoint_that_cannot_see_is_not_blamed(trained: str) -> None:
    with serving(TextOnly(trained).app()) as url:
        report = run_checks(Target(url), Level.FULL, only=["images", "images-bad"])
    assert report.counts == {Status.NOT_APPLICABLE: 2} and not report.passed


LEGAL = {"different": Different, "hosted": Hosted, "strict": Strict, "text only": TextOnly}


def bad(report: CheckReport) -> dict[str, str]:
    return {one.id: one.summary for one in report.results if one.status in (Status.FAIL, Status.ERROR)}


def test_what_differs_and_is_right_is_no_fault(trained: str) -> None:
    with serving(Different(trained).app()) as url:
        report = run_checks(Target(url), Level.QUICK)
    assert bad(report) == {} and report.result("model-name").status is Status.WARN


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(LEGAL))
def test_what_differs_and_is_right_passes_the_full_level(trained: str, kind: str) -> None:
    with serving(LEGAL[kind](trained).app()) as url:
        assert bad(run_checks(Target(url), Level.FULL)) == {}


def test_the_same_seed_sends_the_same_prompts(trained: str) -> None:
    reports = [run_checks(Target(trained, seed=seed), Level.QUICK, only=["chat"]) for seed in (1, 1, 2)]
    sent = [report.results[0].evidence[0].sent for report in reports]
    assert sent[0] == sent[1] != sent[2]


def test_exit_codes_and_files(trained: str, tmp_path: Path) -> None:
    page, junit = tmp_path / "report.html", tmp_path / "report.xml"
    assert k3("check", trained, "--only", "models", "--html", str(page), "--junit", str(junit)).code == 0
    assert page.read_text().startswith("<!doctype html>") and junit.read_text().startswith("<?xml")
    assert k3("check", trained, "--level", "endless").code == 2
    assert k3("check", "localhost:1").code == 2
    assert k3("check", trained, "--html", str(tmp_path / "nowhere" / "report.html")).code == 2
    assert k3("check", "http://127.0.0.1:9").code == 3


def test_a_wrong_model_name_is_said(trained: str) -> None:
    with pytest.raises(UnavailableError, match="no model another"):
        run_checks(Target(trained, model="another"), Level.QUICK)


def test_metrics_of_a_gauge_with_labels_are_added_up() -> None:
    fake = FakeK3()
    fake.running = 3
    with serving(fake.app()) as url:
        from k3stack.verify.endpoint import Endpoint
        from k3stack.verify.learn import learn
        from k3stack.verify.session import Session

        async def ask() -> float | None:
            async with Endpoint(Target(url)) as endpoint:
                session = Session(endpoint, await learn(endpoint), Level.QUICK, 1)
                return await session.gauge("no_such", "vllm:num_requests_running")

        assert asyncio.run(ask()) == 3.0
