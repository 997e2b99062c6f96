"""What is declared reaches the model: many tools, whole schemas, tools without parameters, one call at a time."""

from __future__ import annotations

from typing import Any

from k3stack.verify.endpoint import Refused
from k3stack.verify.registry import Verdict, check, failed, not_applicable, passed, warned
from k3stack.verify.report import Figure, Level
from k3stack.verify.session import Session
from k3stack.verify.strict import call_fault
from k3stack.verify.toolbox import WEATHER, order, tool

_UNTRAINED = "random weights do not choose to call a tool"
_MANY = 64
_TOKENS_PER_TOOL = 400  # far more than one takes, so that small contexts hold them and an answer


@check(
    "tool-one",
    Level.FULL,
    "One call at a time",
    proves="With parallel_tool_calls false an answer has one call, even when several are asked for.",
    failure_means="A gateway that drops the parameter. Clients that can carry out one call lose the others, or break.",
)
async def tool_one(session: Session) -> Verdict:
    """Two cities in one turn, with parallel calls turned off, both ways."""
    if session.untrained:
        return not_applicable(_UNTRAINED)
    cities = order([("get_weather", {"city": city}) for city in ("Paris", "Tokyo")])
    body = session.body(cities, tokens=192, tools=[WEATHER], parallel_tool_calls=False)
    for send, way in ((session.endpoint.chat, "whole answer"), (session.endpoint.stream, "stream")):
        answer = await send(body)
        if len(answer.calls) > 1:
            return failed(f"{way}: {len(answer.calls)} calls, though parallel_tool_calls is false", answer.exchange())
        if not answer.calls:
            return not_applicable(f"{way}: no call to look at; tool-single says more", answer.exchange())
    return passed("one call both ways", answer.exchange())


@check(
    "tool-empty",
    Level.FULL,
    "A tool without parameters",
    proves="A call of a tool that takes nothing has an empty JSON object as its arguments, streamed and not.",
    failure_means="A parser that gives an empty text, or null: clients that read arguments as JSON break.",
)
async def tool_empty(session: Session) -> Verdict:
    """One call without arguments, both ways."""
    if session.untrained:
        return not_applicable(_UNTRAINED)
    ping = tool("ping", "Say that all is well; it takes nothing", {}, [])
    body = session.body(order([("ping", {})]), tokens=128, tools=[ping])
    for send, way in ((session.endpoint.chat, "whole answer"), (session.endpoint.stream, "stream")):
        answer = await send(body)
        fault = "; ".join(answer.faults) or ("" if answer.calls else f"no call; it says {answer.content[:60]!r}")
        if fault := fault or call_fault(answer.calls[0].name, answer.calls[0].arguments, [ping]):
            return failed(f"{way}: {fault}", answer.exchange())
    return passed("arguments {} both ways", answer.exchange())


