"""Recall from long prompts."""

from __future__ import annotations

from k3stack.verify.registry import Verdict, check, failed, not_applicable, passed, warned
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


_BLOCK = 768
"""Tokens of a cache block, half of one, or a multiple: 384, 768 and 1,536 are what deployments of K3 have."""

_BLOCKS = 6
_AROUND = 2  # records on each side; one is about 20 tokens
_BEYOND = 40  # records
_ALONE = 8  # codes that are missing among others are asked for alone, at most about so many
_WIDELY = 7  # the same where chunks end, further into a prompt
_CHUNKS = (2_048, 4_096, 8_192, 16_384)  # tokens that engines read of a prompt at a time, and multiples of them


@check(
    "boundaries",
    Level.FULL,
    "Recall at block boundaries",
    proves="What stands at the edges of cache blocks, every 768 tokens, and of the chunks in which long prompts are "
    "read, is found.",
    failure_means="The last tokens of a block, or the first of the next, are not written or not read: prefix caching "
    "and chunked prefill with lengths that are no multiples of each other.",
    limit_s=300,
)
async def boundaries(session: Session) -> Verdict:
    """Thirty codes around six boundaries in one answer, some around the ends of chunks in another; those that are
    missing are asked for again, one by one."""
    if session.untrained:
        return not_applicable("random weights recall nothing")
    room = (session.knowledge.limit or 10**9) - session.room(512)
    blocks = min(_BLOCKS, (room - 512) // _BLOCK - 1)
    if blocks < 1:
        return not_applicable("the context is too short for a block and an answer")
    register = document(session.dice, int((blocks + 0.5) * _BLOCK / _TOKENS_PER_RECORD))
    bare = await session.ask("Say ok.", tokens=1, max_tokens=1)
    counted = await session.ask(register.ask("nobody"), tokens=1, max_tokens=1)
    if bare.usage is None or counted.usage is None:
        return not_applicable("the endpoint gives no usage, so that boundaries cannot be placed")
    per_record = (counted.usage.prompt - bare.usage.prompt) / len(register.records)
    places = _near_boundaries(bare.usage.prompt, per_record, len(register.records))
    wanted = [register.records[place] for place in places]
    together = await session.ask(register.ask_all([name for name, _ in wanted]), tokens=16 * len(wanted))
    missing = [(name, code) for name, code in wanted if code not in together.content]
    for name, code in missing[:8]:
        answer = await session.ask(register.ask(name), tokens=48)
        if code not in answer.content:
            what = f"{len(missing)} of {len(wanted)} codes at block boundaries not found; {name} is {code}"
            return failed(what, answer.exchange(), together.exchange())
    figures = [Figure("tokens of a record", per_record, ""), Figure("codes at boundaries", len(wanted), "")]
    if verdict := await _chunk_edges(session, bare.usage.prompt, per_record):
        return verdict
    if missing:
        what = f"{len(missing)} of {len(wanted)} codes are missing in one answer, but found when asked for alone"
        return warned(what, together.exchange(), figures=figures)
    return passed(f"{len(wanted)} codes around multiples of {_BLOCK} tokens found", figures=figures)


async def _chunk_edges(session: Session, before: int, per_record: float) -> Verdict | None:
    """Codes around the ends of the chunks in which engines read long prompts; a verdict where one is not found."""
    room = min((session.knowledge.limit or 10**9) - session.room(512) - 512, session.target.longest)
    # Records go on after the last edge, so that the question does not stand on it.
    edges = [edge for edge in _CHUNKS if edge + _BEYOND * per_record <= room]
    if not edges:
        return None
    register = document(session.dice, int(edges[-1] / per_record + _BEYOND))
    counted = await session.ask(register.ask("nobody"), tokens=1, max_tokens=1)
    if counted.usage:  # records differ, and over so many the mean of another document is off by several
        per_record = (counted.usage.prompt - before) / len(register.records)
    middles = [round((edge - before) / per_record) for edge in edges]
    places = sorted({middle + step for middle in middles for step in range(-_WIDELY, _WIDELY + 1)})
    wanted = [register.records[place] for place in places if place < len(register.records)]
    together = await session.ask(register.ask_all([name for name, _ in wanted]), tokens=16 * len(wanted))
    missing = [one for one in wanted if one[1] not in together.content]
    for name, code in missing[:: max(len(missing) // _ALONE, 1)]:
        answer = await session.ask(register.ask(name), tokens=48)
        if code not in answer.content:
            what = f"{name} is {code}, beside a multiple of {_CHUNKS[0]:,} tokens in a prompt of {edges[-1]:,}"
            return failed(f"a code at the end of a chunk is not found: {what}", answer.exchange(), together.exchange())
    return None


def _near_boundaries(before: int, per_record: float, records: int) -> list[int]:
    """The records around each multiple of a block's tokens, with so many tokens before the first record."""
    middles = [
        round((n * _BLOCK - before) / per_record) for n in range(1, int(before + per_record * records) // _BLOCK + 1)
    ]
    near = {middle + step for middle in middles for step in range(-_AROUND, _AROUND + 1)}
    return sorted(place for place in near if 0 <= place < records)


def _lengths(session: Session) -> list[int]:
    """Prompt lengths for this level that the endpoint can take, with room for the answer."""
    room = (session.knowledge.limit or 10**9) - session.room(48) - 512
    most = min(session.target.longest, room) if session.level.includes(Level.FULL) else _QUICK
    lengths = [length for length in _LENGTHS if length <= min(most, room)]
    return lengths or [max(room, 256)]
