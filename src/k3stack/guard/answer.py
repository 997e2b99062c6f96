"""A whole (not streamed) chat answer, through the guard."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from k3stack.guard import codec
from k3stack.guard.attempts import Attempts, Failure, Step, add_usage
from k3stack.guard.choice import Choice, HeldTooMuchError, whole_text
from k3stack.guard.policy import Policy
from k3stack.guard.request import ChatRequest
from k3stack.guard.verdict import Judged, judge

__all__ = ["AnswerGuard"]

_Answer = dict[str, Any]
_Message = dict[str, Any]


class AnswerGuard:
    """Decides about one request that is answered in one piece.

        guard = AnswerGuard(request, policy)
        step = guard.take(body)
        while step.again:
            step = guard.take(ask_again(guard.body()))   # or guard.failed() when that gave no answer
        send(step.status, step.data)

    Args:
        request: the client's request.
        policy: the guard's settings.
        clock: seconds, monotonic.
    """

    def __init__(self, request: ChatRequest, policy: Policy, clock: Callable[[], float] = time.monotonic) -> None:
        self._attempts: Attempts[tuple[_Answer, list[_Message]]] = Attempts(request, policy, clock)
        self.request = request
        self._policy = policy
        self.report = self._attempts.report

    def body(self) -> bytes:
        """The request body for the attempt that comes now."""
        number = self._attempts.number
        return self.request.raw if number == 0 else self.request.resample_body(number)

    def take(self, data: bytes) -> Step:
        """The answer of an attempt: what to send, or that it must be asked again."""
        answer = _answer(data)
        if answer is None:
            return self._fail(Failure("upstream_malformed", "the upstream's answer is not a chat completion"))
        if "choices" not in answer:  # an error with status 200, or something newer than this guard
            return Step(data)
        self._add_usage(answer)
        messages: list[_Message] = []
        judged: list[Judged] = []
        try:
            for choice in answer["choices"]:
                message, verdict = self._judge(choice)
                messages.append(message)
                judged.append(verdict)
        except HeldTooMuchError:
            limit = self._policy.max_held_bytes
            return self._fail(Failure("answer_too_large", f"the answer's calls pass {limit:,} bytes"))
        if all(verdict.acceptable for verdict in judged):
            self._attempts.settle()
            return self._send(answer, messages, judged)
        self._attempts.keep(judged, (answer, messages))
        if self._attempts.may_ask_again():
            self._attempts.next()
            return Step(again=True)
        return self._give_up()

    def failed(self) -> Step:
        """The attempt that was asked for gave no answer: make do with the ones before."""
        return self._give_up()

    def _judge(self, choice: dict[str, Any]) -> tuple[_Message, Judged]:
        message = choice.get("message")
        message = message if isinstance(message, dict) else {}
        guard = Choice(self.request, self._policy)
        taken = guard.take(message)
        self.report.max_held_bytes = max(self.report.max_held_bytes, guard.held_bytes)
        pieces, finished = guard.finish(str(choice.get("finish_reason") or "stop"))
        judged = judge(finished, self.request, self._policy, self._attempts.taken_ids)
        self.report.add(judged)
        reasoning, content = whole_text(taken.pieces + pieces)
        return _message(message, reasoning, content, judged), judged

    def _add_usage(self, answer: _Answer) -> None:
        if isinstance(answer.get("usage"), dict):
            self._attempts.usage = add_usage(self._attempts.usage, answer["usage"])

    def _send(self, answer: _Answer, messages: list[_Message], judged: list[Judged]) -> Step:
        choices = [
            {**choice, "message": message, "finish_reason": verdict.reason}
            for choice, message, verdict in zip(answer["choices"], messages, judged, strict=True)
        ]
        self.report.sent_calls = sum(len(verdict.calls) for verdict in judged)
        whole = {**answer, "choices": choices}
        if self._attempts.usage:
            whole["usage"] = self._attempts.usage
        if flag := self.report.flag:
            whole["k3_guard"] = flag
        return Step(codec.dumps(whole))

    def _give_up(self) -> Step:
        last = self._attempts.last_resort()
        if isinstance(last, Failure):
            return self._fail(last)
        judged, (answer, messages) = last
        self._attempts.settle(exhausted=True)
        return self._send(answer, messages, judged)

    def _fail(self, failure: Failure) -> Step:
        self._attempts.fail(failure)
        return Step(codec.dumps(failure.body), status=failure.status)


def _answer(data: bytes) -> _Answer | None:
    """The answer, if it is an object whose choices are objects."""
    try:
        answer = codec.loads(data)
    except ValueError:
        return None
    if not isinstance(answer, dict):
        return None
    choices = answer.get("choices", [])
    if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
        return None
    return answer


def _message(message: _Message, reasoning: str, content: str, judged: Judged) -> _Message:
    """The message with the guard's text and calls; null where there is none, as both engines have it."""
    sent = {**message, "content": content or (None if judged.calls or message.get("content") is None else "")}
    if reasoning or "reasoning" in message or "reasoning_content" in message:
        sent["reasoning"] = sent["reasoning_content"] = reasoning or None
    if judged.calls:
        sent["tool_calls"] = [
            {
                "id": checked.call.id,
                "type": "function",
                "function": {"name": checked.call.name, "arguments": checked.call.arguments},
            }
            for checked in judged.calls
        ]
    elif sent.get("tool_calls"):
        sent["tool_calls"] = []
    return sent
