"""From an answer's calls to a decision: send it, send it repaired, ask again, or give up."""

from __future__ import annotations

from dataclasses import dataclass, field

from k3stack.guard.calls import Call, CheckedCall, check_call
from k3stack.guard.policy import OnExhausted, Policy, Problem, Repair, Source
from k3stack.guard.request import ChatRequest

__all__ = ["Finished", "Judged", "judge"]

_CUT = ("length", "content_filter", "abort", "error")
"""Finish reasons of an answer that was stopped from outside: asking again would be stopped again."""

HARMLESS = frozenset(
    {
        "bad_attribute",
        "bad_value",  # the schema decides whether the text may stand
        "empty_tools",
        "loose_marker",
        "missing_tools",
        "repeated_tools",
        "skipped_think",
        "stray_text",
        "truncated",
        "unclosed_response",
        "unclosed_think",
        "unclosed_tools",
        "unexpected_call",
    }
)
"""Parser problems that leave every call with one meaning; the others make the answer invalid."""


@dataclass(frozen=True, slots=True)
class Finished:
    """One choice of one attempt, complete.

    Args:
        calls: as the upstream sent them.
        recovered: calls found in its text, by K3's grammar.
        problems: what the parser said about the text.
        repairs: what was done to the text.
        reason: the upstream's finish reason.
        answered: whether there was any content besides white space.
        reasoned: whether there was any reasoning.
    """

    calls: tuple[Call, ...]
    recovered: tuple[Call, ...]
    problems: tuple[str, ...]
    repairs: tuple[str, ...]
    reason: str
    answered: bool
    reasoned: bool


@dataclass(frozen=True, slots=True)
class Judged:
    """What to do with a finished choice.

    Args:
        calls: to send, checked; for an answer that is not acceptable, the ones that were found.
        problems, repairs: codes.
        reason: the finish reason to send.
        acceptable: nothing is wrong that another attempt could mend, or no attempt could.
        details: one line per problem.
    """

    calls: tuple[CheckedCall, ...]
    problems: tuple[str, ...]
    repairs: tuple[str, ...]
    reason: str
    acceptable: bool
    details: tuple[str, ...] = ()

    @property
    def sendable(self) -> bool:
        """Whether the calls may go out flagged when there is nothing better: each is strict JSON with a name."""
        return all(call.sendable for call in self.calls)


@dataclass(slots=True)
class _Notes:
    problems: list[str]
    repairs: list[str]
    details: list[str] = field(default_factory=list)
    acceptable: bool = True

    def wrong(self, code: str, detail: str) -> None:
        self.problems.append(code)
        self.details.append(detail)
        self.acceptable = False


def judge(finished: Finished, request: ChatRequest, policy: Policy, taken_ids: set[str]) -> Judged:
    """Decide about one finished choice. `taken_ids` gains the ids of its calls."""
    notes = _Notes(list(finished.problems), list(finished.repairs))
    for code in finished.problems:
        if code not in HARMLESS:
            notes.wrong(code, code.replace("_", " "))
    if request.choice == "none" or not request.tools:
        calls: tuple[CheckedCall, ...] = ()
        if finished.calls or finished.recovered:
            notes.problems.append(Problem.UNEXPECTED_CALL)
            notes.repairs.append(Repair.DROPPED_CALL)
    else:
        calls = _checked_calls(finished, request, policy, taken_ids, notes)
    if finished.reason in _CUT:
        calls = _without_cut_calls(calls, policy, notes)
    else:
        _check_the_whole(finished, calls, request, notes)
    reason = _reason(finished.reason, calls, policy, notes)
    return Judged(
        calls=calls,
        problems=_once(notes.problems),
        repairs=_once(notes.repairs + [code for call in calls for code in call.repairs]),
        reason=reason,
        acceptable=notes.acceptable or finished.reason in _CUT,
        details=tuple(notes.details),
    )


def _checked_calls(
    finished: Finished, request: ChatRequest, policy: Policy, taken_ids: set[str], notes: _Notes
) -> tuple[CheckedCall, ...]:
    found = finished.calls
    if finished.recovered and finished.calls:
        # The engine took some calls and left others in the text: what belongs to which is anybody's guess.
        if not {_key(call) for call in finished.recovered} <= {_key(call) for call in finished.calls}:
            notes.wrong(Problem.LEAKED_CALL, "calls both in their place and as text")
    elif finished.recovered:
        notes.repairs.append(Repair.RECOVERED_CALL)
        found = finished.recovered
    checked = tuple(check_call(call, request.tools, taken_ids, policy) for call in found)
    for call in checked:
        notes.problems += call.problems
        notes.details += call.details
        notes.acceptable = notes.acceptable and call.valid
    return checked


def _key(call: Call) -> tuple[str, str]:
    return call.name, "".join(call.arguments.split())


def _without_cut_calls(calls: tuple[CheckedCall, ...], policy: Policy, notes: _Notes) -> tuple[CheckedCall, ...]:
    """An answer that ran into its length: calls that are not whole are left out, and never asked for again."""
    lenient = policy.on_exhausted is OnExhausted.PASS
    whole = tuple(call for call in calls if call.valid or (lenient and call.sendable))
    if len(whole) < len(calls):
        notes.problems.append(Problem.CUT_CALL)
        notes.repairs.append(Repair.DROPPED_CALL)
    return whole


def _check_the_whole(finished: Finished, calls: tuple[CheckedCall, ...], request: ChatRequest, notes: _Notes) -> None:
    if request.choice in ("required", "named") and not calls:
        notes.wrong(Problem.NO_CALL, "tool_choice asks for a call, and there is none")
    if request.named is not None and any(call.call.name != request.named for call in calls):
        notes.wrong(Problem.WRONG_TOOL, f"tool_choice names {request.named!r}")
    if not request.parallel and len(calls) > 1:
        notes.wrong(Problem.PARALLEL_CALLS, f"{len(calls)} calls, but parallel_tool_calls is false")
    if finished.reasoned and not finished.answered and not calls and notes.acceptable:
        notes.wrong(Problem.EMPTY_ANSWER, "reasoning without an answer or a call")


def _reason(reason: str, calls: tuple[CheckedCall, ...], policy: Policy, notes: _Notes) -> str:
    """The finish reason that agrees with the calls. `stop` with a named choice is as OpenAI has it, and stays."""
    if reason == "tool_calls" and not calls:
        notes.repairs.append(Repair.FINISH_REASON)
        return "stop"
    found_in_text = Repair.RECOVERED_CALL in notes.repairs or policy.source is Source.RAW
    return "tool_calls" if reason == "stop" and calls and found_in_text else reason


def _once(codes: list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(code) for code in codes))
