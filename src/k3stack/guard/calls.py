"""One tool call: what the upstream sent, and what is left of it after checking and repair."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from k3stack.guard import codec
from k3stack.guard.codec import StrictJsonError, strict_object
from k3stack.guard.policy import MARKERS, Policy, Problem, Repair
from k3stack.guard.repair import coerced
from k3stack.guard.tools import Tool, ToolSet

__all__ = ["Call", "CheckedCall", "check_call", "new_call_id"]

# `get_weather:3`, `functions.exec:80`: counted from the history, so they repeat once a client shortens it.
_COUNTED_ID = re.compile(r".*:\d+|.*\.\d+|\d+")


@dataclass(frozen=True, slots=True)
class Call:
    """A call as the upstream sent it, all fragments joined."""

    name: str
    arguments: str
    id: str = ""
    problems: tuple[str, ...] = ()
    """What the parser already said about it."""


@dataclass(frozen=True, slots=True)
class CheckedCall:
    """A call after checking.

    Args:
        call: what a client may be given.
        problems: codes, in the order found; empty for a valid call.
        repairs: what was changed to get there.
        sendable: whether the arguments are one strict JSON object and the name is there: what may be passed on
            flagged when no attempt was valid.
        details: one line per problem for logs and errors; they quote schema messages, never whole arguments.
    """

    call: Call
    problems: tuple[str, ...] = ()
    repairs: tuple[str, ...] = ()
    sendable: bool = True
    details: tuple[str, ...] = ()

    @property
    def valid(self) -> bool:
        """Whether nothing is wrong with it."""
        return not self.problems


@dataclass(slots=True)
class _Findings:
    problems: list[str] = field(default_factory=list)
    repairs: list[str] = field(default_factory=list)
    details: list[str] = field(default_factory=list)
    sendable: bool = True

    def problem(self, code: str, detail: str, *, sendable: bool = True) -> None:
        self.problems.append(code)
        self.details.append(detail)
        self.sendable = self.sendable and sendable


def new_call_id() -> str:
    """A unique opaque id. K3's prompt never shows ids, so their form is free."""
    return f"call_{uuid.uuid4().hex}"


def check_call(call: Call, tools: ToolSet, taken_ids: set[str], policy: Policy) -> CheckedCall:
    """Check one call against its declaration, repairing what has one meaning.

    `taken_ids` holds the ids of the conversation and of this answer so far; the call's id is added to it.
    """
    found = _Findings()
    for code in call.problems:
        found.problem(code, f"{call.name or 'call'}: {code.replace('_', ' ')}")
    call = _with_declared_name(call, tools, found)
    call = _with_valid_arguments(call, tools.get(call.name), policy, found)
    call = _with_unique_id(call, taken_ids, policy, found)
    return CheckedCall(
        call, tuple(dict.fromkeys(found.problems)), tuple(found.repairs), found.sendable, tuple(found.details)
    )


def _with_declared_name(call: Call, tools: ToolSet, found: _Findings) -> Call:
    if not call.name:
        found.problem(Problem.MISSING_NAME, "a call without a name", sendable=False)
    elif call.name in tools:
        pass
    elif call.name.startswith("functions.") and call.name.removeprefix("functions.") in tools:
        found.repairs.append(Repair.PREFIX_STRIPPED)
        return replace(call, name=call.name.removeprefix("functions."))
    else:
        found.problem(Problem.UNDECLARED_TOOL, f"{call.name[:80]!r} is not a declared tool")
    return call


def _with_valid_arguments(call: Call, tool: Tool | None, policy: Policy, found: _Findings) -> Call:
    text = call.arguments
    if not text.strip():
        found.repairs.append(Repair.EMPTY_ARGUMENTS)
        text = "{}"
    try:
        arguments = strict_object(text)
    except StrictJsonError as error:
        found.problem(error.problem, f"{call.name}: {error}", sendable=False)
        return call
    if _has_marker(call.name) or (("<|" in text or "\\u003c" in text.lower()) and _has_marker_within(arguments)):
        found.problem(Problem.MARKER_IN_CALL, f"{call.name}: a control marker in the call")
    if tool is not None and (errors := tool.errors(arguments)):
        repaired = coerced(arguments, tool.schema) if policy.coerce else arguments
        if repaired != arguments and not tool.errors(repaired):
            found.repairs.append(Repair.COERCED)
            return replace(call, arguments=codec.dumps(repaired).decode())
        found.problem(Problem.SCHEMA, f"{call.name}: {'; '.join(errors)}")
    return call if text is call.arguments else replace(call, arguments=text)


def _has_marker(text: str) -> bool:
    return any(marker in text for marker in MARKERS)


def _has_marker_within(arguments: Mapping[str, Any]) -> bool:
    pending: list[Any] = [arguments]
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            if _has_marker(value):
                return True
        elif isinstance(value, dict):
            pending.extend(value)
            pending.extend(value.values())
        elif isinstance(value, list):
            pending.extend(value)
    return False


def _with_unique_id(call: Call, taken_ids: set[str], policy: Policy, found: _Findings) -> Call:
    counted = policy.opaque_ids and _COUNTED_ID.fullmatch(call.id)
    if not call.id or call.id in taken_ids or counted:
        found.repairs.append(Repair.NEW_ID)
        call = replace(call, id=new_call_id())
    taken_ids.add(call.id)
    return call
