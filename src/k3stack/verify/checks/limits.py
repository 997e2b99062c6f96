"""Where answers and prompts end: max_tokens, stop, the context."""

from __future__ import annotations

import json
import re
from typing import Any

from k3stack.verify.answer import Answer
from k3stack.verify.endpoint import CHAT, Refused
from k3stack.verify.registry import Verdict, check, failed, not_applicable, passed, warned
from k3stack.verify.report import Exchange, Figure, Level
from k3stack.verify.session import Session

_COUNTING = "Count from 1 to 40, numbers separated by single spaces, nothing else."
_STOP = " 17"


@check(
    "max-tokens",
    Level.QUICK,
    "max_tokens",
    proves="An answer ends after max_tokens, and says that it was cut.",
    failure_means="A gateway that drops or renames the parameter: answers run on and cost, or end without a reason.",
)
async def max_tokens(session: Session) -> Verdict:
    """A long count, cut after 12 tokens, both ways; and by the parameter's newer name."""
    body = session.brief(_COUNTING, tokens=12, max_tokens=12)
    for send, way in ((session.endpoint.chat, "whole answer"), (session.endpoint.stream, "stream")):
        answer = await send(body)
        if answer.finish != "length":
            return failed(f"{way}: finish_reason is {answer.finish!r}, not 'length'", answer.exchange())
        if len(answer.text) > 12 * 24:
            return failed(f"{way}: {len(answer.text)} characters from 12 tokens", answer.exchange())
    renamed = {**body, "max_tokens": None, "max_completion_tokens": 12}
    try:
        answer = await session.endpoint.chat({name: value for name, value in renamed.items() if value is not None})
    except Refused as error:
        return warned("max_tokens is followed; max_completion_tokens, its newer name, is refused", error.exchange)
    if answer.finish != "length" or len(answer.text) > 12 * 24:
        what = "max_completion_tokens, the newer name of max_tokens, is ignored"
        return failed(f"{what}: finish_reason {answer.finish!r}", answer.exchange())
    return passed("all answers are cut at 12 tokens and say so", answer.exchange())


@check(
    "stop",
    Level.QUICK,
    "Stop texts",
    proves="An answer ends before a stop text, streamed and not, and does not contain it.",
    failure_means="A gateway swallows the parameter, or streaming does not hold back what may be the beginning of a "
    "stop text.",
)
async def stop(session: Session) -> Verdict:
    """A count that has to stop before 17; a random model's own answer, stopped in its middle."""
    if session.untrained:
        return await _stop_untrained(session)
    body = session.brief(_COUNTING, tokens=160, stop=[_STOP])
    several = {**body, "stop": ["no such text", _STOP]}
    for send, way, wanted in (
        (session.endpoint.chat, "whole answer", body),
        (session.endpoint.stream, "stream", body),
        (session.endpoint.chat, "second of two stop texts", several),
    ):
        answer = await send(wanted)
        if answer.reasoning and not answer.content:
            return not_applicable("reasoning cannot be turned off and hits the stop text itself", answer.exchange())
        if _STOP in answer.content:
            return failed(f"{way}: the stop text {_STOP!r} is in the answer", answer.exchange())
        if "18" in answer.content or answer.finish != "stop":
            return failed(f"{way}: it goes on, finish_reason {answer.finish!r}", answer.exchange())
        if not answer.content.rstrip().endswith("16"):
            return failed(f"{way}: it ends with {answer.content[-20:]!r} instead of 16", answer.exchange())
        if way == "whole answer":
            whole = answer
    if session.level.includes(Level.FULL) and (verdict := await _stop_at_edges(session, body, whole)):
        return verdict
    return passed("the count ends with 16", answer.exchange())


async def _stop_at_edges(session: Session, body: dict[str, Any], stopped: Answer) -> Verdict | None:
    """A stop text just before max_tokens, and one that never comes, streamed: what was held back for it must come."""
    if stopped.usage:
        tight = await session.endpoint.chat({**body, "max_tokens": stopped.usage.completion + 1})
        if _STOP in tight.content or "18" in tight.content:
            what = f"with max_tokens just after the stop text it says {tight.content[-12:]!r}"
            return failed(f"{what}: max_tokens is looked at before the stop text", tight.exchange())
    held = await session.endpoint.stream({**body, "stop": ["no such text, and it is long"]})
    if held.content.rstrip().endswith("40") or held.finish != "stop":
        return None
    free = await session.endpoint.stream({name: value for name, value in body.items() if name != "stop"})
    if free.content == held.content:
        return None
    what = f"with a stop text that never comes a stream ends with {held.content[-12:]!r}"
    return failed(f"{what} instead of {free.content[-12:]!r}", held.exchange(), free.exchange("without stop"))


