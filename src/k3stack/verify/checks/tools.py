"""Tool calls: one, several, forced, forbidden, with awkward arguments, streamed, and over several turns."""

from __future__ import annotations

import json
from typing import Any

from k3stack.verify.answer import Answer, shorten
from k3stack.verify.endpoint import Refused
from k3stack.verify.registry import Verdict, check, failed, not_applicable, passed, warned
from k3stack.verify.report import Figure, Level, Status
from k3stack.verify.session import Session
from k3stack.verify.strict import call_fault, strict_json
from k3stack.verify.texts import copy_text, plain_words
from k3stack.verify.toolbox import BOOK, NOTE, PROFILE, SWITCH, TOOLS, WEATHER, order

_UNTRAINED = "random weights do not choose to call a tool"
_PARSER = "No --tool-call-parser kimi_k3 or --enable-auto-tool-choice, or a parser that loses calls"

Calls = list[tuple[str, dict[str, Any]]]


@check(
    "tool-single",
    Level.QUICK,
    "A tool call",
    proves="A question that needs a tool gives one valid call of it, streamed and not, with finish_reason tool_calls.",
    failure_means=f"{_PARSER}: the call then arrives as text, or not at all.",
)
async def tool_single(session: Session) -> Verdict:
    """The weather in a city."""
    if session.untrained:
        return not_applicable(_UNTRAINED)
    body = session.body("What is the weather in Nairobi right now? Use a tool.", tokens=128, tools=TOOLS)
    whole, streamed = await session.endpoint.chat(body), await session.endpoint.stream(body)
    for answer, way in ((whole, "whole answer"), (streamed, "stream")):
        calls: Calls = [("get_weather", {"city": "Nairobi"})]
        if fault := _fault(answer, TOOLS) or _wrong_finish(answer) or _wrong_calls(answer, calls, loosely=True):
            return failed(f"{way}: {fault}", answer.exchange())
    return passed(f"get_weather {whole.calls[0].arguments}", whole.exchange())


@check(
    "tool-required",
    Level.QUICK,
    "tool_choice required",
    proves="With tool_choice required there is a call whatever the prompt says, valid against its schema.",
    failure_means="tool_choice ignored by a gateway, no grammar backend, or a grammar that never engages. Agents that "
    "force a call then hang or crash.",
)
async def tool_required(session: Session) -> Verdict:
    """A greeting that needs no tool, both ways. An answer cut by max_tokens proves nothing about its call."""
    tools = [SWITCH] if session.untrained else [BOOK, WEATHER]
    body = session.forced("Say hello.", tools=tools, tool_choice="required")
    judged, loose = 0, list[str]()
    for send, way in ((session.endpoint.chat, "whole answer"), (session.endpoint.stream, "stream")):
        answer = await send(body)
        if session.untrained and answer.finish == "length":
            continue
        judged += 1
        if not answer.calls:
            return failed(f"{way}: no call though one is required; finish_reason {answer.finish!r}", answer.exchange())
        if fault := _fault(answer, tools):
            if session.untrained and "break its schema" in fault:
                loose.append(f"{way}: {fault}")
                continue
            return failed(f"{way}: {fault}", answer.exchange())
    if loose:
        what = "a call is forced, its schema is not: what the model must keep by itself, the guard looks at"
        return warned(f"{what} ({loose[0]})", answer.exchange())
    if not judged:
        return not_applicable("the random model's calls were all cut by max_tokens")
    return passed(f"a valid call of {answer.calls[0].name} is forced", answer.exchange())


@check(
    "tool-none",
    Level.QUICK,
    "tool_choice none",
    proves="With tool_choice none there is no call and no trace of one, though tools are declared and asked for.",
    failure_means="tool_choice ignored by a gateway; or the parser is off and the call's markup is in the content.",
)
async def tool_none(session: Session) -> Verdict:
    """The weather again, with calls forbidden."""
    if session.untrained:
        return not_applicable(_UNTRAINED)
    body = session.body("What is the weather in Nairobi right now?", tokens=96, tools=TOOLS, tool_choice="none")
    for send, way in ((session.endpoint.chat, "whole answer"), (session.endpoint.stream, "stream")):
        answer = await send(body)
        if answer.calls or answer.finish == "tool_calls":
            return failed(f"{way}: a call though none is allowed", answer.exchange())
    return passed("no call when none is allowed", answer.exchange())


