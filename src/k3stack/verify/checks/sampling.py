"""Chance where chance is asked for: temperature, seed, several choices."""

from __future__ import annotations

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
    "Temperature and seed",
    proves="At temperature 1 equal requests get different answers, at temperature 0 the likeliest one, and a seed "
    "repeats an answer.",
    failure_means="A gateway that drops temperature or seed, or answers equal requests from a cache of its own.",
)
async def sampling(session: Session) -> Verdict:
    """Twelve random words: three times at temperature 1, twice with a seed, three times at temperature 0."""
    takes_temperature = "temperature" in session.dialect.steady
    free: dict[str, Any] = {"temperature": 1 if takes_temperature else None, "seed": None}
    body = session.brief(_WORDS, tokens=_TOKENS, **free)
    free_answers = [await session.endpoint.chat(body) for _ in range(3)]
    if not all(answer.text for answer in free_answers):
        return not_applicable(
            "the model's tokens give no text: empty answers prove nothing", free_answers[0].exchange()
        )
    different = len({answer.text for answer in free_answers})
    figures = [Figure("different answers at temperature 1, of 3", different, "")]
    if different == 1:
        what = "three equal requests at temperature 1 get the same answer: temperature is ignored, or a cache answers"
        return failed(what, free_answers[0].exchange(), free_answers[1].exchange(), figures=figures)
    if not session.dialect.greedy:
        return passed("equal requests get different answers; temperature 0 is refused", figures=figures)
    greedy = session.brief(_WORDS, tokens=_TOKENS)
    bare = [await session.telling(greedy) for _ in range(3)]
    first, *others = (answer for _, answer in bare)
    for other in others:
        if other.text != first.text and first.chances and not near_tie(first, other):
            what = "at temperature 0 two answers part where one token is clearly the likeliest: temperature is ignored"
            return failed(what, other.exchange(), first.exchange(), figures=figures)
    if not first.chances and len({answer.text for _, answer in bare}) == 3:
        return warned("three equal requests at temperature 0 get three answers", first.exchange(), figures=figures)
    return await _seeded(session, figures)


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
    proves="n=2 gives two choices of their own, whole and streamed, each under its index.",
    failure_means="A gateway that puts the pieces of all choices under one index, so that their texts are mixed, or "
    "copies one answer. Moonshot's own API refuses n above 1.",
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
    return passed("two choices of their own, both ways", whole.exchange())


def _fault(answer: Answer) -> str:
    if len(answer.others) != 1:
        return f"{len(answer.others) + 1} choices instead of 2"
    if answer.content and answer.others[0] == answer.content:
        return "both choices are the same"
    return ""
