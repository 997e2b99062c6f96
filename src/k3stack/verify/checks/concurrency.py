"""Distinct needles under concurrency: the check that finds silent corruption.

Each request has a document of its own and must find its own code. State that leaks from one request to another, slots
that are recycled dirty, transfers that are not awaited: single requests never show them, these do.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from k3stack.verify.answer import Answer
from k3stack.verify.endpoint import TOO_MANY, Refused
from k3stack.verify.likeness import same
from k3stack.verify.registry import Verdict, check, failed, not_applicable, passed, warned
from k3stack.verify.report import Exchange, Figure, Level
from k3stack.verify.rounding import Strayed, explained_by_copies
from k3stack.verify.session import Session
from k3stack.verify.statistics import ratio
from k3stack.verify.texts import document

_RECORDS = 40
_UNTRAINED_RECORDS = 8
_UNTRAINED_TOKENS = 10
_SHARED = 120  # records: about 2,400 tokens, more than a block of any K3 deployment (768 or 1,536)
_UNTRAINED_SHARED = 16
_TOO_MANY = "was told to wait five times"
_PROVES = "Requests that run at the same time do not see each other: each finds the code of its own document."
_MEANS = (
    "State of one request in another: recycled KDA slots that are not zeroed, a half-transferred cache between prefill "
    "and decode, CUDA graphs at some batch size. Single requests pass; do not serve anyone with this."
)


@check("needles-8", Level.QUICK, "Distinct needles, 8 at once", proves=_PROVES, failure_means=_MEANS, limit_s=300)
async def needles_8(session: Session) -> Verdict:
    """Eight documents at once."""
    return await _needles(session, at_once=8, waves=1)


@check("needles-32", Level.FULL, "Distinct needles, 32 at once", proves=_PROVES, failure_means=_MEANS, limit_s=900)
async def needles_32(session: Session) -> Verdict:
    """Two waves of 32, with requests that are left half way in between, so that slots are used again."""
    return await _needles(session, at_once=32, waves=2)


@check("needles-128", Level.FULL, "Distinct needles, 128 at once", proves=_PROVES, failure_means=_MEANS, limit_s=900)
async def needles_128(session: Session) -> Verdict:
    """128 short documents at once; of random weights 16 prompts, four times each, since they may run on a CPU."""
    if session.untrained:
        return await _needles(session, at_once=64, waves=1, alone=16)
    return await _needles(session, at_once=128, waves=1, records=10)


@check(
    "prefix-shared",
    Level.QUICK,
    "A shared prefix, 8 at once",
    proves="Requests that run at the same time and begin alike, as those of one agent's users do, get answers of their "
    "own.",
    failure_means="Requests that are still being read share cache blocks or states before these are complete, or are "
    "taken for one another by a cache or a router that looks at the front of a prompt.",
    limit_s=300,
)
async def prefix_shared(session: Session) -> Verdict:
    """One new document, eight different questions about it at once, when nothing of it is cached yet."""
    if session.untrained and not session.dialect.greedy:
        return not_applicable("random weights recall nothing, and answers do not repeat: temperature 0 is refused")
    register = document(session.dice, _UNTRAINED_SHARED if session.untrained else _SHARED)
    asked = session.dice.sample(register.records, 8)
    if session.untrained:
        bodies = [session.body(register.ask(name), tokens=_UNTRAINED_TOKENS) for name, _ in asked]
        wave = await _untrained_wave(session, [await session.telling(body) for body in bodies], streamed=False)
    else:
        bodies = [session.body(register.ask(name), tokens=48) for name, _ in asked]
        outcomes = await session.together(bodies)
        owners = {code: number for number, (_, code) in enumerate(asked)}
        found = [_recall_fault(one, asked[n][1], n, owners) for n, one in enumerate(outcomes)]
        exchanges = [_exchange(outcomes[n], f"request {n}: {fault}") for n, fault in enumerate(found) if fault]
        wave = _Wave(tuple(exchanges), len(asked), ())
    if wave.faults:
        what = f"{len(wave.faults)} of 8 wrong; first: {wave.faults[0].note}"
        return failed(what, *wave.faults[:4], figures=wave.figures)
    if wave.strayed:
        return _strayed(wave.strayed, 8, wave.figures)
    if wave.distinct < 4:
        return not_applicable(f"eight prompts get only {wave.distinct} different answers from these random weights")
    return passed("eight questions about one document, each with its own answer", figures=wave.figures)


async def _needles(
    session: Session, at_once: int, waves: int, records: int = _RECORDS, alone: int | None = None
) -> Verdict:
    """Waves of requests with a document each.

    Args:
        records: of each document, for a trained model.
        alone: how many prompts random weights are asked alone first; each is then sent several times at once.
    """
    if session.untrained and not session.dialect.greedy:
        return not_applicable("random weights recall nothing, and answers do not repeat: temperature 0 is refused")
    prompts = alone or at_once
    known = (await _asked_alone(session, prompts)) * (at_once // prompts) if session.untrained else []
    waves_done = []
    for number in range(waves):
        if number:
            await _leave_some(session, at_once // 2)
        streamed = number % 2 == 1
        wave = (
            _untrained_wave(session, known, streamed) if known else _trained_wave(session, at_once, streamed, records)
        )
        waves_done.append(await wave)
    faults = [fault for wave in waves_done for fault in wave.faults]
    if faults and all(fault.note.endswith(_TOO_MANY) for fault in faults):
        return not_applicable(f"it takes fewer than {at_once} requests at once: {len(faults)} were told to wait")
    total = at_once * waves
    right = total - len(faults)
    figures = [Figure("right answers", 100 * ratio(right, total), "%"), *waves_done[-1].figures]
    if faults:
        return failed(f"{len(faults)} of {total} wrong; first: {faults[0].note}", *faults[:4], figures=figures)
    if strayed := [one for wave in waves_done for one in wave.strayed]:
        return _strayed(strayed, total, figures)
    if session.untrained and min(wave.distinct for wave in waves_done) < prompts / 2:
        few = f"{prompts} prompts get only {waves_done[-1].distinct} different answers from these random weights"
        return not_applicable(f"{few}: that they are equal to those alone proves nothing", figures=figures)
    what = "as their answers alone" if session.untrained else "with their own code"
    return passed(f"{total} of {total} answers {what}, {at_once} at once", figures=figures)


def _strayed(strayed: Sequence[Exchange], total: int, figures: Sequence[Figure]) -> Verdict:
    """Rounding that is blown up hides what one request may do to a few others: no pass, and no fault that was shown."""
    what = f"{len(strayed)} of {total} stray from their answers alone, and so does a prompt among copies of itself"
    return warned(f"{what}: rounding, as near ties of random weights blow it up", *strayed[:2], figures=figures)


@dataclass(frozen=True, slots=True)
class _Wave:
    """One wave of requests.

    Attributes:
        faults: an exchange for each wrong answer.
        distinct: how many different answers were right.
        strayed: an exchange for each answer that differs from the one alone by rounding that is blown up.
    """

    faults: tuple[Exchange, ...]
    distinct: int
    figures: tuple[Figure, ...]
    strayed: tuple[Exchange, ...] = ()


async def _trained_wave(session: Session, at_once: int, streamed: bool, records: int) -> _Wave:
    """Judged by recall. Equality with the answer alone is a figure: batching may change a BF16 model's wording."""
    registers = [document(session.dice, records) for _ in range(at_once)]
    wanted = [register.at(session.dice.random()) for register in registers]
    bodies = [session.body(one.ask(name), tokens=48) for one, (name, _) in zip(registers, wanted, strict=True)]
    outcomes = await session.together(bodies, streamed)
    faults = []
    for number, (outcome, (_, code)) in enumerate(zip(outcomes, wanted, strict=True)):
        others = {other: owner for owner, register in enumerate(registers) for _, other in register.records}
        fault = _recall_fault(outcome, code, number, others) or _foreign_thought(outcome, number, wanted, others)
        if fault:
            faults.append(_exchange(outcome, f"request {number}: {fault}"))
    alone = [await session.endpoint.chat(body) for body in bodies[:4]]
    same = sum(isinstance(o, Answer) and o.content == a.content for o, a in zip(outcomes, alone, strict=False))
    return _Wave(tuple(faults), at_once, (Figure("word for word as alone, of 4", same, ""),))


