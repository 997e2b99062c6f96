"""Ten thousand requests, one in twenty of them faulty: none lost, none doubled, memory flat."""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.guard.answers import TOOLS, read_stream, read_whole
from tests.guard.scripted import SOAK_FAULTS, Guard, ScriptedUpstream, running_guard

REQUESTS, CONCURRENCY = 10_000, 64
MAY_FAIL = {"500", "cut", "malformed", "always_nan"}


def worker_rss_bytes(guard: Guard) -> int:
    """Resident memory of the guard's worker processes."""
    parent = guard.child.pid
    children = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit() and _parent(path) == parent]
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in children)
    return pages * os.sysconf("SC_PAGE_SIZE")


def _parent(path: Path) -> int:
    try:
        return int((path / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return -1


async def ask(session: aiohttp.ClientSession, url: str, number: int) -> str:
    """One request; how it ended. Anything but its own answer, or an error that says why, fails."""
    streamed = number % 2 == 1
    body = {"model": f"soak:{number}", "messages": [{"role": "user", "content": "x"}], "tools": TOOLS}
    async with session.post(url, json={**body, "stream": streamed}, headers={"x-request-id": f"s{number}"}) as answer:
        data = await answer.read()
        if answer.status != 200:
            assert json.loads(data)["error"]["message"]
            return "error"
    got = read_stream(data) if streamed else read_whole(data)
    if got.error is not None:
        assert not got.calls
        return "error"
    assert got.done and got.calls == [("get_weather", json.dumps({"city": str(number)}))], (number, got)
    assert got.verdict in ("clean", "resampled")
    return got.verdict


@pytest.mark.slow
def test_ten_thousand_requests(upstream: ScriptedUpstream, tmp_path: Any) -> None:
    outcomes: Counter[tuple[str, str]] = Counter()
    memory: list[int] = []

    async def play(guard: Guard) -> None:
        numbers = iter(range(REQUESTS))
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:

            async def worker() -> None:
                for number in numbers:
                    fault = SOAK_FAULTS[number // 20 % len(SOAK_FAULTS)] if number % 20 == 7 else "none"
                    outcomes[fault, await ask(session, guard.url + "/v1/chat/completions", number)] += 1
                    if number % 1000 == 999:
                        memory.append(worker_rss_bytes(guard))

            await asyncio.gather(*(worker() for _ in range(CONCURRENCY)))

    upstream.attempts.clear()
    with (tmp_path / "log").open("w+b") as log, running_guard([upstream.port], log) as guard:
        asyncio.run(play(guard))
        assert guard.metric("k3_guard_in_flight") == 0 and guard.metric("k3_guard_held_bytes") == 0
    assert sum(outcomes.values()) == REQUESTS
    for (fault, outcome), count in outcomes.items():
        wanted = "clean" if fault == "none" else "error" if fault in MAY_FAIL else "resampled"
        assert outcome == wanted, (fault, outcome, count)
    # Asked once where the answer was good or broke off, twice where it was bad and could be had again.
    for number in range(REQUESTS):
        fault = SOAK_FAULTS[number // 20 % len(SOAK_FAULTS)] if number % 20 == 7 else "none"
        attempts = upstream.attempts[f"s{number}"]
        assert attempts == (1 if fault in ("none", "500", "cut", "malformed") else 2), (number, fault, attempts)
    # The first thousands fill caches and pools; after that, nothing may grow.
    print("resident MB after each thousand:", [round(each / 1e6, 1) for each in memory])
    assert memory[-1] - memory[2] < 8e6, memory
