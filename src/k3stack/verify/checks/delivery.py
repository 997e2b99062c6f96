"""What the model says arrives as it was said: every letter of it, long answers to their end, and in time."""

from __future__ import annotations

import html
import itertools
import json
import re
import unicodedata
from collections.abc import Callable

from k3stack.verify.answer import Answer
from k3stack.verify.checks.basic import form_fault
from k3stack.verify.registry import Verdict, check, failed, not_applicable, passed, warned
from k3stack.verify.report import Figure, Level
from k3stack.verify.session import Session
from k3stack.verify.statistics import median, ratio
from k3stack.verify.texts import copy_prompt

_AWKWARD = """def f(x):
    if x < 3 & "a" != 'b':
        return "<b>&amp;</b>"

* {{"list": [1, null]}} costs ${{HOME}} 100%25
mail {code}@example.com or call 004915123456789
ﬁ ﷺ ½ x² “quoted” … é 日本語 🌙 👩‍🚀
end {code}"""

_ALTERED: dict[str, Callable[[str], str]] = {
    "HTML is escaped": html.escape,
    "HTML is unescaped": html.unescape,
    "compatibility forms of letters are made plain": lambda text: unicodedata.normalize("NFKC", text),
    "letters beyond ASCII are written as escapes": lambda text: json.dumps(text)[1:-1],
    "letters beyond ASCII are gone": lambda text: text.encode("ascii", "ignore").decode(),
    "letters beyond ASCII are question marks": lambda text: text.encode("ascii", "replace").decode(),
    "bytes are read in another encoding": lambda text: text.encode().decode("latin-1"),
    "backslashes and quotes are escaped": lambda text: text.replace("\\", "\\\\").replace('"', '\\"'),
}
_MASKED = re.compile(r"\[[A-Z_ ]{4,}\]|\*{3,}|<[A-Z_]{4,}>")


@check(
    "verbatim",
    Level.QUICK,
    "Letters arrive unchanged",
    proves="Code, markup, white space, addresses and letters of all kinds arrive as they were sent, streamed and not.",
    failure_means="A gateway or filter that escapes HTML, trims pieces, drops those that are blank, normalises "
    "letters, or masks what it takes for private data, in the prompt or in the answer.",
)
async def verbatim(session: Session) -> Verdict:
    """A copy of eight awkward lines, both ways. What a model itself may do to them is a warning."""
    if session.untrained:
        return not_applicable("random weights copy nothing")
    text = _AWKWARD.format(code=session.code())
    body = session.brief(copy_prompt(text), tokens=320)
    odd: list[tuple[str, Answer]] = []
    for send, way in ((session.endpoint.chat, "whole answer"), (session.endpoint.stream, "stream")):
        answer = await send(body)
        got = _without_fence(answer.content)
        if got == text.strip():
            continue
        if known := _alteration(text, got):
            return failed(f"{way}: {known}", answer.exchange())
        odd.append((way, answer))
    if len(odd) == 1:
        return failed(f"only the {odd[0][0]} is changed: {_first_odd_line(text, odd[0][1])}", odd[0][1].exchange())
    if odd:
        return warned(f"the copy is not exact: {_first_odd_line(text, odd[0][1])}", odd[0][1].exchange())
    return passed("eight awkward lines arrive unchanged both ways", answer.exchange())


def _without_fence(text: str) -> str:
    found = re.fullmatch(r"\s*```\w*\n(.*?)\n?```\s*", text, re.DOTALL)
    return (found[1] if found else text).strip()


def _alteration(text: str, got: str) -> str:
    """Which known change has been made to the text, or nothing: then it may be the model's own."""
    missing = [line for line in text.splitlines() if line.strip() and line not in got]
    for what, alter in _ALTERED.items():
        if any(alter(line) != line and alter(line) in got for line in missing):
            return what
    if masked := [found for found in _MASKED.findall(got) if found not in text]:
        return f"{masked[0]} stands where an address or a number was"
    if got and "".join(got.split()) == "".join(text.split()):
        if "\n" not in got:
            return "lines are joined"
        if not re.search(r"\n +\S", got):
            return "indentation is gone"
    return ""


def _first_odd_line(text: str, answer: Answer) -> str:
    odd = next((line for line in text.splitlines() if line not in answer.content), None)
    return "white space differs" if odd is None else f"{odd!r} is missing"


