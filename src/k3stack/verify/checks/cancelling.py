"""Clients that leave."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from k3stack.verify.answer import Answer
from k3stack.verify.registry import Verdict, check, failed, not_applicable, passed
from k3stack.verify.report import Exchange, Figure, Level
from k3stack.verify.session import Session
from k3stack.verify.statistics import median

_RUNNING = ("vllm:num_requests_running", "sglang:num_running_reqs")
_LEAVING = 8
_WHOLE = 4
_PATIENCE_S = 5.0
_LEFT_AFTER_S = 0.5
_NATURAL_S = 4 * _PATIENCE_S  # how long the answers would go on: well beyond our patience, or nothing is proved
_ENDLESS = "Write the numbers from 1 to 200000 separated by spaces, one after another, without leaving any out."


@check(
    "cancel",
    Level.FULL,
    "A client that leaves frees its place",
    proves="When clients close their connections, the engine stops generating for them within seconds.",
    failure_means="A proxy that reads on to the end, or a server that does not notice. Every impatient user then takes "
    "capacity until max_tokens.",
    limit_s=300,
)
async def cancel(session: Session) -> Verdict:
    """Eight long streams, left after their third event, and four whole answers; /metrics says what still runs."""
    tokens, seconds = await _long_enough(session)
    if seconds < 2 * _PATIENCE_S:
        return not_applicable(f"the longest answer that it takes would end in {seconds:.1f} s by itself")
    before = await session.gauge(*_RUNNING)
    latency = await _latency(session)
    bodies = [session.brief(_ENDLESS, max_tokens=tokens) for _ in range(_LEAVING)]
    begun = await session.leave(bodies, after=3)
    if begun < _LEAVING:
        what = f"only {begun} of {_LEAVING} long answers were still running when their clients left"
        return not_applicable(what, Exchange(_ENDLESS, ""))
    if before is None:
        return await _by_latency(session, latency)
    await _leave_whole(session, bodies[:_WHOLE])
    left = time.perf_counter()
    running = await session.gauge(*_RUNNING)
    while running is not None and running > before and time.perf_counter() - left < _PATIENCE_S:
        await asyncio.sleep(0.1)
        running = await session.gauge(*_RUNNING)
    freed = time.perf_counter() - left
    figures = [Figure("until their places were free", freed, "s"), Figure("running before", before, "requests")]
    asked = f"{_LEAVING} streams and {_WHOLE} whole answers of up to {tokens} tokens, left at once"
    evidence = Exchange(asked, f"running: {running}")
    if running is None or running > before:
        what = f"{_PATIENCE_S:.0f} s after {_LEAVING + _WHOLE} clients left, {running:.0f} requests still run"
        return failed(what, evidence, figures=figures)
    return passed(
        f"all {_LEAVING + _WHOLE} places are free after {freed:.1f} s, by /metrics", evidence, figures=figures
    )


async def _leave_whole(session: Session, bodies: list[dict[str, Any]]) -> None:
    """Ask for whole answers and close the connections half a second later."""
    asked = [asyncio.create_task(session.endpoint.chat(body)) for body in bodies]
    await asyncio.sleep(_LEFT_AFTER_S)
    for one in asked:
        one.cancel()
    await asyncio.gather(*asked, return_exceptions=True)


async def _long_enough(session: Session) -> tuple[int, float]:
    """(max_tokens, seconds it would take), as long as the context allows and we need.

    The rate is that of tokens after the first: with the wait for the first it would look slower than it is, and an
    answer that ends by itself would look like one that was cancelled. The faster of two samples counts, since a machine
    that is busy for a moment makes a short one look slow.
    """
    body = session.brief(_ENDLESS, max_tokens=32 if session.untrained else 128)
    samples = [await session.endpoint.stream(body) for _ in range(2)]
    rate, sample = max(map(_rate, samples)), samples[0]
    most = (session.knowledge.limit or 100_000) - (sample.usage.prompt if sample.usage else 256) - 16
    tokens = int(max(min(rate * _NATURAL_S, most), 64))
    return tokens, tokens / rate


def _rate(sample: Answer) -> float:
    """Tokens per second after the first."""
    made = sample.usage.completion if sample.usage else len(sample.gaps_s) + 1
    has_text = len(sample.gaps_s) >= made / 8  # else few tokens gave text, and gaps say nothing about the rate
    return max(made, 1) / max(sum(sample.gaps_s) if has_text else sample.seconds, 1e-3)


async def _latency(session: Session) -> float:
    """Median seconds of three short answers, one after another."""
    answers: list[Answer] = [await session.endpoint.chat(session.brief("Say ok.", max_tokens=4)) for _ in range(3)]
    return median([answer.seconds for answer in answers])


async def _by_latency(session: Session, before: float) -> Verdict:
    await asyncio.sleep(1.0)
    after = await _latency(session)
    figures = [Figure("short answer before", before, "s"), Figure("short answer after", after, "s")]
    if after > 3 * before + 1:
        return failed(
            f"short answers take {after:.1f} s after the clients left, {before:.1f} s before", figures=figures
        )
    return passed("short answers are as fast as before, by latency: there is no /metrics to ask", figures=figures)
