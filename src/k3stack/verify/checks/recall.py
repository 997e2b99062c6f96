"""Recall from long prompts."""

from __future__ import annotations

from k3stack.verify.registry import Verdict, check, failed, not_applicable, passed
from k3stack.verify.report import Exchange, Figure, Level, Plot, Series
from k3stack.verify.session import Session
from k3stack.verify.texts import document

_DEPTHS = (0.1, 0.5, 0.9)
_LENGTHS = (2_048, 8_192, 32_768, 131_072, 524_288, 1_000_000)
_QUICK = 2_048
_TOKENS_PER_RECORD = 20.0  # to begin with; the first prompt tells the real number


@check(
    "recall",
    Level.QUICK,
    "Recall from long prompts",
    proves="A code that stands near the front, in the middle or near the end of a long prompt is found.",
    failure_means="Chunked prefill, context parallelism or a kernel that corrupts the cache past some length; a cliff "
    "at a round number (2,048, 8,192) is a chunk that never arrives.",
    limit_s=1_800,
)
async def recall(session: Session) -> Verdict:
    """Documents of doubling length, three depths each; quick takes the shortest alone."""
    if session.untrained:
        return not_applicable("random weights recall nothing; the concurrency checks compare their answers instead")
    rows: list[Series] = []
    names: list[str] = []
    misses: list[Exchange] = []
    asked = 0
    longest = 0
    per_record = _TOKENS_PER_RECORD
    for length in _lengths(session):
        register = document(session.dice, max(int(length / per_record), 10))
        found = []
        for number, depth in enumerate(_DEPTHS):
            name, code = register.at(depth)
            answer = await session.ask(register.ask(name), tokens=48)
            found.append((float(number), float(code in answer.content)))
            asked += 1
            if answer.usage:
                longest = max(longest, answer.usage.prompt)
                per_record = answer.usage.prompt / len(register.records)
            if code not in answer.content:
                misses.append(answer.exchange(f"{length:,} tokens, depth {depth:.0%}: {code} expected"))
        rows.append(Series(f"{length:,}", tuple(found)))
        names.append(f"{length:,}")
    figures = [
        Figure("codes found", 100 * (asked - len(misses)) / asked, "%"),
        Figure("longest prompt", longest, "tokens"),
    ]
    plot = Plot(
        "Codes found by prompt length and depth", "grid", "depth", "tokens", tuple(rows), ("10 %", "50 %", "90 %")
    )
    if misses:
        summary = f"{len(misses)} of {asked} codes not found; first: {misses[0].note}"
        return failed(summary, *misses[:3], figures=figures, plots=[plot])
    return passed(f"{asked} codes found in prompts of up to {longest:,} tokens", figures=figures, plots=[plot])


def _lengths(session: Session) -> list[int]:
    """Prompt lengths for this level that the endpoint can take, with room for the answer."""
    room = (session.knowledge.limit or 10**9) - session.room(48) - 512
    most = min(session.target.longest, room) if session.level.includes(Level.FULL) else _QUICK
    lengths = [length for length in _LENGTHS if length <= min(most, room)]
    return lengths or [max(room, 256)]
