"""Mixed work for as long as asked: what only shows after hours."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from k3stack.verify.answer import Answer
from k3stack.verify.endpoint import Lost, Refused
from k3stack.verify.registry import Verdict, check, failed, passed, warned
from k3stack.verify.report import Exchange, Figure, Level, Plot, Series
from k3stack.verify.session import Session
from k3stack.verify.statistics import median, percentile
from k3stack.verify.strict import call_fault
from k3stack.verify.texts import copy_prompt, copy_text, document
from k3stack.verify.toolbox import BOOK, order

_WORKERS = 16
_BINS = 40
# A run whose last quarter is slower than its first by this factor is wearing out.
_DRIFT = 1.5


@dataclass(slots=True)
class _Log:
    """What happened: (seconds since the start, seconds it took) of each request, and what went wrong."""

    started: float = field(default_factory=time.perf_counter)
    times: list[tuple[float, float]] = field(default_factory=list)
    faults: list[tuple[float, Exchange]] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)


Job = Callable[[Session], Awaitable[tuple[str, Answer | None]]]


@check(
    "soak",
    Level.SOAK,
    "Soak",
    proves="Mixed work, 16 requests at a time with some left half way, stays right and does not get slower.",
    failure_means="State, memory or cache blocks that leak with every cancelled or failed request; some builds answer "
    "'!!!!' after days.",
    limit_s=float("inf"),
)
async def soak(session: Session) -> Verdict:
    """Recall, copies, forced calls, second turns and abandoned streams, until the time is up."""
    log = _Log()
    jobs: tuple[Job, ...] = (_recall, _copy, _call, _second_turn, _abandon)
    deadline = log.started + session.target.soak_s
    await asyncio.gather(*(_work(session, jobs, log, number, deadline) for number in range(_WORKERS)))
    drift = _drift(log)
    figures = [
        Figure("requests", sum(log.kinds.values()), ""),
        Figure("wrong", len(log.faults), ""),
        Figure("median seconds", median([seconds for _, seconds in log.times]), "s"),
        Figure("p99 seconds", percentile([seconds for _, seconds in log.times], 99), "s"),
        Figure("last quarter over first, median", drift, "x"),
        *(Figure(f"of them: {kind}", count, "") for kind, count in sorted(log.kinds.items())),
    ]
    plots = [_plot(log, session.target.soak_s)]
    total = sum(log.kinds.values())
    if log.faults:
        at, first = log.faults[0]
        what = f"{len(log.faults)} of {total} wrong, the first after {at:.0f} s: {first.note}"
        return failed(what, *(one for _, one in log.faults[:5]), figures=figures, plots=plots)
    if drift > _DRIFT:
        return warned(f"{total} requests right, but {drift:.1f} times slower at the end", figures=figures, plots=plots)
    return passed(f"{total} requests in {session.target.soak_s:.0f} s, all right", figures=figures, plots=plots)


async def _work(session: Session, jobs: tuple[Job, ...], log: _Log, number: int, deadline: float) -> None:
    turn = number
    while time.perf_counter() < deadline:
        job = jobs[turn % len(jobs)]
        turn += 1
        began = time.perf_counter()
        fault, answer = "", None
        evidence = Exchange("", "")
        try:
            fault, answer = await job(session)
        except (Refused, Lost) as error:
            fault, evidence = str(error), error.exchange
        now = time.perf_counter()
        log.kinds[job.__name__.strip("_").replace("_", " ")] += 1
        if answer is not None:
            log.times.append((now - log.started, now - began))
            evidence = answer.exchange()
        if fault:
            log.faults.append((now - log.started, Exchange(evidence.sent, evidence.received, fault)))
        session.endpoint.forget(200)
        if fault and answer is None:
            await asyncio.sleep(1.0)  # an endpoint that is down is not asked a thousand times a second


async def _recall(session: Session) -> tuple[str, Answer | None]:
    register = document(session.dice, session.dice.randrange(10, 120))
    name, code = register.at(session.dice.random())
    answer = await session.ask(register.ask(name), tokens=48)
    if session.untrained or code in answer.content:
        return "", answer
    return f"{answer.content[:40]!r} instead of {code}", answer


async def _copy(session: Session) -> tuple[str, Answer | None]:
    text = copy_text(session.dice, 30)
    answer = await session.stream(copy_prompt(text), tokens=200)
    if answer.faults:
        return f"malformed stream: {answer.faults[0]}", answer
    if session.untrained or answer.content.strip() == text:
        return "", answer
    return "a copy that is not exact", answer


async def _call(session: Session) -> tuple[str, Answer | None]:
    people = session.dice.randrange(2, 40)
    prompt = order([("book_table", {"restaurant": "Luna", "people": people})])
    answer = await session.ask(prompt, tokens=256, tools=[BOOK], tool_choice="required")
    if session.untrained and answer.finish == "length":
        return "", answer
    if not answer.calls:
        return "no call though one is required", answer
    return call_fault(answer.calls[0].name, answer.calls[0].arguments, [BOOK]), answer


async def _second_turn(session: Session) -> tuple[str, Answer | None]:
    code = session.code()
    messages = [
        {"role": "user", "content": f"Remember this code: {code}. Reply with ok."},
        {"role": "assistant", "content": "ok"},
        {"role": "user", "content": "Which code was it? Answer with the code only."},
    ]
    answer = await session.ask(messages, tokens=48)
    if session.untrained or code in answer.content:
        return "", answer
    return f"{answer.content[:40]!r} instead of {code}", answer


async def _abandon(session: Session) -> tuple[str, Answer | None]:
    register = document(session.dice, 20)
    await session.endpoint.stream(session.body(register.ask("nobody"), max_tokens=256), leave_after=2)
    return "", None


def _drift(log: _Log) -> float:
    """Median time of the last quarter over that of the first."""
    ordered = [seconds for _, seconds in sorted(log.times)]
    quarter = len(ordered) // 4
    if quarter < 5:
        return 1.0
    return median(ordered[-quarter:]) / max(median(ordered[:quarter]), 1e-9)


def _plot(log: _Log, total_s: float) -> Plot:
    width = total_s / _BINS
    bins: list[list[float]] = [[] for _ in range(_BINS)]
    for at, seconds in log.times:
        bins[min(int(at / width), _BINS - 1)].append(seconds)
    lines = tuple(
        Series(
            f"p{percent:.0f}",
            tuple((number * width, percentile(one, percent)) for number, one in enumerate(bins) if one),
        )
        for percent in (50.0, 99.0)
    )
    wrong = Series("wrong", tuple((at, 0.0) for at, _ in log.faults))
    return Plot("Seconds for an answer, over the run", "line", "seconds", "s", (*lines, wrong) if log.faults else lines)
