"""Reasoning: kept apart from the answer, as much as asked for, and taken back in history."""

from __future__ import annotations

from typing import Any

from k3stack.verify.answer import Answer
from k3stack.verify.endpoint import Refused
from k3stack.verify.registry import Verdict, check, failed, not_applicable, passed, warned
from k3stack.verify.report import Figure, Level
from k3stack.verify.session import Session
from k3stack.verify.toolbox import WEATHER

_SUM = "What is 17 * 23? Think step by step, then answer with the number only."


@check(
    "reasoning",
    Level.QUICK,
    "Reasoning kept apart",
    proves="Reasoning comes in its own field, streamed and not, and the answer in content.",
    failure_means="No --reasoning-parser kimi_k3 (or the K2 one), or a parser that never sees the end of thinking: the "
    "answer then stands in the reasoning and content is empty.",
)
async def reasoning(session: Session) -> Verdict:
    """A sum, both ways."""
    tokens = 12 if session.untrained else 64
    whole = await session.ask(_SUM, tokens=tokens)
    streamed = await session.stream(_SUM, tokens=tokens)
    for answer, way in ((whole, "whole answer"), (streamed, "stream")):
        if not answer.reasoning:
            return failed(f"{way}: no reasoning in its own field", answer.exchange())
        if session.untrained:
            continue
        if not answer.content:
            where = "; it was cut by max_tokens" if answer.finish == "length" else ""
            return failed(f"{way}: the content is empty{where}", answer.exchange())
        if "391" not in answer.content:
            return failed(f"{way}: 17 * 23 = 391, it says {answer.content[:60]!r}", answer.exchange())
    figures = [Figure("reasoning", len(whole.reasoning), "characters")]
    if session.level.includes(Level.FULL) and not session.untrained:
        cut = await session.ask(_SUM, max_tokens=8)
        if cut.content and not cut.reasoning and whole.reasoning.startswith(cut.content[:12]):
            what = f"reasoning that max_tokens cut stands in the content: {cut.content[:60]!r}"
            return failed(what, cut.exchange(), whole.exchange("not cut"))
    if session.untrained:
        return passed(
            f"text before the end of thinking is in {whole.reasoning_field}", whole.exchange(), figures=figures
        )
    return passed(f"reasoning is in {whole.reasoning_field}, the answer in content", whole.exchange(), figures=figures)


@check(
    "effort",
    Level.FULL,
    "Reasoning effort",
    proves="low, high and max are accepted, thinking can be turned off, and an unknown effort is refused.",
    failure_means="An engine that ignores the parameter (SGLang falls back to max, silently), or that leaks markers "
    "into the content when thinking is off.",
    limit_s=600,
)
async def effort(session: Session) -> Verdict:
    """Each level once; how long it reasons is reported, not judged: that is the model's choice."""
    low = session.dialect.low
    if not low:
        return not_applicable("no known way to ask for an effort is accepted")
    figures = []
    for level in ("low", "high", "max"):
        try:
            answer = await session.ask(_SUM, tokens=12 if session.untrained else 64, **_with_effort(low, level))
        except Refused as error:
            return failed(f"effort {level!r} is refused: {error}", error.exchange)
        figures.append(Figure(f"reasoning at {level}", len(answer.reasoning), "characters"))
    if session.dialect.off is None:
        return warned("low, high and max are accepted; no known way turns reasoning off", figures=figures)
    off = await session.endpoint.chat(session.brief(_SUM, tokens=12 if session.untrained else 64))
    if off.reasoning:
        return failed("reasoning is turned off, and there is some", off.exchange(), figures=figures)
    return await _unknown_effort(session, off, figures)


async def _unknown_effort(session: Session, off: Answer, figures: list[Figure]) -> Verdict:
    try:
        answer = await session.ask(_SUM, tokens=16, **_with_effort(session.dialect.low, "nonsense"))
    except Refused as error:
        if error.status >= 500:
            return failed(f"an unknown effort gives HTTP {error.status}", error.exchange, figures=figures)
        return passed("all levels work, off is off, an unknown level is refused", off.exchange(), figures=figures)
    return warned("all levels work, but an unknown one is taken in silence", answer.exchange(), figures=figures)


def _with_effort(low: dict[str, Any], level: str) -> dict[str, Any]:
    """The parameter that asks for low effort, asking for another."""
    return {
        name: level if value == "low" else {**value, **{key: level for key, one in value.items() if one == "low"}}
        for name, value in low.items()
    }


@check(
    "history",
    Level.FULL,
    "Earlier reasoning is taken back",
    proves="reasoning_content of earlier turns reaches the prompt, as Kimi-K3 expects of agents, and so does what was "
    "said beside calls.",
    failure_means="A template or gateway that drops it, always or in turns with calls: an empty think channel is "
    "rendered, and the quality of long tool conversations drops in silence.",
)
async def history(session: Session) -> Verdict:
    """The same conversation with and without the reasoning of its first turn: the prompt must be longer with it."""
    thought = "I weigh the options one after another and settle on the harbour. " * 8

    def talk(**extra: str) -> list[dict[str, Any]]:
        return [
            {"role": "user", "content": "Choose a place."},
            {"role": "assistant", "content": "The harbour.", **extra},
            {"role": "user", "content": "Why?"},
        ]

    without = await session.ask(talk(), tokens=1, max_tokens=1)
    counts = {}
    for name in ("reasoning_content", "reasoning"):
        try:
            answer = await session.ask(talk(**{name: thought}), tokens=1, max_tokens=1)
        except Refused as error:
            return failed(f"an assistant turn with {name} is refused: {error}", error.exchange)
        if answer.usage is None or without.usage is None:
            return not_applicable("the endpoint gives no usage")
        counts[name] = answer.usage.prompt - without.usage.prompt
    figures = [Figure(f"prompt tokens of {name}", count, "tokens") for name, count in counts.items()]
    lost, beside = await _beside_calls(session, thought)
    figures += beside
    taken = [name for name, count in counts.items() if count > 40]
    if not taken:
        return failed("reasoning of earlier turns does not reach the prompt", without.exchange(), figures=figures)
    if lost:
        return failed(f"in a turn with calls {lost} does not reach the prompt", without.exchange(), figures=figures)
    if len(taken) == 1:
        return warned(f"only {taken[0]} is taken back; clients that send the other lose it", figures=figures)
    return passed("reasoning and reasoning_content both reach the prompt", without.exchange(), figures=figures)


async def _beside_calls(session: Session, thought: str) -> tuple[str, list[Figure]]:
    """(what of a turn with calls does not add to the prompt, or nothing; the tokens that each adds)."""

    def talk(**extra: str) -> list[dict[str, Any]]:
        call = {
            "id": "call_1",
            "type": "function",
            "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'},
        }
        return [
            {"role": "user", "content": "What is the weather in Oslo?"},
            {"role": "assistant", "content": "ok", "tool_calls": [call], **extra},
            {"role": "tool", "tool_call_id": "call_1", "content": '{"celsius": 4}'},
            {"role": "user", "content": "Is that cold?"},
        ]

    async def counted(**extra: str) -> int:
        answer = await session.ask(talk(**extra), max_tokens=1, tools=[WEATHER])
        return answer.usage.prompt if answer.usage else 0

    bare = await counted()
    ways = {
        "reasoning": max(await counted(reasoning_content=thought), await counted(reasoning=thought)) - bare,
        "the content": await counted(content=thought) - bare,
    }
    figures = [Figure(f"prompt tokens of {what} beside calls", count, "tokens") for what, count in ways.items()]
    return next((what for what, count in ways.items() if count < 40), ""), figures