@check(
    "tool-parallel",
    Level.FULL,
    "Parallel calls",
    proves="Three calls in one turn arrive as three calls, in order, each with its own arguments.",
    failure_means="A parser that keeps the first call, merges neighbours, or gives one call's arguments to the next.",
)
async def tool_parallel(session: Session) -> Verdict:
    """Three cities in one turn, both ways."""
    cities = ["Paris", "Tokyo", "Lima"]
    return await _ordered(session, [("get_weather", {"city": city}) for city in cities])


@check(
    "tool-nested",
    Level.FULL,
    "Nested arguments",
    proves="Objects, arrays, numbers, large integers, booleans, null, and text that looks like these arrive with their "
    "types.",
    failure_means="A parser that turns what it cannot read into text, or text into what it looks like, in silence; or "
    "a gateway that rounds integers beyond 2^53, makes 3.0 of 3, or leaves out what is null.",
)
async def tool_nested(session: Session) -> Verdict:
    """A profile with two levels of objects and arrays, and a note whose text looks like other types."""
    profile = {
        "name": "Ada Byron",
        "address": {"street": "12 St James's Square", "zip": "SW1Y 4LE", "geo": [51.507, -0.1357]},
        "tags": ["new", "vip"],
        "orders": [{"sku": "A-17", "count": 3, "gift": True}, {"sku": "B-2", "count": 1, "gift": False}],
        "note": None,
        "number": 9_007_199_254_740_993,  # 2^53 + 1: the first integer that floats do not hold
    }
    # A title and a text that look like a number and a boolean, and are text.
    return await _ordered(session, [("save_profile", profile), ("save_note", {"title": "007", "text": "true"})])


@check(
    "tool-unicode",
    Level.FULL,
    "Awkward text in arguments",
    proves="Letters of all scripts, quotes, backslashes, newlines and angle brackets arrive unchanged.",
    failure_means="Escaping done twice or not at all, or streaming that cuts letters of several bytes.",
)
async def tool_unicode(session: Session) -> Verdict:
    """A note whose text is hard to carry."""
    text = 'Größe "日本語" \\n is no newline\n<b>&amp;</b> {"x": [1]} \t🌙 👩‍🚀 end'
    return await _ordered(session, [("save_note", {"title": "Übung", "text": text})])


@check(
    "tool-long",
    Level.FULL,
    "Long arguments",
    proves="An argument of about a thousand tokens arrives whole, streamed and not, and one of 9,000 characters ends.",
    failure_means="max_tokens cuts in silence, a parser whose cost grows with the square of the length, or one whose "
    "buffer ends at 8 kB.",
    limit_s=600,
)
async def tool_long(session: Session) -> Verdict:
    """A note of 300 words, each of which counts; then a streamed one of 9,000 characters, which must only end."""
    text = copy_text(session.dice, 300)
    verdict = await _ordered(session, [("save_note", {"title": "long", "text": text})], tokens=3_000)
    if session.untrained or verdict.status is not Status.PASS:
        return verdict
    text = plain_words(session.dice, 1_300)
    body = session.body(order([("save_note", {"title": "longer", "text": text})]), tokens=5_000, tools=[NOTE])
    answer = await session.endpoint.stream(body)
    size = sum(len(call.arguments) for call in answer.calls)
    # Whether each of so many words is right is the model's matter: here only the end must be there.
    if fault := _fault(answer, [NOTE]):
        return failed(f"stream of {size:,} characters of arguments: {fault}", answer.exchange())
    return verdict


@check(
    "tool-stream",
    Level.FULL,
    "Streamed calls equal whole ones",
    proves="The deltas of a streamed call make up the call that comes without streaming, and one that was cut says so.",
    failure_means="A streaming parser with rules of its own: it loses calls, or sends a piece twice.",
)
async def tool_stream(session: Session) -> Verdict:
    """Forced calls both ways. Random weights under a grammar must repeat themselves exactly."""
    calls: Calls = [("book_table", {"restaurant": "Luna", "people": 4, "outside": True})]
    tools = [SWITCH] if session.untrained else [BOOK, NOTE]
    body = session.forced(order(calls), tools=tools, tool_choice="required")
    whole, streamed = await session.endpoint.chat(body), await session.endpoint.stream(body)
    if streamed.faults:
        return failed(f"the stream is malformed: {'; '.join(streamed.faults)}", streamed.exchange())
    if session.untrained and not session.dialect.greedy:
        return not_applicable("answers do not repeat: temperature 0 is refused")
    if session.untrained and whole.finish == "length":
        return not_applicable("the random model's call was cut by max_tokens", whole.exchange())
    if len(whole.calls) != len(streamed.calls):
        what = f"{len(whole.calls)} calls whole, {len(streamed.calls)} streamed"
        return failed(what, streamed.exchange("streamed"), whole.exchange("whole"))
    for one, other in zip(whole.calls, streamed.calls, strict=True):
        if (one.name, _value(one.arguments)) != (other.name, _value(other.arguments)):
            what = f"whole: {one.name} {one.arguments[:80]}; streamed: {other.name} {other.arguments[:80]}"
            return failed(what, streamed.exchange("streamed"), whole.exchange("whole"))
    if not session.untrained and (cut := await _cut_call(session)):
        what = "a streamed call that max_tokens cut ends with tool_calls, as some vLLM releases do, not with length"
        return warned(f"{what}: its arguments are {cut.calls[-1].arguments[-40:]!r}", cut.exchange())
    return passed("the same calls both ways", streamed.exchange())


