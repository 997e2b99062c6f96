"""Tool results in the order of the calls that they answer.

No id is ever in the prompt: a result is told apart by its tool's name and by its place. So the order of the
results must be the order of the calls, whatever order a client sends them in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from k3stack.errors import InputError

__all__ = ["in_call_order"]


def in_call_order(messages: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The messages with their positions (`messages[3]`), each run of tool results in the order of its calls.

    A run in which a result names an unknown call id keeps its order. Tool results get `tool`, the name, and
    `index`, the place in the run from 1.

    Raises:
        InputError: a message that is no object, or a result whose tool cannot be told.
    """
    calls: list[tuple[str | None, str | None]] = []  # id and name of the last assistant's calls
    answered = 0
    run: list[tuple[str, Mapping[str, Any]]] = []
    for number, message in enumerate(messages):
        where = f"messages[{number}]"
        if not isinstance(message, Mapping):
            raise InputError("a message is no object", where=where)
        if message.get("role") == "tool":
            run.append((where, message))
            continue
        yield from _answers(run, calls, answered)
        answered += len(run)
        run = []
        if message.get("role") == "assistant":
            calls, answered = [_id_and_name(call) for call in message.get("tool_calls") or ()], 0
        yield where, message
    yield from _answers(run, calls, answered)


def _answers(
    run: list[tuple[str, Mapping[str, Any]]], calls: list[tuple[str | None, str | None]], answered: int
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    places: dict[str, int] = {}
    for place, (call_id, _) in enumerate(calls):
        if call_id is not None:
            places.setdefault(call_id, place)
    found = [places.get(str(message.get("tool_call_id", message.get("id")))) for _, message in run]
    matched = [place for place in found if place is not None]
    order = list(range(len(run)))
    all_matched = len(matched) == len(run)
    if all_matched:
        order.sort(key=lambda position: matched[position])
    for count, position in enumerate(order):
        where, message = run[position]
        index = answered + count + 1
        name = calls[matched[position]][1] if all_matched else None
        name = name or message.get("tool", message.get("name"))
        if name is None and index <= len(calls):
            name = calls[index - 1][1]
        if not isinstance(name, str):
            hint = "Give tool_call_id of a call in the assistant message before it, or name"
            raise InputError("a tool result whose tool cannot be told", where=where, hint=hint)
        yield where, {**message, "tool": name, "index": index}


def _id_and_name(call: object) -> tuple[str | None, str | None]:
    if not isinstance(call, Mapping):
        return None, None
    function = call.get("function", call)
    name = function.get("name") if isinstance(function, Mapping) else None
    call_id = call.get("id")
    return (None if call_id is None else str(call_id)), name
