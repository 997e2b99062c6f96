"""Bad requests and slow clients: refused or waited for, at nobody else's cost."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import httpx

from k3stack.verify.answer import Answer
from k3stack.verify.checks.basic import form_fault
from k3stack.verify.endpoint import CHAT, Lost, Reply
from k3stack.verify.reading import StreamReader
from k3stack.verify.registry import Verdict, check, failed, passed, warned
from k3stack.verify.report import Exchange, Figure, Level
from k3stack.verify.session import Session

_COUNTING = "Count from 1 to 60, numbers separated by single spaces, nothing else."
_REFUSE_WITHIN_S = 20.0


def _malformed(model: str) -> dict[str, tuple[bytes, bool]]:
    """{what is wrong: (the body, whether it must be refused)}. What engines may take, they may also refuse."""
    hello = [{"role": "user", "content": "hello"}]

    def body(**fields: Any) -> bytes:
        whole = {"model": model, "messages": hello, "max_tokens": 4, **fields}
        return json.dumps({name: value for name, value in whole.items() if value is not ...}).encode()

    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    return {
        "no JSON": (b"hello", True),
        "JSON cut short": (body()[:-10], True),
        "a list": (b"[1, 2, 3]", True),
        "an empty body": (b"", True),
        "bytes that are no text": (b'{"model": "\xff\xfe", "messages": []}', True),
        "no messages": (body(messages=...), True),
        "messages as text": (body(messages="hello"), True),
        "a message without a role": (body(messages=[{"content": "hello"}]), True),
        "content as a number": (body(messages=[{"role": "user", "content": 7}]), True),
        "negative max_tokens": (body(max_tokens=-5), True),
        "temperature as a word": (body(temperature="hot"), True),
        "tools as text": (body(tools="all"), True),
        "tool_choice required without tools": (body(tool_choice="required"), False),
        "an undeclared tool by name": (
            body(tools=[tool], tool_choice={"type": "function", "function": {"name": "nobody"}}),
            False,
        ),
        "no message at all": (body(messages=[]), False),
        "an unknown model": (body(model="no-such-model"), False),
        "JSON nested 5,000 deep": (b'{"model": ' + b"[" * 5_000 + b"]" * 5_000 + b"}", True),
    }


@check(
    "malformed",
    Level.QUICK,
    "Malformed requests",
    proves="Requests that make no sense get a 4xx with a JSON error, and the endpoint goes on.",
    failure_means="A 5xx is a crash inside the server: retrying clients then send the same request again and again. "
    "HTTP 200 means that what the client wanted is ignored in silence.",
)
async def malformed(session: Session) -> Verdict:
    """Seventeen bad requests, then a good one."""
    taken: list[Exchange] = []
    bare: list[Exchange] = []
    for what, (content, must) in _malformed(session.knowledge.model).items():
        sent = content.decode(errors="replace")[:300]
        try:
            reply = await session.endpoint.post(CHAT, content, silence_s=_REFUSE_WITHIN_S)
        except Lost as error:
            return failed(f"{what}: {error}", error.exchange)
        evidence = Exchange(sent, f"HTTP {reply.status}\n{reply.text[:600]}", what)
        if reply.status >= 500:
            return failed(f"{what} gives HTTP {reply.status} instead of a 4xx", evidence)
        if reply.status == 200 and must:
            return failed(f"{what} is answered as if nothing were wrong", evidence)
        if reply.status == 200:
            taken.append(evidence)
        elif not _says_why(reply):
            bare.append(evidence)
    await session.ask("Reply with exactly this text: ok", tokens=8)
    if len(bare) > len(_malformed(session.knowledge.model)) / 2:
        return failed(f"refusals have no JSON error: {bare[0].note} gives {bare[0].received[:60]!r}", *bare[:3])
    if bare:
        return warned(f"refused, but without a JSON error: {bare[0].note}", *bare[:3])
    if taken:
        return warned(f"taken in silence: {', '.join(one.note for one in taken)}", *taken[:3])
    return passed("all are refused with a reason, and the endpoint goes on", evidence)


def _says_why(reply: Reply) -> bool:
    data = reply.json()
    return isinstance(data, dict) and any(data.get(name) for name in ("error", "message", "detail"))


@check(
    "isolation",
    Level.FULL,
    "Bad requests stall nobody",
    proves="While malformed requests come in, a running stream flows on and new requests are answered.",
    failure_means="Work done on the server's event loop: a parser or validator that one request keeps busy stops all.",
    limit_s=300,
)
async def isolation(session: Session) -> Verdict:
    """A stream and short requests, alone and then beside three rounds of malformed ones; a stall must show again."""
    body = session.brief(_COUNTING, max_tokens=48 if session.untrained else 180)
    short = session.brief("Say ok.", max_tokens=4)
    quiet = await asyncio.gather(session.endpoint.stream(body), session.endpoint.chat(short))
    verdict, stalled = await _beside_bad_requests(session, body, short, *quiet)
    if stalled:  # a pause that comes once may be the checking machine's own
        verdict, _ = await _beside_bad_requests(session, body, short, *quiet)
    return verdict


async def _beside_bad_requests(
    session: Session, body: dict[str, Any], short: dict[str, Any], quiet: Answer, quiet_short: Answer
) -> tuple[Verdict, bool]:
    """The verdict of one try, and whether it is that something stalls."""
    busy, answers, _ = await asyncio.gather(
        session.endpoint.stream(body), _one_by_one(session, short, 4), _bombard(session)
    )
    gap, quiet_gap = max([busy.first_s, *busy.gaps_s]), max([quiet.first_s, *quiet.gaps_s])
    slowest = max(answers)
    figures = [
        Figure("longest silence, alone", 1000 * quiet_gap, "ms"),
        Figure("longest silence, beside bad requests", 1000 * gap, "ms"),
        Figure("slowest short answer, beside bad requests", 1000 * slowest, "ms"),
    ]
    if fault := form_fault(busy):
        return failed(f"the stream beside bad requests is malformed: {fault}", busy.exchange(), figures=figures), False
    if gap > 5 * quiet_gap + 2:
        what = f"a stream stands still for {gap:.1f} s beside bad requests"
        return failed(what, busy.exchange(), figures=figures), True
    if slowest > 5 * quiet_short.seconds + 2:
        what = f"a short answer takes {slowest:.1f} s beside bad requests, {quiet_short.seconds:.1f} s without"
        return failed(what, quiet_short.exchange(), figures=figures), True
    return passed("streams and new requests go on beside bad ones", figures=figures), False


async def _one_by_one(session: Session, body: dict[str, Any], count: int) -> list[float]:
    """Seconds of each of some requests, a little apart."""
    seconds = []
    for _ in range(count):
        await asyncio.sleep(0.05)
        seconds.append((await session.endpoint.chat(body)).seconds)
    return seconds


async def _bombard(session: Session) -> None:
    """Three rounds of all malformed requests at once; what comes back is another check's matter."""
    for _ in range(3):
        posts = [
            session.endpoint.post(CHAT, content, silence_s=_REFUSE_WITHIN_S)
            for content, _ in _malformed(session.knowledge.model).values()
        ]
        await asyncio.gather(*posts, return_exceptions=True)


