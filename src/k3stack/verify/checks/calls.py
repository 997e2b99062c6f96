"""The ids of calls."""

from __future__ import annotations

import json

from k3stack.verify.registry import Verdict, check, failed, not_applicable, passed, warned
from k3stack.verify.report import Figure, Level
from k3stack.verify.session import Session
from k3stack.verify.toolbox import SWITCH, WEATHER, order


@check(
    "call-ids",
    Level.QUICK,
    "Call ids are unique",
    proves="Every call has an id, and no id comes twice in an answer or in a conversation.",
    failure_means="A parser that numbers calls from the history it sees; results are then given to the wrong call, and "
    "strict clients and APIs refuse the conversation (HTTP 400).",
)
async def call_ids(session: Session) -> Verdict:
    """Two calls in one turn, their results, then two calls more; whole and streamed."""
    cities = [{"city": "Paris"}, {"city": "Tokyo"}]
    prompt = order([("get_weather", city) for city in cities])
    first_ids: list[str] = []
    tools = [SWITCH] if session.untrained else [WEATHER]
    # A random model's forced calls are the same streamed or not, and slow where there is no GPU.
    ways = [session.endpoint.chat] if session.untrained else [session.endpoint.chat, session.endpoint.stream]
    for send in ways:
        body = session.forced(prompt, tokens=256, tools=tools, tool_choice="required")
        answer = await send(body)
        ids = [call.id for call in answer.calls]
        if not ids:
            return not_applicable("no call to look at; tool-required says more", answer.exchange())
        if not all(ids):
            return failed("a call has no id", answer.exchange())
        if len(set(ids)) < len(ids):
            return failed(f"one answer has the id {_double(ids)!r} twice", answer.exchange())
        made = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in answer.calls
        ]
        results = [{"role": "tool", "tool_call_id": one, "content": json.dumps({"celsius": 21})} for one in ids]
        turn = [{"role": "assistant", "content": "", "tool_calls": made}, *results]
        following = await send({**body, "messages": [*body["messages"], *turn, *body["messages"]]})
        later = [call.id for call in following.calls]
        if set(ids) & set(later) or len(set(later)) < len(later):
            return failed(f"the conversation has the id {_double(ids + later)!r} twice", following.exchange())
        if set(ids) & set(first_ids):
            shared = sorted(set(ids) & set(first_ids))[0]
            return warned(f"two conversations share the id {shared!r}: histories that are cut or merged repeat ids")
        first_ids += ids + later
    evidence = answer.exchange()
    return passed(f"{len(first_ids)} ids, all different", evidence, figures=[Figure("ids seen", len(first_ids), "")])


def _double(ids: list[str]) -> str:
    return next(one for one in ids if ids.count(one) > 1)