def _recall_fault(outcome: object, code: str, number: int, owners: dict[str, int]) -> str:
    if isinstance(outcome, Refused) and outcome.status == TOO_MANY:
        return _TOO_MANY
    if not isinstance(outcome, Answer):
        return str(outcome)
    if code in outcome.content:
        return ""
    foreign = [(other, owner) for other, owner in owners.items() if other in outcome.text and owner != number]
    if foreign:
        return f"it answers {foreign[0][0]}, which stands in the document of request {foreign[0][1]}"
    return f"it answers {outcome.content[:60]!r} instead of {code}"


def _foreign_thought(outcome: object, number: int, wanted: list[tuple[str, str]], owners: dict[str, int]) -> str:
    """Whether an answer that is right was reasoned about another request: its code, or its question and not our own."""
    if not isinstance(outcome, Answer) or not outcome.reasoning:
        return ""
    codes = [owner for other, owner in owners.items() if owner != number and other in outcome.reasoning]
    if not _names(wanted[number][0], outcome.reasoning):
        prompt = str(outcome.body["messages"])
        asked = ((n, name) for n, (name, _) in enumerate(wanted) if n != number and not _names(name, prompt))
        codes += [n for n, name in asked if _names(name, outcome.reasoning)]
    return f"its reasoning is about the document of request {codes[0]}" if codes else ""


