"""Control markers, in what came out so far and in what goes in."""

from __future__ import annotations

import re

from k3stack.verify.answer import Answer
from k3stack.verify.checks.basic import form_fault
from k3stack.verify.registry import Verdict, check, failed, not_applicable, passed, warned
from k3stack.verify.report import Figure, Level
from k3stack.verify.session import Session
from k3stack.verify.statistics import ratio
from k3stack.xtml import CONTROL_TOKENS

# K3's own control tokens, and what the templates and parsers of K2 and of other reasoning models would leave behind.
_MARKERS = (
    *CONTROL_TOKENS,
    "<|tool_calls_section_begin|>",
    "<|tool_call_begin|>",
    "<|im_end|>",
    "<|im_start|>",
    "<|im_user|>",
    "<|im_assistant|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<|media_start|>",
    "<|kimi_image_placeholder|>",
    "<think>",
    "</think>",
    "[BOS]",
    "[EOS]",
    "[EOT]",
    "[PAD]",
)


@check(
    "markers",
    Level.QUICK,
    "No control markers in answers",
    proves="None of the answers of this run has a control marker in its reasoning, content or calls.",
    failure_means="A parser that is off, or that gives up: on SGLang when no tools are declared, on vLLM when thinking "
    "is not closed, on both after malformed calls. Clients show the markup, or lose the call in it.",
)
async def markers(session: Session) -> Verdict:
    """Three situations known to leak, then every answer seen so far."""
    if session.untrained:
        return not_applicable("random weights write control tokens where they have no place, and these are shown")
    await session.ask("Call the function get_weather for Paris now.", tokens=96)
    await session.stream("Call the function get_weather for Paris now.", tokens=96)
    await session.endpoint.chat(session.brief("Reply with exactly this text: ok", tokens=24))
    seen = session.endpoint.seen
    for answer in seen:
        if found := _marker(answer):
            where, marker = found
            return failed(f"{marker} is in the {where} of an answer", answer.exchange(f"{marker} in the {where}"))
    return passed(f"none in {len(seen)} answers", figures=[Figure("answers looked at", len(seen), "")])


def _marker(answer: Answer) -> tuple[str, str] | None:
    """(where, which marker), of the first one that the model cannot have been quoting from the prompt."""
    texts = {"reasoning": answer.reasoning, "content": answer.content}
    texts |= {f"call of {call.name}": call.name + call.arguments for call in answer.calls}
    prompt = str(answer.body.get("messages"))
    for where, text in texts.items():
        for marker in _MARKERS:
            if marker in text and marker not in prompt:
                return where, marker
    return None


@check(
    "empty",
    Level.QUICK,
    "No empty answers",
    proves="No answer of this run is empty and yet says that it is complete.",
    failure_means="An engine that gives up on a request (out of cache, a failed transfer), or a parser or gateway that "
    "loses the text, and reports finish_reason stop.",
)
async def empty(session: Session) -> Verdict:
    """Every answer seen so far; one whose text a stop text may have cut is not judged."""
    if session.untrained:
        return not_applicable("random weights may choose to end at once")
    seen = [answer for answer in session.endpoint.seen if answer.finish == "stop" and "stop" not in answer.body]
    nothing = [answer for answer in seen if not answer.content and not answer.calls]
    if nothing:
        return failed(f"{len(nothing)} of {len(seen)} complete answers are empty", nothing[0].exchange())
    return passed(f"none of {len(seen)} complete answers is empty")


@check(
    "forms",
    Level.QUICK,
    "Every answer is well formed",
    proves="Every answer of this run, streamed or not, has the form of OpenAI's API and one reason why it ended.",
    failure_means="One replica or path of several that breaks streams, loses the last event, or answers errors with "
    "HTTP 200: once in ten requests is enough to break an agent.",
)
async def forms(session: Session) -> Verdict:
    """Every answer seen so far."""
    seen = session.endpoint.seen
    wrong = [(answer, fault) for answer in seen if (fault := form_fault(answer))]
    if wrong:
        answer, fault = wrong[0]
        return failed(f"{len(wrong)} of {len(seen)} answers; first: {fault}", answer.exchange(fault))
    return passed(f"{len(seen)} answers of the right form")