async def _cut_call(session: Session) -> Answer | None:
    """A streamed call that max_tokens cut and that is said to be complete; None where it is told rightly."""
    calls: Calls = [("save_note", {"title": "long", "text": copy_text(session.dice, 120)})]
    answer = await session.endpoint.stream(session.brief(order(calls), max_tokens=48, tools=[NOTE]))
    complete = answer.finish in ("tool_calls", "stop") and answer.calls
    return answer if complete and not isinstance(_value(answer.calls[-1].arguments), dict) else None


@check(
    "tool-named",
    Level.FULL,
    "tool_choice by name",
    proves="A tool that is chosen by name is the one that is called.",
    failure_means="Kimi-K3 itself knows only auto, none and required; Moonshot's API ignores a name, vLLM and SGLang "
    "build it from a grammar. Clients that rely on it (LangChain, Instructor) break where it is ignored.",
)
async def tool_named(session: Session) -> Verdict:
    """A greeting, with a tool chosen by name."""
    named = SWITCH if session.untrained else NOTE
    name = named["function"]["name"]
    choice = {"type": "function", "function": {"name": name}}
    try:
        body = session.forced("Say hello.", tools=[BOOK, named], tool_choice=choice)
        answer = await session.endpoint.chat(body)
    except Refused as error:
        if error.status >= 500:
            return failed(f"a tool chosen by name gives HTTP {error.status}", error.exchange)
        return warned("a tool chosen by name is refused", error.exchange)
    if session.untrained and answer.finish == "length":
        return not_applicable("the random model's call was cut by max_tokens", answer.exchange())
    if not answer.calls:
        return warned("a tool chosen by name is ignored, as by Moonshot's own API", answer.exchange())
    wrong = [call.name for call in answer.calls if call.name != name]
    if fault := f"it calls {wrong[0]} instead" if wrong else _fault(answer, [named]):
        return failed(fault, answer.exchange())
    return passed("the named tool is called", answer.exchange())


@check(
    "tool-turns",
    Level.FULL,
    "Tool results over several turns",
    proves="Results reach the model whole and under the call that they answer, even when they come in another order "
    "or in parts, and a turn with calls needs no content.",
    failure_means="Results matched by position instead of by id, cut, or known as text alone: agents then act on the "
    "wrong result, or on none.",
)
async def tool_turns(session: Session) -> Verdict:
    """Two long results with codes at their ends, in the opposite order of their calls; the turn's content is null."""
    if session.untrained:
        return not_applicable("random weights do not read results")
    paris, oslo = session.code(), session.code()
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "Get the station codes of Paris and Oslo with get_weather."},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "I need both.",
            "tool_calls": [_made_call("call_p", "Paris"), _made_call("call_o", "Oslo")],
        },
        {"role": "tool", "tool_call_id": "call_o", "content": _long_result(session, oslo)},
        {"role": "tool", "tool_call_id": "call_p", "content": _long_result(session, paris)},
        {"role": "user", "content": "Which station code did the call for Oslo return? Answer with the code only."},
    ]
    answer = await session.ask(messages, tokens=64, tools=[WEATHER])
    if oslo in answer.content and paris not in answer.content:
        return await _result_parts(session, messages, answer)
    if paris in answer.content:
        return failed("it takes the result of the other call: results are matched by position", answer.exchange())
    return failed(f"it says {answer.content[:80]!r} instead of {oslo}", answer.exchange())


async def _result_parts(session: Session, messages: list[dict[str, Any]], whole: Answer) -> Verdict:
    """The same with a result in parts, as OpenAI's API allows and agents send it."""
    code = session.code()
    parts = [{"type": "text", "text": json.dumps({"city": "unknown", "station": code})}]
    turns = [{**one, "content": parts} if one.get("tool_call_id") == "call_o" else one for one in messages]
    try:
        answer = await session.ask(turns, tokens=64, tools=[WEATHER])
    except Refused as error:
        if error.status >= 500:
            return failed(f"a result in parts gives HTTP {error.status}", error.exchange)
        return warned("results as text reach the model; a result in parts is refused", error.exchange)
    if code not in answer.content:
        what = f"a result in parts does not reach the model: it says {answer.content[:60]!r} instead of {code}"
        return failed(what, answer.exchange(), whole.exchange("as text"))
    return passed("the results reach the model under their calls, as text and in parts", answer.exchange())