def _names(name: str, text: str) -> bool:
    return re.search(rf"\b{re.escape(name)}\b", text) is not None


async def _asked_alone(session: Session, count: int) -> list[tuple[dict[str, Any], Answer]]:
    """Requests with the answers that they get one after another; asked once, since a model on a CPU takes seconds."""
    return [await session.telling(_untrained_body(session)) for _ in range(count)]


async def _untrained_wave(session: Session, known: list[tuple[dict[str, Any], Answer]], streamed: bool) -> _Wave:
    """Judged by equality: at temperature 0 a prompt has one answer, whoever else is being served, but for rounding."""
    outcomes = await session.together([body for body, _ in known], streamed)
    alone = [answer for _, answer in known]
    faults, strayed, notes, rounded = [], [], [], 0
    for number, (outcome, (body, own)) in enumerate(zip(outcomes, known, strict=True)):
        if not isinstance(outcome, Answer):
            faults.append(_exchange(outcome, f"request {number}: {outcome}"))
        elif same(own, outcome):
            rounded += outcome.meaning != own.meaning
        elif owner := [other for other, one in enumerate(alone) if one.meaning == outcome.meaning]:
            note = f"request {number} has the answer of request {owner[0]}, which is {own.text[:60]!r}"
            faults.append(_exchange(outcome, note))
        else:
            strayed.append(Strayed(body, own, outcome))
            note = f"request {number} differs from its answer alone, which is {own.text[:60]!r}"
            notes.append(_exchange(outcome, note))
    if faults or not await explained_by_copies(session, strayed, len(known)):
        faults, notes = [*faults, *notes], []
    distinct = len({answer.meaning for answer in alone})
    figures = (Figure("different answers among them", distinct, ""), Figure("apart by rounding", rounded, ""))
    return _Wave(tuple(faults), distinct, figures, tuple(notes))


def _untrained_body(session: Session) -> dict[str, Any]:
    register = document(session.dice, session.dice.randrange(2, _UNTRAINED_RECORDS))
    return session.body(register.ask(register.records[0][0]), tokens=_UNTRAINED_TOKENS)


async def _leave_some(session: Session, count: int) -> None:
    """Begin requests and leave them after two pieces, so that their slots are free but dirty."""
    records = _UNTRAINED_RECORDS if session.untrained else _RECORDS // 2
    bodies = [
        session.body(document(session.dice, records).ask("nobody"), tokens=256, max_tokens=256) for _ in range(count)
    ]
    await session.leave(bodies, after=2)


def _exchange(outcome: object, note: str) -> Exchange:
    found = outcome.exchange() if isinstance(outcome, Answer) else getattr(outcome, "exchange", Exchange("", ""))
    return Exchange(found.sent, found.received, note)