@check(
    "tool-many",
    Level.FULL,
    "Many tools",
    proves=f"Of {_MANY} tools the last is known and called, and then the first, though their declarations are cached.",
    failure_means="A gateway that passes on only so many tools, where agents with several tool servers have far more; "
    "or a prefix cache of a hybrid model that brings back pages without their state: tools are then forgotten.",
)
async def tool_many(session: Session) -> Verdict:
    """The last tool is asked for, then the first, with the same front; random weights: twice the tools are twice the
    tokens."""
    text = {"type": "string"}
    many = min(_MANY, (session.knowledge.limit or 10**9) // _TOKENS_PER_TOOL)
    tools = [tool(f"look_up_{n}", f"Look up in list {n}", {"code": text}, ["code"]) for n in range(1, many + 1)]
    if session.untrained:
        counts = []
        for some in ([], tools[: many // 2], tools):
            answer = await session.ask("Say ok.", max_tokens=1, tools=some or None)
            if answer.usage is None:
                return not_applicable("the endpoint gives no usage, and random weights do not choose tools")
            counts.append(answer.usage.prompt)
        first, second = counts[1] - counts[0], counts[2] - counts[1]
        if second < first / 2:
            what = f"{many // 2} tools add {first} tokens to the prompt, as many more only {second}"
            return failed(what, answer.exchange())
        return passed(f"{many} tools add {first + second} tokens to the prompt", answer.exchange())
    for number, which in ((many, f"the last of {many} tools"), (1, "the first of them, asked for when all are cached")):
        name, code = f"look_up_{number}", session.code()
        answer = await session.ask(order([(name, {"code": code})]), tokens=128, tools=tools)
        if not answer.calls:
            return failed(f"{name}, {which}, is not called: {answer.content[:60]!r}", answer.exchange())
        if answer.calls[0].name != name or code not in answer.calls[0].arguments:
            what = f"it calls {answer.calls[0].name} {answer.calls[0].arguments[:60]} instead of {name}"
            return failed(what, answer.exchange())
    return passed(f"the last of {many} tools is called, and then the first", answer.exchange())


@check(
    "tool-names",
    Level.FULL,
    "Names of tools",
    proves="Names with dashes, underscores, digits and dots, as tool servers give them, come back as declared.",
    failure_means="A parser whose pattern for names is too narrow: it misses such calls, or cuts names at their last "
    "dot.",
)
async def tool_names(session: Session) -> Verdict:
    """A call of each of two tools in one turn, both ways; dots may be refused, since OpenAI's own API refuses them."""
    if session.untrained:
        return not_applicable(_UNTRAINED)
    names = ["mcp__notes-v2__read-all", "notes.v2.read"]
    code = session.code()
    for send, way in ((session.endpoint.chat, "whole answer"), (session.endpoint.stream, "stream")):
        try:
            answer = await send(_naming(session, names, code))
        except Refused as error:
            if error.status >= 500 or len(names) == 1:
                raise
            names = names[:1]
            answer = await send(_naming(session, names, code))
        called = [call.name for call in answer.calls]
        if called != names:
            return failed(f"{way}: asked to call {', '.join(names)}, it calls {called}", answer.exchange())
    if len(names) == 1:
        return warned(f"{names[0]} is called; a name with dots is refused, as by OpenAI's own API", answer.exchange())
    return passed(f"{' and '.join(names)} are called both ways", answer.exchange())


def _naming(session: Session, names: list[str], code: str) -> dict[str, Any]:
    tools = [tool(name, "Read a note", {"code": {"type": "string"}}, ["code"]) for name in names]
    return session.body(order([(name, {"code": code}) for name in names]), tokens=192, tools=tools)


@check(
    "tool-spoken",
    Level.FULL,
    "Text beside a call",
    proves="What the model says before a call arrives in the content, streamed and not.",
    failure_means="A parser that drops the text around calls in one of its two ways: users do not see what an agent "
    "says between its steps, and the next turn lacks it.",
)
async def tool_spoken(session: Session) -> Verdict:
    """A code to say, then a call, both ways; what only one way lacks is asked for once more."""
    if session.untrained:
        return not_applicable(_UNTRAINED)
    for _ in range(2):
        code = session.code()
        prompt = (
            f"First say exactly {code} as your answer, then, in the same turn, call a tool for the weather in Lima."
        )
        body = session.body(prompt, tokens=128, tools=[WEATHER])
        whole, streamed = await session.endpoint.chat(body), await session.endpoint.stream(body)
        if not whole.calls or not streamed.calls:
            return not_applicable("no call to look at; tool-single says more", streamed.exchange())
        said = [code in answer.content for answer in (whole, streamed)]
        if all(said):
            return passed(f"{code} is said beside a call, both ways", streamed.exchange())
        if not any(said):
            return not_applicable("the model says nothing beside its call", whole.exchange())
    way = "whole answers" if said[1] else "streams"
    return failed(f"text beside a call is missing in {way} alone", streamed.exchange(), whole.exchange("not streamed"))


_PROSE = "the lighthouse keeper counts the ships that pass before the fog comes in " * 4


@check(
    "tool-schemas",
    Level.FULL,
    "Schemas reach the model",
    proves="Descriptions of tools and parameters, enums, nested properties and definitions are part of the prompt.",
    failure_means="A gateway that translates tools for another API and drops what that does not know: the model then "
    "guesses what arguments mean.",
)
async def tool_schemas(session: Session) -> Verdict:
    """Each part is filled in turn: the prompt must be longer by it."""
    bare = await _counted(session, _declared())
    if bare is None:
        return not_applicable("the endpoint gives no usage")
    words = _PROSE.split()
    parts: dict[str, dict[str, Any]] = {
        "the description of a tool": {"description": _PROSE},
        "the description of a parameter": {"parameter": {"description": _PROSE}},
        "an enum": {"parameter": {"enum": [f"{word}{n}" for n, word in enumerate(words)]}},
        "a nested property": {"inner": {"description": _PROSE}},
    }
    figures, lost = [], []
    for what, filling in parts.items():
        grown = (await _counted(session, _declared(**filling)) or 0) - bare
        figures.append(Figure(f"52 words in {what}", grown, "tokens"))
        if grown < 30:
            lost.append(what)
    defined = await _definition(session)
    if defined is not None:
        figures.append(Figure("52 words in a definition by $ref", defined, "tokens"))
        lost += ["a definition by $ref"] if defined < 30 else []
    if lost:
        return failed(f"not in the prompt: {', '.join(lost)}", figures=figures)
    if defined is None:
        return warned("each part adds to the prompt; a definition by $ref, as many MCP servers send, is refused")
    return passed("each part adds to the prompt what is put there", figures=figures)


def _declared(
    description: str = "x", parameter: dict[str, Any] | None = None, inner: dict[str, Any] | None = None
) -> list[dict[str, Any]]:
    nested = {"type": "object", "properties": {"deep": {"type": "string", "description": "x", **(inner or {})}}}
    kind = {"type": "string", "description": "x", "enum": ["a"], **(parameter or {})}
    return [tool("sort", description, {"kind": kind, "nested": nested}, ["kind"])]


async def _definition(session: Session) -> int | None:
    """Tokens that 52 words in a definition add to the prompt; None where a schema with one is refused."""
    counts = []
    for words in ("x", _PROSE):
        (declared,) = _declared()
        parameters = declared["function"]["parameters"]
        parameters["$defs"] = {"kind": {"type": "string", "description": words}}
        parameters["properties"]["other"] = {"$ref": "#/$defs/kind"}
        try:
            counts.append(await _counted(session, [declared]) or 0)
        except Refused as error:
            if error.status >= 500:
                raise
            return None
    return counts[1] - counts[0]


async def _counted(session: Session, tools: list[dict[str, Any]]) -> int | None:
    answer = await session.ask("Say ok.", max_tokens=1, tools=tools)
    return answer.usage.prompt if answer.usage else None
