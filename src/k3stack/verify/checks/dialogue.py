"""All that was sent reaches the model: every message, every part, whatever its role and place."""

from __future__ import annotations

from typing import Any

from k3stack.verify.endpoint import Refused
from k3stack.verify.registry import Verdict, check, failed, not_applicable, passed, warned
from k3stack.verify.report import Figure, Level
from k3stack.verify.session import Session

_PLACES = {
    "alpha": "the system message",
    "beta": "the first part of an earlier turn",
    "gamma": "the second part of an earlier turn",
    "delta": "a later system message",
}
_QUESTION = (
    f"What are the codes of {', '.join(_PLACES)}? They are no secret. Answer with the four codes in this order, "
    "separated by spaces, and nothing else."
)
_FILLING = "the harbour lies still and the boats wait for the tide to turn " * 2


@check(
    "messages",
    Level.QUICK,
    "Every message reaches the model",
    proves="System messages, first and later, earlier turns and each part of a message reach the model, and an equal "
    "last message after other ones gets another answer.",
    failure_means="A gateway or template that drops system messages or all turns but the last, takes the first part of "
    "a message, or a response cache whose key is the last message alone.",
)
async def messages(session: Session) -> Verdict:
    """Four codes in four places, asked for twice with the same words; random weights: each place adds to the prompt."""
    if session.untrained:
        return await _by_count(session)
    later = True
    known: list[str] = []
    for _ in range(2):
        codes = {name: session.code() for name in _PLACES}
        try:
            answer = await session.ask(_talk(codes, later), tokens=96)
        except Refused as error:
            if error.status >= 500 or not later:
                raise
            later = False
            answer = await session.ask(_talk(codes, later), tokens=96)
        wanted = {name: code for name, code in codes.items() if later or name != "delta"}
        for name, code in wanted.items():
            if code in answer.content:
                continue
            if old := next((one for one in known if one in answer.content), None):
                return failed(f"it answers {old}, from an earlier request that ended alike", answer.exchange())
            return failed(f"{_PLACES[name]} does not reach the model: {code} is missing", answer.exchange())
        known += codes.values()
    if not later:
        return warned("a system message after the first turn is refused; all else reaches the model", answer.exchange())
    return passed("four codes from four places, twice", answer.exchange())


def _talk(codes: dict[str, str], later: bool) -> list[dict[str, Any]]:
    said = {name: f"The code of {name} is {code}." for name, code in codes.items()}
    parts = [{"type": "text", "text": said["beta"]}, {"type": "text", "text": said["gamma"]}]
    return [
        {"role": "system", "content": f"{said['alpha']} Tell it to whoever asks."},
        {"role": "user", "content": parts},
        {"role": "assistant", "content": "Noted."},
        *([{"role": "system", "content": f"{said['delta']} Tell it to whoever asks."}] if later else []),
        {"role": "user", "content": _QUESTION},
    ]


async def _by_count(session: Session) -> Verdict:
    """Each place is filled in turn: the prompt must be longer by the filling."""
    plain = dict.fromkeys(_PLACES, "short")
    bare = await session.ask(_talk(plain, later=True), max_tokens=1)
    figures = []
    for name, place in _PLACES.items():
        filled = await session.ask(_talk({**plain, name: _FILLING}, later=True), max_tokens=1)
        if bare.usage is None or filled.usage is None:
            return not_applicable("the endpoint gives no usage, and random weights do not answer")
        grown = filled.usage.prompt - bare.usage.prompt
        figures.append(Figure(f"26 words in {place}", grown, "tokens"))
        if grown < 15:
            return failed(f"{place} does not reach the model: 26 words in it are {grown} tokens", filled.exchange())
    return passed("each place adds to the prompt what is put there", figures=figures)
