"""One check after another, each within its time, whatever the endpoint does."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from k3stack import __version__
from k3stack.verify.endpoint import Endpoint, Lost, Refused
from k3stack.verify.learn import learn
from k3stack.verify.registry import Check, Verdict, choose, failed
from k3stack.verify.report import CheckReport, CheckResult, Exchange, Level, Status, Target
from k3stack.verify.session import Session

__all__ = ["check_endpoint", "run_checks"]

# Silence after which an endpoint that has just failed a check is taken for dead.
_LAST_CHANCE_S = 30.0

OnResult = Callable[[CheckResult], None]
OnStart = Callable[[Check, int, int], None]


def run_checks(
    target: Target,
    level: Level,
    *,
    only: Iterable[str] = (),
    on_result: OnResult | None = None,
    on_start: OnStart | None = None,
) -> CheckReport:
    """Check an endpoint, from ordinary code. See `check_endpoint`."""
    return asyncio.run(check_endpoint(target, level, only=only, on_result=on_result, on_start=on_start))


async def check_endpoint(
    target: Target,
    level: Level,
    *,
    only: Iterable[str] = (),
    on_result: OnResult | None = None,
    on_start: OnStart | None = None,
) -> CheckReport:
    """Check an endpoint, from within an event loop.

    Args:
        only: ids of checks; these alone run, whatever their level.
        on_result: called with each result as it is there.
        on_start: called with each check before it runs, its number from 0, and how many there are.

    Raises:
        UsageError: an unknown id, or a key variable that is not set.
        UnavailableError: the endpoint cannot be reached or answers no chat request at all.
    """
    chosen = choose(level, only)
    started, clock = datetime.now(UTC), time.perf_counter()
    seed = secrets.randbelow(10**9) if target.seed is None else target.seed
    async with Endpoint(target) as endpoint:
        knowledge = await learn(endpoint)
        session = Session(endpoint, knowledge, level, seed)
        results: list[CheckResult] = []
        dead = ""
        for number, one in enumerate(chosen):
            if on_start:
                on_start(one, number, len(chosen))
            if dead:
                result = _result(one, _error(f"not carried out: {dead}"), 0.0)
            else:
                result = await _carry_out(one, session)
                if result.status is Status.ERROR and not await _alive(session):
                    dead = f"the endpoint stopped answering during {one.id}"
            results.append(result)
            if on_result:
                on_result(result)
    return CheckReport(
        target,
        knowledge.model,
        knowledge.weights,
        knowledge.server,
        level,
        tuple(only),
        started.isoformat(timespec="seconds"),
        time.perf_counter() - clock,
        __version__,
        seed,
        (*knowledge.notes, endpoint.work),
        tuple(results),
    )


async def _carry_out(one: Check, session: Session) -> CheckResult:
    """One check, whatever happens: a refusal that it did not expect is a failure, a silence or a loss an error."""
    limit = session.target.check_s or one.limit_s
    clock = time.perf_counter()
    try:
        async with asyncio.timeout(limit):
            verdict = await one.judge(session)
    except TimeoutError:
        verdict = _error(f"not done within {limit:g} s")
    except Refused as error:
        verdict = failed(f"an ordinary request was refused: {error}", error.exchange)
    except Lost as error:
        verdict = _error(str(error), error.exchange)
    except Exception as error:  # a bug of ours must not cost a report that may have taken an hour
        verdict = _error(f"the check itself broke, please report it: {type(error).__name__}: {error}")
    return _result(one, verdict, time.perf_counter() - clock)


def _error(summary: str, *evidence: Exchange) -> Verdict:
    return Verdict(Status.ERROR, summary, evidence)


def _result(one: Check, verdict: Verdict, seconds: float) -> CheckResult:
    return CheckResult(
        one.id,
        one.title,
        one.proves,
        one.failure_means,
        verdict.status,
        verdict.summary,
        verdict.evidence,
        verdict.figures,
        verdict.plots,
        seconds,
    )


async def _alive(session: Session) -> bool:
    """Whether one token can still be had."""
    try:
        async with asyncio.timeout(_LAST_CHANCE_S):
            await session.endpoint.chat(session.brief("Reply with exactly this text: ok", tokens=1))
    except (TimeoutError, Lost):
        return False
    except Refused:
        return True
    return True