_LUMP_S = 0.02
_LUMP_EVENTS = 25


@check(
    "flow",
    Level.QUICK,
    "Long streams flow to their end",
    proves="A long answer comes to its end, right to its last word, in pieces that arrive as they are made.",
    failure_means="A proxy that buffers streams, wholly (compression, proxy_buffering) or by pages, or that cuts them "
    "after some time; a limit on answers that nobody asked for; or text that degenerates with its length.",
    limit_s=300,
)
async def flow(session: Session) -> Verdict:
    """A count to 100, in the full level to 400 and without streaming too; random weights only have to keep coming."""
    last = 400 if session.level.includes(Level.FULL) and not session.untrained else 100
    prompt = f"Count from 1 to {last}, numbers separated by single spaces, without leaving any out, nothing else."
    tokens = 96 if session.untrained else 5 * last
    body = session.brief(prompt, tokens=tokens)
    streamed = await session.endpoint.stream(body)
    figures = [
        Figure("pieces", len(streamed.gaps_s) + 1, ""),
        Figure("first piece after", streamed.first_s, "s"),
        Figure("last piece after", streamed.first_s + sum(streamed.gaps_s), "s"),
    ]
    if fault := form_fault(streamed):
        return failed(f"stream: {fault}", streamed.exchange(), figures=figures)
    # Once may be a busy machine, ours or theirs.
    if _held_back(streamed) and (fault := _held_back(await session.endpoint.stream(body))):
        return failed(f"stream: {fault}", streamed.exchange(), figures=figures)
    answers = [("stream", streamed)]
    if last > 100:
        answers.append(("whole answer", await session.endpoint.chat(body)))
    for way, answer in answers if not session.untrained else ():
        if fault := _count_fault(answer, last, tokens):
            verdict = warned if "..." in answer.content or "…" in answer.content else failed
            return verdict(f"{way}: {fault}", answer.exchange(), figures=figures)
    if len(streamed.gaps_s) < 4:
        return warned("a long answer comes in one piece: nothing is really streamed", streamed.exchange())
    return passed(f"{len(streamed.gaps_s) + 1} pieces, spread over the time that they took", figures=figures)


def _held_back(answer: Answer) -> str:
    """How a stream was kept from flowing, or nothing. Pieces are made one after another, so they cannot come at once.

    Buffered wholly: all within a tenth of the time. By pages: nearly all of the time is spent waiting for lumps of
    many pieces, and as many in each; engines that put several tokens into one piece are no such case.
    """
    pieces, spread = len(answer.gaps_s) + 1, sum(answer.gaps_s)
    if pieces >= 50 and answer.seconds > 0.1 and spread < 0.1 * answer.seconds:
        return f"nothing for {answer.first_s:.2f} s, then {pieces} pieces within {spread:.2f} s: it is buffered"
    waits = [gap for gap in answer.gaps_s if gap > _LUMP_S]
    ends = [number for number, gap in enumerate(answer.gaps_s) if gap > _LUMP_S]
    lumps = [later - earlier for earlier, later in itertools.pairwise(ends)]
    regular = len(lumps) >= 2 and min(lumps) >= _LUMP_EVENTS and max(lumps) <= 1.5 * min(lumps)
    if regular and median(waits) > 2 * _LUMP_S and sum(waits) > 0.9 * spread:
        return f"it comes in lumps of {min(lumps)} pieces, one each {median(waits):.2f} s: it is buffered by pages"
    return ""


def _count_fault(answer: Answer, last: int, tokens: int) -> str:
    """What is wrong with a count from 1 to `last`, or nothing."""
    numbers = re.findall(r"\d+", answer.content)
    right = next((n for n, word in enumerate(numbers) if word != str(n + 1)), len(numbers))
    if right == len(numbers) == last and not re.search(r"[^\d\s,.]", answer.content):
        return ""
    if answer.finish == "length":
        made = answer.usage.completion if answer.usage else 0
        share = f"{made} of {tokens} tokens" if made else f"{ratio(right, last):.0%} of the text"
        return f"it is cut after {share}, though more were allowed"
    return f"a count to {last} is right up to {right}, then: {_after(answer.content, right)!r}"


def _after(content: str, right: int) -> str:
    places = list(re.finditer(r"\d+", content))
    return content[places[right - 1].end() :][:60] if 0 < right <= len(places) else content[:60]