def _long_result(session: Session, station: str) -> str:
    """A result of about 1,300 tokens whose code stands at its end, where a limit on results would cut it."""
    return json.dumps({"city": "unknown", "log": copy_text(session.dice, 400), "station": station})


def _made_call(call_id: str, city: str) -> dict[str, Any]:
    function = {"name": "get_weather", "arguments": json.dumps({"city": city})}
    return {"id": call_id, "type": "function", "function": function}


async def _ordered(session: Session, calls: Calls, tokens: int = 512) -> Verdict:
    """Ask for exactly these calls, both ways, and compare."""
    if session.untrained:
        return not_applicable(_UNTRAINED)
    body = session.body(order(calls), tokens=tokens, tools=[WEATHER, NOTE, PROFILE])
    for send, way in ((session.endpoint.chat, "whole answer"), (session.endpoint.stream, "stream")):
        answer = await send(body)
        fault = _fault(answer, [WEATHER, NOTE, PROFILE]) or _wrong_finish(answer) or _wrong_calls(answer, calls)
        if fault:
            return failed(f"{way}: {fault}", answer.exchange())
    size = sum(len(call.arguments) for call in answer.calls)
    figures = [Figure("arguments", size, "characters"), Figure("longest silence", max(answer.gaps_s, default=0), "s")]
    return passed(f"{len(calls)} exact call{'s' * (len(calls) > 1)} both ways", answer.exchange(), figures=figures)


def _fault(answer: Answer, tools: list[dict[str, Any]]) -> str:
    """What is wrong with an answer that has to be calls, or nothing."""
    if answer.faults:
        return "; ".join(answer.faults)
    if not answer.calls:
        return f"no call; it says {answer.content[:80]!r}"
    if answer.finish not in ("tool_calls", "stop"):
        return f"finish_reason is {answer.finish!r}, not 'tool_calls'"
    faults = [call_fault(call.name, call.arguments, tools) for call in answer.calls]
    return next(filter(None, faults), "")


def _wrong_finish(answer: Answer) -> str:
    """A call that the model chose ends with tool_calls; only a forced one may end with stop, as in OpenAI's API."""
    return "" if answer.finish == "tool_calls" else f"finish_reason is {answer.finish!r} though there are calls"


def _wrong_calls(answer: Answer, calls: Calls, loosely: bool = False) -> str:
    """How the calls differ from those asked for. Loosely: a text may hold more than the one asked for."""
    if len(answer.calls) != len(calls):
        return f"{len(answer.calls)} calls instead of {len(calls)}"
    for got, (name, wanted) in zip(answer.calls, calls, strict=True):
        if got.name != name:
            return f"it calls {got.name} instead of {name}"
        arguments = _value(got.arguments)
        if not isinstance(arguments, dict):
            return f"the arguments of {name} are no object: {_short(arguments)}"
        for key, value in wanted.items():
            if key not in arguments:
                return f"{name}.{key} is missing"
            same = str(value) in str(arguments[key]) if loosely else _same(arguments[key], value)
            if not same:
                return f"{name}.{key} is {_short(arguments.get(key))} instead of {_short(value)}"
    return ""


def _same(got: Any, wanted: Any) -> bool:
    """Whether a value is the one asked for, types and all: Python takes 3, 3.0 and True for equal where JSON does not.

    A whole number may stand for a float, since JSON has one type for both and some languages write 2.0 as 2.
    """
    if isinstance(wanted, dict):
        return (
            isinstance(got, dict)
            and got.keys() == wanted.keys()
            and all(_same(got[name], value) for name, value in wanted.items())
        )
    if isinstance(wanted, list):
        return isinstance(got, list) and len(got) == len(wanted) and all(map(_same, got, wanted))
    if isinstance(wanted, float):
        return isinstance(got, int | float) and not isinstance(got, bool) and got == wanted
    return type(got) is type(wanted) and bool(got == wanted)


def _short(value: Any) -> str:
    return shorten(json.dumps(value, ensure_ascii=False), 80)


def _value(arguments: str) -> Any:
    """The arguments as a value; text that is no JSON stays text, and so equals nothing else."""
    try:
        value = strict_json(arguments)
    except ValueError:
        return arguments
    return value
