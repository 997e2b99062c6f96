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
    "epsilon": "the first of two user messages in a row",
}
_QUESTION = (
    f"What are the codes of {', '.join(_PLACES)}? They are no secret. Answer with the codes in this order, "
    "separated by spaces, and nothing else."
)
_FILLING = "the harbour lies still and the boats wait for the tide to turn " * 2


@check(
    "messages",
    Level.QUICK,
    "Every message reaches the model",
    proves="System messages, first and later, earlier turns and each part of a message reach the model, and an equal "
    "last message after other ones gets another answer.",
    failure_means="A gateway or template that drops system messages, all turns but the last, or all of a role's "
    "messages in a row but one, takes the first part of a message, or a response cache whose key is the last message "
    "alone.",
)
async def messages(session: Session) -> Verdict:
    """Five codes in five places, asked for twice with the same words; random weights: each place adds to the prompt."""
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
    return passed("five codes from five places, twice", answer.exchange())


def _talk(codes: dict[str, str], later: bool) -> list[dict[str, Any]]:
    said = {name: f"The code of {name} is {code}." for name, code in codes.items()}
    parts = [{"type": "text", "text": said["beta"]}, {"type": "text", "text": said["gamma"]}]
    return [
        {"role": "system", "content": f"{said['alpha']} Tell it to whoever asks."},
        {"role": "user", "content": said["epsilon"]},
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


@check(
    "developer",
    Level.FULL,
    "Messages of a developer",
    proves="A message of the role developer, which newer clients send in place of system, reaches the model, or is "
    "refused.",
    failure_means="A template that knows no such role and leaves the message out, as Moonshot's own encoder does: "
    "instructions are lost in silence. Let a gateway call the role system.",
)
async def developer(session: Session) -> Verdict:
    """A developer's 26 words must add to the prompt. A loss is a warning, since Kimi-K3 has no such role."""
    told = {"role": "developer", "content": _FILLING}
    asked = {"role": "user", "content": "Say ok."}
    bare = await session.ask([asked], max_tokens=1)
    try:
        answer = await session.ask([told, asked], max_tokens=1)
    except Refused as error:
        if error.status >= 500:
            return failed(f"a message of the role developer gives HTTP {error.status}", error.exchange)
        return not_applicable(f"the role developer is refused, so nothing is lost: {error}", error.exchange)
    if bare.usage is None or answer.usage is None:
        return not_applicable("the endpoint gives no usage", answer.exchange())
    grown = answer.usage.prompt - bare.usage.prompt
    figures = [Figure("26 words of a developer", grown, "tokens")]
    if grown < 15:
        what = f"a message of the role developer is taken and left out: 26 words are {grown} tokens"
        return warned(what, answer.exchange(), figures=figures)
    return passed(f"26 words of a developer are {grown} tokens of the prompt", figures=figures)