@check(
    "counts",
    Level.QUICK,
    "Every count adds up",
    proves="In every answer of this run total_tokens is the sum of the others, reasoning and cached tokens are no more "
    "than what they are part of, and completion_tokens is within max_tokens.",
    failure_means="Tokens that speculation made and threw away are counted, or one path of several counts by itself. "
    "Programs that subtract reasoning from completion get negative numbers.",
)
async def counts(session: Session) -> Verdict:
    """usage of every answer seen so far."""
    seen = [answer for answer in session.endpoint.seen if answer.usage]
    wrong = [(answer, fault) for answer in seen if (fault := _miscounted(answer))]
    if wrong:
        answer, fault = wrong[0]
        return failed(f"{len(wrong)} of {len(seen)} answers; first: {fault}", answer.exchange(fault))
    if not seen:
        return not_applicable("the endpoint gives no usage")
    return passed(f"usage of {len(seen)} answers adds up", figures=[Figure("answers looked at", len(seen), "")])


def _miscounted(answer: Answer) -> str:
    count = answer.usage
    assert count
    if count.total != count.prompt + count.completion:
        return f"total {count.total} is not prompt {count.prompt} + completion {count.completion}"
    if (count.reasoning or 0) > count.completion:
        return f"{count.reasoning} reasoning tokens of {count.completion} completion tokens"
    if (count.cached or 0) > count.prompt:
        return f"{count.cached} cached tokens of {count.prompt} prompt tokens"
    room = answer.body.get("max_tokens", answer.body.get("max_completion_tokens"))
    if room is not None and count.completion > room * answer.body.get("n", 1):
        return f"{count.completion} completion tokens, though max_tokens is {room}"
    return ""


@check(
    "model-name",
    Level.QUICK,
    "One model answers",
    proves="Every answer of this run names the model that was asked for.",
    failure_means="A router or fallback that sends some requests to another model, or a name that says nothing about "
    "what is behind it.",
)
async def model_name(session: Session) -> Verdict:
    """The model field of every answer seen so far. An alias is no fault, another generation of Kimi is one."""
    wanted = session.knowledge.model
    seen = session.endpoint.seen
    names = {answer.model: answer for answer in reversed(seen)}
    for name, answer in names.items():
        listed = name != wanted and name in session.knowledge.models
        if listed or (_generation(name) and _generation(wanted) and _generation(name) != _generation(wanted)):
            count = sum(one.model == name for one in seen)
            return failed(f"{count} of {len(seen)} answers are from {name!r}, not {wanted!r}", answer.exchange())
    if len(names) > 1:
        return warned(f"answers name {len(names)} models: {', '.join(map(repr, sorted(names)))}", answer.exchange())
    if wanted not in names:
        return warned(f"{wanted!r} is asked for, the answers name {name!r}", answer.exchange())
    return passed(f"all {len(seen)} answers name {wanted}")


def _generation(name: str) -> str:
    """The digit of K2 or K3 in a model's name, or nothing."""
    found = re.search(r"k(\d)(?!\d)", name.lower())
    return found[1] if found else ""


_ENOUGH = 12
_LONG = 24  # characters; a thought may well end in a shorter answer


@check(
    "reasoning-twice",
    Level.QUICK,
    "The answer is said once",
    proves="The answer is not part of the reasoning as well.",
    failure_means="A streaming parser that sends text as reasoning until it knows better, and then again as the "
    "answer: clients show it twice and pay for it.",
)
async def reasoning_twice(session: Session) -> Verdict:
    """Every streamed, and every whole answer with both: a model may end its thought in its answer, but not always."""
    if session.untrained:
        return not_applicable("random weights do not end their reasoning")
    judged = 0
    for streamed in (True, False):
        seen = [
            one for one in session.endpoint.seen if bool(one.body.get("stream")) == streamed and one.content.strip()
        ]
        both = [one for one in seen if one.reasoning]
        judged += len(seen)
        twice = [one for one in both if one.reasoning.rstrip().endswith(one.content.strip())]
        both = [one for one in both if len(one.content) >= _LONG]
        forbidden = [one for one in twice if _quiet(session, one)]
        way = "streams" if streamed else "whole answers"
        if forbidden:
            what = f"a {way[:-1]} without reasoning has its own answer as reasoning too"
            return failed(what, forbidden[0].exchange())
        long_twice = [one for one in twice if len(one.content) >= _LONG]
        if len(long_twice) > max(0.9 * len(both), _ENOUGH - 1):
            what = f"{len(long_twice)} of {len(both)} {way} say their answer as reasoning too"
            return failed(what, long_twice[0].exchange())
    if not judged:
        return not_applicable("no answer has content")
    return passed(f"{judged} answers stand in their content alone")


