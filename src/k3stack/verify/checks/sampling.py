"""Chance where chance is asked for: temperature, seed, several choices."""

from __future__ import annotations

import asyncio
from typing import Any

from k3stack.verify.answer import Answer
from k3stack.verify.checks.basic import form_fault
from k3stack.verify.endpoint import Refused
from k3stack.verify.likeness import near_tie
from k3stack.verify.registry import Verdict, check, failed, not_applicable, passed, warned
from k3stack.verify.report import Figure, Level
from k3stack.verify.session import Session

_WORDS = "Write twelve random English words, separated by spaces, and nothing else."
_TOKENS = 32


@check(
    "sampling",
    Level.FULL,
    "Temperature, top_p and seed",
    proves="At temperature 1 equal requests get different answers, at temperature 0 or a tiny top_p the likeliest one, "
    "and a seed repeats an answer.",
    failure_means="A gateway that drops temperature, top_p or seed, answers equal requests from a cache of its own, or "
    "sends those that run at the same time on as one.",
)
async def sampling(session: Session) -> Verdict:
    """Twelve random words: three times at temperature 1, two of them at once, three times at temperature 0, twice with
    a tiny top_p, twice with a seed."""
    takes_temperature = "temperature" in session.dialect.steady
    free: dict[str, Any] = {"temperature": 1 if takes_temperature else None, "seed": None}
    body = session.brief(_WORDS, tokens=_TOKENS, **free)
    free_answers = [await session.endpoint.chat(body), *await _pair(session, body)]
    if not all(answer.text for answer in free_answers):
        return not_applicable(
            "the model's tokens give no text: empty answers prove nothing", free_answers[0].exchange()
        )
    different = len({answer.text for answer in free_answers})
    figures = [Figure("different answers at temperature 1, of 3", different, "")]
    if different == 1:
        what = "three equal requests at temperature 1 get the same answer: temperature is ignored, or a cache answers"
        return failed(what, free_answers[0].exchange(), free_answers[1].exchange(), figures=figures)
    if free_answers[1].text == free_answers[2].text:  # chance may do that once
        one, other = await _pair(session, body)
        if one.text == other.text:
            what = "equal requests at temperature 1 get the same answer when they run at the same time"
            return failed(f"{what}: they are sent on as one", one.exchange(), other.exchange(), figures=figures)
    if not session.dialect.greedy:
        return passed("equal requests get different answers; temperature 0 is refused", figures=figures)
    greedy = session.brief(_WORDS, tokens=_TOKENS)
    bare = [await session.telling(greedy) for _ in range(3)]
    first, *others = (answer for _, answer in bare)
    for other in others:
        if other.text != first.text and first.chances and not near_tie(first, other):
            what = "at temperature 0 two answers part where one token is clearly the likeliest: temperature is ignored"
            return failed(what, other.exchange(), first.exchange(), figures=figures)
    if first.chances and takes_temperature and (odd := await _beyond_nucleus(session, first)):
        what = "with top_p 0.000001 two answers leave the likeliest tokens: top_p is ignored"
        return failed(what, odd.exchange(), first.exchange("at temperature 0"), figures=figures)
    if not first.chances and len({answer.text for _, answer in bare}) == 3:
        return warned("three equal requests at temperature 0 get three answers", first.exchange(), figures=figures)
    return await _seeded(session, figures)


async def _pair(session: Session, body: dict[str, Any]) -> tuple[Answer, Answer]:
    """Two answers to equal requests that run at the same time."""
    one, other = await asyncio.gather(session.endpoint.chat(body), session.endpoint.chat(body))
    return one, other


async def _beyond_nucleus(session: Session, likeliest: Answer) -> Answer | None:
    """An answer at temperature 1 that takes unlikely tokens though top_p allows the likeliest alone; None where two
    such answers follow it, or it is refused."""
    body = session.brief(_WORDS, tokens=_TOKENS, temperature=1, seed=None, top_p=1e-6)
    answers = []
    for _ in range(2):
        try:
            answers.append((await session.telling(body))[1])
        except Refused as error:
            if error.status >= 500:
                raise
            return None
    apart = all(one.text != likeliest.text and not near_tie(likeliest, one) for one in answers)
    return answers[0] if apart and answers[0].text != answers[1].text else None


async def _seeded(session: Session, figures: list[Figure]) -> Verdict:
    if "seed" not in session.dialect.steady:
        return passed("temperature is followed; a seed is refused", figures=figures)
    body = session.brief(_WORDS, tokens=_TOKENS, temperature=1, seed=session.dice.randrange(10**6))
    one, other = await session.endpoint.chat(body), await session.endpoint.chat(body)
    if one.text != other.text:
        what = "temperature is followed, but the same seed gives another answer; a GPU's rounding may do that"
        return warned(what, one.exchange(), other.exchange(), figures=figures)
    return passed("temperature and seed are followed", figures=figures)


@check(
    "choices",
    Level.FULL,
    "Several choices",
    proves="n=2 gives two choices of their own, whole and streamed, each under its index, and usage counts both.",
    failure_means="A gateway that puts the pieces of all choices under one index, so that their texts are mixed, "
    "copies one answer, or counts one. Moonshot's own API refuses n above 1.",
)
async def choices(session: Session) -> Verdict:
    """Twelve random words, two choices, both ways."""
    free: dict[str, Any] = {"temperature": 1 if "temperature" in session.dialect.steady else None, "seed": None}
    body = session.brief(_WORDS, tokens=_TOKENS, **free, n=2)
    try:
        whole = await session.endpoint.chat(body)
    except Refused as error:
        if error.status >= 500:
            return failed(f"n=2 gives HTTP {error.status}", error.exchange)
        return not_applicable(f"n=2 is refused: {error}", error.exchange)
    if not whole.others:
        return warned("n=2 gives one choice, and no error", whole.exchange())
    streamed = await session.endpoint.stream(body)
    for answer, way in ((whole, "whole answer"), (streamed, "stream")):
        if fault := form_fault(answer) or _fault(answer):
            return failed(f"{way}: {fault}", answer.exchange())
    if not session.untrained and (fault := await _count_fault(session)):
        return failed(fault, whole.exchange())
    return passed("two choices of their own, both ways, both counted", whole.exchange())


async def _count_fault(session: Session) -> str:
    """What is wrong with the count of two choices that max_tokens cuts, or nothing."""
    counting = "Count from 1 to 200, numbers separated by single spaces, nothing else."
    answer = await session.endpoint.chat(session.brief(counting, max_tokens=16, n=2))
    if answer.usage is None or answer.finish != "length" or not answer.others or not answer.others[0]:
        return ""
    made = answer.usage.completion
    return "" if made == 32 else f"two choices cut at 16 tokens each count {made} completion_tokens instead of 32"


def _fault(answer: Answer) -> str:
    if len(answer.others) != 1:
        return f"{len(answer.others) + 1} choices instead of 2"
    if answer.content and answer.others[0] == answer.content:
        return "both choices are the same"
    return ""
