"""The server: what it answers, what it refuses, and how it says so."""

import asyncio
from typing import Any

import httpx
import pytest

from k3stack.panel.app import MAX_QUERY_BYTES, PanelApp
from k3stack.panel.checking import MAX_COMMAND_BYTES
from k3stack.panel.dimensions import start
from k3stack.panel.rows import selection

QUERY = f"{selection(start())}&context=65536&concurrency=8"


def ask(method: str, path: str, host: str = "127.0.0.1", **more: Any) -> httpx.Response:
    async def run() -> httpx.Response:
        transport = httpx.ASGITransport(PanelApp())
        async with httpx.AsyncClient(transport=transport, base_url=f"http://{host}:8090") as client:
            return await client.request(method, path, **more)

    return asyncio.run(run())


def error(response: httpx.Response) -> dict[str, str]:
    found: dict[str, str] = response.json()["error"]
    return found


def test_the_page_and_all_it_names() -> None:
    page = ask("GET", "/")
    assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
    names = [part.split('"')[0] for part in page.text.split('src="')[1:]] + ["panel.css", "icon.svg"]
    assert len(names) > 10
    for name in names:
        assert ask("GET", f"/{name}").status_code == 200, name


def test_every_response_carries_a_strict_policy() -> None:
    for response in (ask("GET", "/"), ask("GET", "/api/answer"), ask("GET", "/nothing"), ask("PUT", "/")):
        policy = response.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "script-src 'self'" in policy
        assert "unsafe" not in policy and "http" not in policy and "*" not in policy
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["referrer-policy"] == "no-referrer"


def test_an_answer() -> None:
    shown = ask("GET", f"/api/answer?{QUERY}&form=compose").json()
    assert (shown["context"], shown["concurrency"]) == (65_536, 8)
    assert shown["written"]["form"] == "compose" and shown["selection"] == selection(start())
    assert ask("GET", "/api/answer").json()["selection"] == selection(start())


@pytest.mark.parametrize(
    ("query", "where"),
    [
        (QUERY.replace("context=65536", "context=-1"), "context"),
        (QUERY.replace("concurrency=8", "concurrency=0"), "concurrency"),
        (QUERY.replace("concurrency=8", "concurrency=nan"), "concurrency"),
        (QUERY.replace("context=65536", "context=99999999"), "context"),
        (QUERY.replace("hardware=b300", "hardware=%3Cscript%3E"), "--hardware"),
        (QUERY.replace("version=0.33.0", "version=../../etc/passwd"), "--engine-version"),
        (QUERY.replace("scheme=mxfp4", "scheme="), "scheme"),
        (QUERY.replace("tp8", "tp0"), "tp"),
        (QUERY.replace("utilization=0.9", "utilization=7"), "utilization"),
        (f"{QUERY}&evil=1", "evil"),
        (f"{QUERY}&form=exe", "form"),
        ("engine=vllm", "version"),
    ],
)
def test_a_bad_query_names_its_field(query: str, where: str) -> None:
    response = ask("GET", f"/api/answer?{query}")
    assert response.status_code == 200, "the page asked, and this is its answer"
    assert error(response)["where"] == where
    assert response.headers["content-type"].startswith("application/json")


def test_what_the_rules_refuse_is_told_with_what_to_choose() -> None:
    response = ask("GET", f"/api/answer?{QUERY.replace('features=', 'features=dflash')}")
    assert response.status_code == 200
    assert error(response)["where"] == "vllm-no-dflash" and "SGLang" in error(response)["next"]


def test_a_long_query_is_not_read() -> None:
    response = ask("GET", f"/api/answer?{'a' * (MAX_QUERY_BYTES + 1)}")
    assert response.status_code == 414 and "4,096" in error(response)["what"]


def test_the_doctor() -> None:
    command = "vllm serve moonshotai/Kimi-K3 --tensor-parallel-size 8 --tool-call-parser kimi_k2"
    found = ask("POST", "/api/check?hardware=b300", content=command).json()
    assert not found["good"] and any("kimi_k2" in fault["what"] for fault in found["faults"])
    assert all(fault["source"] for fault in found["faults"])


def test_the_doctor_of_several_commands() -> None:
    side = "sglang serve --model-path moonshotai/Kimi-K3 --trust-remote-code --tp-size 8 --disaggregation-mode"
    found = ask("POST", "/api/check?hardware=b300", content=f"{side} prefill --page-size 64\n{side} decode").json()
    assert [role["name"] for role in found["roles"]] == ["prefill", "decode"] and not found["good"]
    assert [fault["rule"] for fault in found["faults"]] == ["no-router"]
    assert found["assumed"] and not any(role["assumed"] for role in found["roles"])
    assert all(role["line"] and role["faults"] for role in found["roles"])
    one = ask("POST", "/api/check?hardware=b300", content=f"{side} prefill").json()
    assert one["roles"] == [] and one["checked_by"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 200),
        (b"\xff\xfe", 400),
        (b"rm -rf /", 200),
        (b"'unclosed", 200),
        (b"<script>alert(1)</script>", 200),
        (b"x" * (MAX_COMMAND_BYTES + 1), 413),
        (b"x" * 1_000_000, 413),
    ],
)
def test_what_is_no_command_gets_a_clear_message(body: bytes, status: int) -> None:
    response = ask("POST", "/api/check", content=body)
    assert response.status_code == status
    assert error(response)["what"]


def test_a_large_command_is_read() -> None:
    command = "vllm serve moonshotai/Kimi-K3 " + " ".join(f"--flag-{number} {number}" for number in range(3_000))
    assert ask("POST", "/api/check", content=command[:MAX_COMMAND_BYTES]).status_code == 200


def test_only_its_own_names_are_answered() -> None:
    assert ask("GET", "/", host="evil.example").status_code == 403
    assert ask("GET", "/", host="localhost").status_code == 200
    assert ask("GET", "/", headers={"host": "[::1]:8090"}).status_code == 200


def test_names_and_addresses_that_it_was_told() -> None:
    def answered(app: PanelApp, host: str) -> int:
        async def run() -> int:
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url=f"http://{host}") as client:
                return (await client.get("/icon.svg")).status_code

        return asyncio.run(run())

    assert answered(PanelApp(("Panel.example",)), "panel.example") == 200
    assert answered(PanelApp(("0.0.0.0",)), "192.168.1.7:8090") == 200
    assert answered(PanelApp(("0.0.0.0",)), "panel.example") == 403
    assert answered(PanelApp(("192.168.1.7",)), "192.168.1.8") == 403


def test_other_methods_and_pages() -> None:
    assert ask("POST", "/api/answer").status_code == 405
    assert ask("GET", "/api/check").status_code == 405
    assert ask("GET", "/../pyproject.toml").status_code == 404
    head = ask("HEAD", "/")
    assert head.status_code == 200 and not head.content


def test_this_machine() -> None:
    found = ask("GET", "/api/machine").json()
    assert found["count"] >= 0 and (found["hardware"] or found["missing"])


def test_a_websocket_is_closed_and_lifespan_answered() -> None:
    sent: list[Any] = []

    async def run(kind: str, *messages: str) -> None:
        coming = iter([{"type": message} for message in messages])

        async def receive() -> Any:
            return next(coming)

        async def send(message: Any) -> None:
            sent.append(message["type"])

        await PanelApp()({"type": kind}, receive, send)

    asyncio.run(run("lifespan", "lifespan.startup", "lifespan.shutdown"))
    asyncio.run(run("websocket", "websocket.connect"))
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete", "websocket.close"]