_CODE_ONLY = "Answer with the code only."
_SHORT = 24  # characters; a code has eight


@check(
    "reasoning-aloud",
    Level.QUICK,
    "No reasoning in the content",
    proves="Answers that are to be a code and nothing else have no reasoning in their content, not even now and then.",
    failure_means="A parser that does not see the beginning of thinking in some answers, or a model that skips its "
    "channel: users then read thoughts, and the next turn lacks its reasoning.",
)
async def reasoning_aloud(session: Session) -> Verdict:
    """Every answer seen so far that was to be a code: if most are short and reasoned, a long one without is odd."""
    if session.untrained:
        return not_applicable("random weights answer no question")
    asked = [one for one in session.endpoint.seen if str(one.body["messages"][-1].get("content")).endswith(_CODE_ONLY)]
    asked = [one for one in asked if one.content and not _quiet(session, one)]
    proper = [one for one in asked if one.reasoning and len(one.content) <= _SHORT]
    aloud = [one for one in asked if not one.reasoning and len(one.content) > _SHORT]
    if len(proper) < _ENOUGH or len(proper) < 0.75 * len(asked):
        return not_applicable(f"{len(proper)} of {len(asked)} such answers are a code with reasoning of its own")
    if aloud:
        what = f"{len(aloud)} of {len(asked)} answers that were to be a code alone think in their content"
        return warned(what, aloud[0].exchange())
    return passed(f"none of {len(asked)} answers that were to be a code thinks in its content")


@check(
    "reasoning-calls",
    Level.FULL,
    "Calls come with their reasoning",
    proves="Answers with calls have reasoning like others, so that it can be given back with the results.",
    failure_means="A parser or gateway that drops it when there are calls: agents then send turns without it, K3 sees "
    "an empty think channel, and long work gets worse in silence.",
)
async def reasoning_calls(session: Session) -> Verdict:
    """Every answer with calls seen so far, streamed and not, beside those without calls."""
    if session.untrained:
        return not_applicable("random weights do not choose to call a tool")
    figures = []
    for streamed in (False, True):
        way = "streams" if streamed else "whole answers"
        seen = [
            one
            for one in session.endpoint.seen
            if bool(one.body.get("stream")) == streamed and not _quiet(session, one)
        ]
        called = [one for one in seen if one.calls and one.body.get("tool_choice", "auto") == "auto"]
        plain = [one for one in seen if one.content and not one.calls]
        share = ratio(sum(bool(one.reasoning) for one in plain), len(plain))
        kept = sum(bool(one.reasoning) for one in called)
        figures.append(Figure(f"{way} with calls that have reasoning", kept, f"of {len(called)}"))
        if len(called) >= 4 and not kept and share > 0.5:
            what = f"none of {len(called)} {way} with calls has reasoning, {share:.0%} of those without calls have"
            return failed(what, called[0].exchange(), figures=figures)
    return passed("answers with calls have reasoning as others have", figures=figures)


def _quiet(session: Session, answer: Answer) -> bool:
    """Whether reasoning was turned off for an answer."""
    return session.dialect.off is not None and session.dialect.off.items() <= answer.body.items()


@check(
    "injection",
    Level.FULL,
    "Markers in user text stay text",
    proves="A user who writes control markers sends letters, not control tokens.",
    failure_means="User text is tokenised with special tokens allowed: anyone can forge system messages, tool results "
    "or images.",
)
async def injection(session: Session) -> Verdict:
    """Twenty markers in a row: as text each is several tokens, as a control token just one."""
    plain = await session.ask("Say ok. ", max_tokens=1)
    if plain.usage is None:
        return not_applicable("the endpoint gives no usage, so tokens cannot be counted")
    figures, forged = [], []
    for marker in CONTROL_TOKENS:
        answer = await session.ask("Say ok. " + f"{marker} " * 20, max_tokens=1)
        each = (answer.usage.prompt - plain.usage.prompt) / 20 if answer.usage else 0.0
        figures.append(Figure(f"tokens of {marker} with its space", each, ""))
        # One control token and one for the space: two. As text it is at least three and the space.
        if each <= 2.1:
            forged.append((marker, answer))
    if forged:
        what = f"{', '.join(marker for marker, _ in forged)} in user text becomes a control token"
        return failed(what, forged[0][1].exchange(), figures=figures)
    return passed("markers in user text are ordinary text", figures=figures)
