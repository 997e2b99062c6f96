"""`k3 serve` as a process: it starts, ends on a signal, and names what is wrong; and it survives nonsense."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.run import k3
from tests.reference.conftest import Served
from tests.reference.test_server import HI, TOOLS, picture, wait_until, with_image


@contextmanager
def running(folder: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-m", "k3stack.cli.main", "serve", str(folder), "--port", "0", *arguments]
    code = "from k3stack.cli.main import main; import sys; sys.argv = ['k3', *sys.argv[1:]]; main()"
    process = subprocess.Popen([sys.executable, "-c", code, *command[3:]], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("serving "):
                yield process, line.split(" on ")[1].strip().removesuffix("/v1")
                break
        else:
            raise AssertionError("did not start")
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_running_requests_finish(tiny: Path, how: signal.Signals) -> None:
    with running(tiny, "--drain", "60") as (process, url):
        body = {"messages": HI, "max_tokens": 60, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=60) as answer:
            lines = answer.iter_lines()
            next(lines)
            process.send_signal(how)
            assert list(lines)[-2:] == ["data: [DONE]", ""]
        assert process.wait(60) == 0


@pytest.mark.slow
def test_a_signal_ends_requests_that_take_longer_than_the_drain(tiny: Path) -> None:
    with running(tiny, "--drain", "1") as (process, url):
        body = {"messages": HI, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=60) as answer:
            next(answer.iter_lines())
            process.send_signal(signal.SIGTERM)
            began = time.monotonic()
            process.wait(30)
            assert time.monotonic() - began < 10


def test_what_keeps_a_server_from_starting_is_named(tiny: Path, tmp_path: Path) -> None:
    missing = k3("serve", str(tmp_path / "nothing"), "--port", "0")
    assert missing.code == 3 and "config.json" in missing.err
    device = k3("serve", str(tiny), "--port", "0", "--device", "nodevice")
    assert device.code == 3 and "nodevice" in device.err
    few = k3("serve", str(tiny), "--port", "0", "--pages", "3")
    assert few.code == 2 and "pages" in few.err


def test_a_taken_port_is_named(served: Served, tiny: Path) -> None:
    taken = k3("serve", str(tiny), "--port", served.url.rpartition(":")[2])
    assert taken.code == 3 and "Choose another with --port" in taken.err


VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 2**63, 1e308, -0.5, "", "x", "\ud800", "\x00", [], {}, [[]], [{}], {"": None},
    "required", "auto", "data:image/png;base64,", "https://127.0.0.1/", {"type": "function"}, [1, 2, 999999], ["a", 1],
]  # fmt: skip
GOOD: list[dict[str, Any]] = [
    {"messages": HI, "max_tokens": 2},
    {"messages": HI, "max_tokens": 3, "stream": True, "n": 2, "logprobs": True, "top_logprobs": 2},
    {"messages": HI, "max_tokens": 4, "tools": TOOLS, "tool_choice": "required"},
    {"messages": HI, "max_tokens": 4, "response_format": {"type": "json_object"}, "stop": ["a"]},
    {"messages": with_image(picture()), "max_tokens": 1},
    {"prompt": "abc", "max_tokens": 2, "echo": True, "logprobs": 1},
    {"prompt": [1, 2, 3], "max_tokens": 2, "stream": True},
    {"tokens": [1, 2, 3]},
]
LEFT = 499
PATHS = ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"]


def spoil(value: Any, chance: random.Random) -> Any:
    """One place of a request replaced, dropped or doubled."""
    if isinstance(value, dict) and value and chance.random() < 0.8:
        key = chance.choice(list(value))
        changed = dict(value)
        if chance.random() < 0.1:
            del changed[key]
        elif chance.random() < 0.1:
            changed[str(chance.choice(VALUES))[:9]] = chance.choice(VALUES)
        else:
            changed[key] = spoil(value[key], chance)
        return changed
    if isinstance(value, list) and value and chance.random() < 0.7:
        place = chance.randrange(len(value))
        return [*value[:place], spoil(value[place], chance), *value[place + (chance.random() < 0.9) :]]
    return chance.choice(VALUES)


def malformed(chance: random.Random) -> tuple[str, bytes]:
    body = spoil(chance.choice(GOOD), chance)
    if isinstance(body, dict):
        body.setdefault("max_tokens", 1)
    data = json.dumps(body).encode()
    if chance.random() < 0.15:
        place = chance.randrange(len(data) + 1)
        data = data[:place] + bytes(chance.randrange(256) for _ in range(chance.randrange(4))) + data[place + 1 :]
    return chance.choice(PATHS), data


def bombard(served: Served, count: int, seed: int) -> dict[int, int]:
    chance, statuses = random.Random(seed), dict[int, int]()
    # Without max_tokens a chance answer may go on to the end of the context: then the client leaves.
    with httpx.Client(timeout=3) as client:
        for _ in range(count):
            path, data = malformed(chance)
            try:
                answer = client.post(f"{served.url}{path}", content=data)
            except httpx.ReadTimeout:
                statuses[LEFT] = statuses.get(LEFT, 0) + 1
                continue
            assert answer.status_code in (200, 400, 404, 413), (path, data, answer.text)
            if answer.status_code != 200:
                assert answer.json()["error"]["message"]
            statuses[answer.status_code] = statuses.get(answer.status_code, 0) + 1
    wait_until(served.idle)
    assert served.host.worker.healthy
    return statuses


def test_malformed_requests_are_errors_and_leave_nothing(served: Served) -> None:
    assert bombard(served, 100, 1)[400] > 30


@pytest.mark.slow
def test_ten_thousand_malformed_requests(served: Served) -> None:
    statuses = bombard(served, 10_000, 2)
    print(f"10,000 requests: {statuses}")
    assert statuses[400] > 3000 and statuses[200] > 100
