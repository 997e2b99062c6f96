"""A sample of throughput and latency: enough to see that something is wrong, too little to plan capacity by."""

from __future__ import annotations

import time
from dataclasses import dataclass

from k3stack.verify.answer import Answer
from k3stack.verify.registry import Verdict, check, failed, passed
from k3stack.verify.report import Exchange, Figure, Level, Plot, Series
from k3stack.verify.session import Session
from k3stack.verify.statistics import percentile, ratio
from k3stack.verify.texts import document

_AT_ONCE = (1, 4, 16)
_PROMPT_RECORDS = 25  # about 500 tokens
_ANSWER_TOKENS = 128
_STORY = "Now forget the register and write a story of 200 words about one of its names."
_PERCENTILES = (50.0, 90.0, 99.0)


@dataclass(frozen=True, slots=True)
class Round:
    """What was measured with so many requests at once."""

    at_once: int
    first_s: tuple[float, ...]
    gaps_s: tuple[float, ...]
    tokens: int
    seconds: float

    @property
    def tokens_per_s(self) -> float:
        """Generated tokens of all requests together, per second."""
        return ratio(self.tokens, self.seconds)


@check(
    "speed",
    Level.FULL,
    "Throughput and latency",
    proves="Streams come back under load; their times are measured, not judged.",
    failure_means="Requests lost under load. To plan capacity run AIPerf or guidellm; the evidence has the commands.",
    limit_s=1_200,
)
async def speed(session: Session) -> Verdict:
    """New prompts of about 500 tokens, 128 tokens each, 1, 4 and 16 at a time; less of both for random weights."""
    rounds = []
    for at_once in _AT_ONCE:
        done, broken = await _round(session, at_once)
        if broken:
            return failed(f"{len(broken)} of {at_once} streams were not answered: {broken[0]}")
        rounds.append(done)
    figures = [figure for one in rounds for figure in _figures(one)]
    most = rounds[-1]
    summary = (
        f"first token after {1000 * percentile(rounds[0].first_s, 50):,.0f} ms alone, "
        f"{1000 * percentile(most.first_s, 50):,.0f} ms with {most.at_once} at once; "
        f"{most.tokens_per_s:,.0f} tokens/s together"
    )
    return passed(summary, *_hand_over(session), figures=figures, plots=_plots(rounds))


async def _round(session: Session, at_once: int) -> tuple[Round, list[Exception]]:
    records, tokens = (4, 24) if session.untrained else (_PROMPT_RECORDS, _ANSWER_TOKENS)
    bodies = [
        session.brief(f"{document(session.dice, records).text}\n\n{_STORY}", max_tokens=tokens)
        for _ in range(at_once * (3 if at_once == 1 else 1))
    ]
    started = time.perf_counter()
    if at_once == 1:
        outcomes = [outcome for body in bodies for outcome in await session.together([body], streamed=True)]
    else:
        outcomes = await session.together(bodies, streamed=True)
    seconds = time.perf_counter() - started
    answers = [one for one in outcomes if isinstance(one, Answer)]
    return Round(
        at_once,
        tuple(one.first_s for one in answers),
        tuple(gap for one in answers for gap in one.gaps_s),
        sum(one.usage.completion if one.usage else len(one.gaps_s) + 1 for one in answers),
        seconds,
    ), [one for one in outcomes if not isinstance(one, Answer)]


def _figures(one: Round) -> list[Figure]:
    where = f"{one.at_once} at once"
    found = [Figure(f"{where}: all tokens", one.tokens_per_s, "tokens/s")]
    for percent in _PERCENTILES:
        found.append(Figure(f"{where}: first token, p{percent:.0f}", 1000 * percentile(one.first_s, percent), "ms"))
    for percent in _PERCENTILES:
        found.append(Figure(f"{where}: between pieces, p{percent:.0f}", 1000 * percentile(one.gaps_s, percent), "ms"))
    return found


def _plots(rounds: list[Round]) -> list[Plot]:
    first = tuple(
        Series(
            f"p{percent:.0f}", tuple((float(one.at_once), 1000 * percentile(one.first_s, percent)) for one in rounds)
        )
        for percent in _PERCENTILES
    )
    gaps = tuple(
        Series(f"{one.at_once} at once", tuple((percent, 1000 * percentile(one.gaps_s, percent)) for percent in _CURVE))
        for one in rounds
        if one.gaps_s
    )
    together = Series("all requests", tuple((float(one.at_once), one.tokens_per_s) for one in rounds))
    return [
        Plot("Time to first token", "line", "requests at once", "ms", first),
        Plot("Throughput", "line", "requests at once", "tokens/s", (together,)),
        Plot("Time between pieces of a stream", "line", "percentile", "ms", gaps),
    ]


_CURVE = (1.0, 5.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 100.0)


def _hand_over(session: Session) -> list[Exchange]:
    """The same load for the tools that are made for it; both need the model's tokenizer."""
    url, model = session.target.base, session.knowledge.model
    aiperf = (
        f"aiperf profile --model {model} --url {url} --endpoint-type chat --streaming --concurrency 16 "
        "--request-count 160 --synthetic-input-tokens-mean 500 --output-tokens-mean 128"
    )
    guidellm = f'guidellm benchmark --target {url} --model {model} --data "prompt_tokens=500,output_tokens=128"'
    return [
        Exchange(aiperf, "", "for capacity: NVIDIA AIPerf"),
        Exchange(guidellm, "", "for capacity: guidellm, which sweeps the rate"),
    ]
