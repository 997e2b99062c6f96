"""Different work at the same time: free answers, answers by a schema, forced calls, streams, and clients that leave."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from k3stack.verify.answer import Answer
from k3stack.verify.endpoint import TOO_MANY, Lost, Refused
from k3stack.verify.registry import Verdict, check, failed, not_applicable, passed
from k3stack.verify.report import Exchange, Figure, Level
from k3stack.verify.session import Outcome, Session
from k3stack.verify.strict import call_fault, schema_fault, strict_json
from k3stack.verify.texts import copy_prompt, copy_text, document
from k3stack.verify.toolbox import BOOK, WEATHER

_ROUNDS = 4
_RECORDS = 12
_WORDS = 60
_LEAVING = 4
_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"colour": {"type": "string", "enum": ["red", "green"]}, "count": {"type": "integer"}},
    "required": ["colour", "count"],
    "additionalProperties": False,
}
_FORM = {"type": "json_schema", "json_schema": {"name": "thing", "strict": True, "schema": _SCHEMA}}


@dataclass(frozen=True, slots=True)
class _Job:
    """One request, and what says whether its answer is right: what is wrong with it, or nothing."""

    kind: str
    body: dict[str, Any]
    fault: Callable[[Answer], str]
    streamed: bool = False


@check(
    "mixed",
    Level.FULL,
    "Different work at once",
    proves="Free answers, answers by a schema, forced calls and streams with letters of many scripts stay right when "
    "they run at the same time, and when other clients leave meanwhile.",
    failure_means="A grammar's mask on the wrong row of a batch (free answers become '!!!!', or shaped ones lose their "
    "shape), a decoder that streams share, or an abort that ends a neighbour too. Alone each of them works.",
    limit_s=600,
)
async def mixed(session: Session) -> Verdict:
    """Each kind alone; those that work, four times each at once, beside four streams that are left; twice."""
    if session.untrained:
        return not_applicable("random weights recall and copy nothing; needles-32 compares their answers")
    kinds = [job.kind for job in _jobs(session) if not _wrong(job, await _send(session, job))]
    if len(kinds) < 2:
        return not_applicable("fewer than two kinds of work succeed alone; their own checks say more")
    total = 0
    for _ in range(2):
        jobs = [job for _ in range(_ROUNDS) for job in _jobs(session) if job.kind in kinds]
        counting = "Count from 1 to 300, numbers separated by single spaces, nothing else."
        leaving = [session.brief(counting, max_tokens=600) for _ in range(_LEAVING)]
        outcomes, _ = await asyncio.gather(
            asyncio.gather(*(_send(session, job) for job in jobs)), session.leave(leaving, after=8)
        )
        wrong = [(job, one, fault) for job, one in zip(jobs, outcomes, strict=True) if (fault := _wrong(job, one))]
        if wrong and all(isinstance(one, Refused) and one.status == TOO_MANY for _, one, _ in wrong):
            return not_applicable(f"it takes fewer than {len(jobs) + _LEAVING} requests at once")
        total += len(jobs)
        if wrong:
            job, _, fault = wrong[0]
            what = f"{len(wrong)} of {len(jobs)} wrong beside other work, right alone; first: {job.kind}: {fault}"
            return failed(what, *(_exchange(one, fault) for _, one, fault in wrong[:4]))
    figures = [Figure("answers beside other work", total, ""), Figure("kinds of work", len(kinds), "")]
    return passed(f"{total} answers of {len(kinds)} kinds are right beside each other", figures=figures)


def _jobs(session: Session) -> tuple[_Job, ...]:
    """One new request of each kind. Free ones come first, so that they run when the others begin."""
    register = document(session.dice, _RECORDS)
    name, code = register.at(session.dice.random())
    text = copy_text(session.dice, _WORDS)
    defiant = "Answer with the single word hello, in plain text, without JSON."
    tools = [BOOK, WEATHER]
    return (
        _Job("recall", session.body(register.ask(name), tokens=48), lambda answer: _lacks(answer, code)),
        _Job("copy", session.brief(copy_prompt(text), tokens=400), lambda answer: _uncopied(answer, text), True),
        _Job("JSON by schema", session.body(defiant, tokens=64, response_format=_FORM), _no_json),
        _Job(
            "forced call",
            session.body("Say hello.", tokens=192, tools=tools, tool_choice="required"),
            lambda answer: _no_call(answer, tools),
        ),
    )


async def _send(session: Session, job: _Job) -> Outcome:
    (outcome,) = await session.together([job.body], job.streamed)
    return outcome


def _wrong(job: _Job, outcome: Outcome) -> str:
    if not isinstance(outcome, Answer):
        return str(outcome)
    return "; ".join(outcome.faults) or job.fault(outcome)


def _lacks(answer: Answer, code: str) -> str:
    return "" if code in answer.content else f"it says {answer.content[:60]!r} instead of {code}"


def _uncopied(answer: Answer, text: str) -> str:
    got = answer.content.strip()
    if got == text:
        return ""
    place = next((n for n, (mine, asked) in enumerate(zip(got, text, strict=False)) if mine != asked), len(got))
    return f"at character {place} it says {got[place : place + 20]!r} instead of {text[place : place + 20]!r}"


def _no_json(answer: Answer) -> str:
    try:
        return schema_fault(strict_json(answer.content), _SCHEMA)
    except ValueError:
        return f"no JSON: {answer.content[:60]!r}"


def _no_call(answer: Answer, tools: list[dict[str, Any]]) -> str:
    if not answer.calls:
        return f"no call though one is required; it says {answer.content[:60]!r}"
    return call_fault(answer.calls[0].name, answer.calls[0].arguments, tools)


def _exchange(outcome: Outcome, note: str) -> Exchange:
    found = outcome.exchange if isinstance(outcome, Refused | Lost) else outcome.exchange()
    return Exchange(found.sent, found.received, note)