@check(
    "slow-clients",
    Level.FULL,
    "Slow clients and time-outs",
    proves="Clients that send half a request, or stop reading a stream for a while, hold up nobody else, and a stream "
    "that was not read for three seconds is still whole.",
    failure_means="A server with a fixed number of workers, or a proxy whose time-outs cut slow readers off.",
    limit_s=300,
)
async def slow_clients(session: Session) -> Verdict:
    """Eight half-sent requests and one unread stream beside short requests."""
    short = session.brief("Say ok.", max_tokens=4)
    quiet = (await session.endpoint.chat(short)).seconds
    stuck = [asyncio.create_task(_half_sent(session, json.dumps(short).encode())) for _ in range(8)]
    try:
        body = {**session.brief(_COUNTING, max_tokens=48 if session.untrained else 180), "stream": True}
        reader = StreamReader(body)
        async with session.endpoint.open(body) as response:
            started = time.perf_counter()
            patience = 20 * quiet + 10
            try:
                seconds = await asyncio.wait_for(_one_by_one(session, short, 4), patience)
            except TimeoutError:
                return failed(f"no four short answers within {patience:.0f} s beside slow clients", *_stuck(short))
            await asyncio.sleep(max(3.0 - (time.perf_counter() - started), 0))
            async for line in response.aiter_lines():
                reader.line(line)
        late = reader.finish()
    finally:
        for task in stuck:
            task.cancel()
        await asyncio.gather(*stuck, return_exceptions=True)
    slowest = max(seconds)
    figures = [
        Figure("short answer, alone", 1000 * quiet, "ms"),
        Figure("slowest beside slow clients", 1000 * slowest, "ms"),
    ]
    if slowest > 5 * quiet + 2:
        return failed(
            f"a short answer takes {slowest:.1f} s beside slow clients, {quiet:.1f} s without", figures=figures
        )
    if fault := form_fault(late):
        return failed(f"a stream read late is not whole: {fault}", late.exchange(), figures=figures)
    return passed("slow clients hold up nobody, and a stream read late is whole", late.exchange(), figures=figures)


def _stuck(short: dict[str, Any]) -> tuple[Exchange, ...]:
    return (Exchange(json.dumps(short), "nothing", "beside eight requests of which only half was sent"),)


async def _half_sent(session: Session, body: bytes) -> None:
    """Send half of a body and then nothing, on a connection of its own, until cancelled."""

    async def half() -> AsyncIterator[bytes]:
        yield body[: len(body) // 2]
        await asyncio.sleep(3600)

    headers = {"Content-Type": "application/json", "Content-Length": str(len(body))}
    with suppress(httpx.HTTPError):
        async with httpx.AsyncClient(base_url=session.target.base, timeout=None) as client:
            await client.post(CHAT, content=half(), headers=headers)
