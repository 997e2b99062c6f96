"""A streamed answer is the whole answer, in pieces; and tokens are counted alike."""

from __future__ import annotations

from difflib import SequenceMatcher

from k3stack.verify.answer import Answer
from k3stack.verify.checks.basic import form_fault
from k3stack.verify.registry import Verdict, check, failed, not_applicable, passed, warned
from k3stack.verify.report import Figure, Level
from k3stack.verify.session import Session
from k3stack.verify.texts import copy_prompt, copy_text

_TRIES = 3


@check(
    "stream",
    Level.QUICK,
    "Streaming equals non-streaming",
    proves="A stream, put together, is the answer that comes without streaming: no piece is lost, doubled or torn.",
    failure_means="A streaming parser that holds text back and loses it, tokens decoded one by one so that letters of "
    "several bytes break, or a proxy that drops or cuts events.",
)
async def stream(session: Session) -> Verdict:
    """The same request both ways, three times; a trained model copies a text in which every token counts."""
    pieces = 0
    longest_gap = 0.0
    words, tokens = (8, 24) if session.untrained else (40, 240)  # random weights run on to the end of max_tokens
    for _ in range(_TRIES):
        text = copy_text(session.dice, words)
        # Reasoning is compared by another check; here it would only make a trained model slow.
        body = (session.body if session.untrained else session.brief)(copy_prompt(text), tokens)
        whole = await session.endpoint.chat(body)
        streamed = await session.endpoint.stream(body)
        if fault := form_fault(streamed):
            return failed(f"the stream is malformed: {fault}", streamed.exchange(), whole.exchange("not streamed"))
        if fault := _difference(session, whole, streamed, text):
            return failed(fault, streamed.exchange("streamed"), whole.exchange("not streamed"))
        if session.untrained and not whole.text:
            return not_applicable("the random model's tokens give no text: two empty answers prove nothing")
        pieces += len(streamed.gaps_s) + 1
        longest_gap = max([longest_gap, *streamed.gaps_s])
    figures = [Figure("pieces in three streams", pieces, ""), Figure("longest silence in a stream", longest_gap, "s")]
    if not session.untrained and whole.content.strip() != text:
        return warned("the answer that is not streamed is no exact copy", whole.exchange(), figures=figures)
    if pieces == _TRIES:
        return warned("each stream came in one piece: nothing is really streamed", streamed.exchange(), figures=figures)
    return passed(f"{_TRIES} streams equal their whole answers", streamed.exchange(), figures=figures)


def _difference(session: Session, whole: Answer, streamed: Answer, text: str) -> str:
    """Where the two differ, or nothing. A sampled answer may differ, so a correct copy is good whatever the other."""
    if session.untrained or streamed.content.strip() != text:
        if whole.finish != streamed.finish:
            return f"finish_reason is {whole.finish!r} without streaming and {streamed.finish!r} with"
        if session.untrained and whole.reasoning != streamed.reasoning:
            return f"the reasoning differs: {_first_change(whole.reasoning, streamed.reasoning)}"
        if whole.content != streamed.content:
            return f"the text differs: {_first_change(whole.content, streamed.content)}"
    if bool(whole.reasoning) != bool(streamed.reasoning):
        return f"reasoning comes {'only without' if whole.reasoning else 'only with'} streaming"
    return ""


def _first_change(whole: str, streamed: str) -> str:
    """The first place where the stream is not the whole answer, in words."""
    for what, a, b, c, d in SequenceMatcher(None, whole, streamed, autojunk=False).get_opcodes():
        if what == "delete":
            return f"the stream lacks {whole[a:b]!r} at character {a}"
        if what == "insert":
            return f"the stream has {streamed[c:d]!r} more at character {a}"
        if what == "replace":
            return f"the stream has {streamed[c:d]!r} instead of {whole[a:b]!r} at character {a}"
    return "not at all"


@check(
    "usage",
    Level.QUICK,
    "Tokens are counted right",
    proves="usage adds up, is the same streamed or not, grows with the prompt, and counts exactly the tokens made.",
    failure_means="A gateway that counts by itself, usage of the last chunk only, or speculative tokens counted twice. "
    "Whoever bills or limits by these numbers is wrong.",
)
async def usage(session: Session) -> Verdict:
    """Comparisons of numbers that must agree; one of them of an answer that is cut in its reasoning."""
    body = session.brief(_COUNTING, tokens=16, max_tokens=16)
    whole = await session.endpoint.chat(body)
    streamed = await session.endpoint.stream(body)
    longer = await session.endpoint.chat(
        {**body, "messages": [{"role": "user", "content": _COUNTING + " please" * 50}]}
    )
    for answer, way in ((whole, "whole answer"), (streamed, "stream"), (longer, "longer prompt")):
        if answer.usage is None:
            return failed(f"no usage in the {way}", answer.exchange())
        count = answer.usage
        if count.total != count.prompt + count.completion:
            what = f"{way}: total {count.total} is not prompt {count.prompt} + completion {count.completion}"
            return failed(what, answer.exchange())
        if answer.finish == "length" and count.completion != 16:
            return failed(f"{way}: cut at 16 tokens, but completion_tokens is {count.completion}", answer.exchange())
        if count.completion > 16:
            return failed(f"{way}: at most 16 tokens asked for, {count.completion} counted", answer.exchange())
    thinking = await session.endpoint.chat(session.body(_COUNTING, max_tokens=16))
    if thinking.usage and thinking.finish == "length" and thinking.usage.completion != 16:
        what = f"an answer cut in its reasoning at 16 tokens counts {thinking.usage.completion}: is reasoning left out?"
        return failed(what, thinking.exchange())
    assert whole.usage and streamed.usage and longer.usage
    if whole.usage.prompt != streamed.usage.prompt:
        what = f"the same prompt has {whole.usage.prompt} tokens whole and {streamed.usage.prompt} streamed"
        return failed(what, streamed.exchange(), whole.exchange())
    grown = longer.usage.prompt - whole.usage.prompt
    if grown < 50:
        return failed(f"50 more words make the prompt only {grown} tokens longer", longer.exchange(), whole.exchange())
    if whole.usage.completion != streamed.usage.completion and whole.finish == streamed.finish == "length":
        return failed("a stream and a whole answer, both cut at 16 tokens, count differently", streamed.exchange())
    figures = [Figure("prompt tokens", whole.usage.prompt, "tokens"), Figure("of 50 more words", grown, "tokens")]
    return passed("usage adds up and agrees streamed and not", whole.exchange(), figures=figures)


_COUNTING = "Count from 1 to 200, numbers separated by single spaces, nothing else."