async def _stop_untrained(session: Session) -> Verdict:
    if not session.dialect.greedy:
        return not_applicable("answers do not repeat: temperature 0 is refused")
    full = await session.ask(_COUNTING, tokens=48)
    field = "content" if full.content else "reasoning"
    text = full.content or full.reasoning
    word = _middle_word(text)
    if not word:
        return not_applicable("the random answer has no text that occurs only once in its middle", full.exchange())
    wanted = text[: text.index(word)]
    for streamed in (False, True):
        send = session.endpoint.stream if streamed else session.endpoint.chat
        answer = await send(session.body(_COUNTING, tokens=48, stop=[word]))
        got = answer.content if field == "content" else answer.reasoning
        if got != wanted:
            what = f"stopped before {word!r} the answer is {got[:60]!r} instead of {wanted[:60]!r}"
            return failed(what, answer.exchange("stopped"), full.exchange("not stopped"))
    return passed(f"the answer ends before {word!r}, streamed and not", answer.exchange())


def _middle_word(text: str) -> str:
    """A few characters in the second half of a text whose first occurrence is there."""
    for start in range(len(text) // 2, len(text) - 3):
        word = text[start : start + 3]
        if text.index(word) == start and word.isprintable() and "\ufffd" not in word:
            return word
    return ""


@check(
    "overflow",
    Level.FULL,
    "Too long a prompt",
    proves="A prompt longer than the context gets a 4xx that says so, soon, and the endpoint goes on.",
    failure_means="Prompts cut in silence, or a server that dies of them. A gateway's body limit (often 1 or 2 MB) "
    "shows as HTTP 413 long before the context is full.",
    limit_s=300,
)
async def overflow(session: Session) -> Verdict:
    """A prompt somewhat over the limit, then one whose answer could not fit, then an ordinary request."""
    limit = session.knowledge.limit
    if limit is None:
        return not_applicable("/v1/models does not say how long a context may be")
    body = session.body("word " * int(limit * 1.05), tokens=8, max_tokens=8)
    reply = await session.endpoint.post(CHAT, json.dumps(body).encode())
    evidence = Exchange(f"a prompt of {int(limit * 1.05):,} words", f"HTTP {reply.status}\n{reply.text[:600]}")
    figures = [Figure("seconds until it was refused", reply.seconds, "s")]
    if reply.status == 200:
        return failed("a prompt longer than the context is answered: it was cut in silence", evidence, figures=figures)
    if reply.status >= 500:
        return failed(f"too long a prompt gives HTTP {reply.status} instead of a 4xx", evidence, figures=figures)
    await session.ask("Reply with exactly this text: ok", tokens=8)
    if not any(word in reply.text.lower() for word in ("context", "length", "token", "too large", "too long")):
        return warned(f"refused with HTTP {reply.status}, but without saying why", evidence, figures=figures)
    if (real := _limit_told(reply.text)) is not None and real < 0.95 * limit:
        what = f"/v1/models says {limit:,} tokens of context, the refusal {real:,}: clients prepare prompts too long"
        return warned(what, evidence, figures=figures)
    greedy = await _too_much_room(session, limit)
    if greedy is not None:
        return warned(
            "max_tokens beyond the context is taken: the answer may be cut", greedy.exchange(), figures=figures
        )
    return passed(
        f"refused with HTTP {reply.status} in {reply.seconds:.1f} s, with the reason", evidence, figures=figures
    )


def _limit_told(refusal: str) -> int | None:
    """The context that a refusal names, as "maximum context length is 40960 tokens" does."""
    found = re.search(r"context length (?:of|is) ([\d,]{4,})", refusal)
    return int(found[1].replace(",", "")) if found else None


async def _too_much_room(session: Session, limit: int) -> Answer | None:
    """The answer to a request for more tokens than the context holds; None where it is refused, as it should be."""
    try:
        return await session.ask("Reply with exactly this text: ok", max_tokens=limit + 1)
    except Refused:
        return None
