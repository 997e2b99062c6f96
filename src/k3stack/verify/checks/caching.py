"""The prefix cache: never stale, and worth something."""

from __future__ import annotations

from typing import Any

from k3stack.verify.answer import Answer
from k3stack.verify.likeness import FAR, nearness, same
from k3stack.verify.registry import Verdict, check, failed, not_applicable, passed, warned
from k3stack.verify.report import Figure, Level, Plot, Series
from k3stack.verify.session import Session
from k3stack.verify.statistics import median
from k3stack.verify.texts import document

_RECORDS = 120  # about 2,400 tokens: more than a block of any K3 deployment (768 or 1,536)
_UNTRAINED_RECORDS = 16
_MORE = 12

_HITS = ("vllm:prefix_cache_hits_total", "sglang:cached_tokens_total")
"""Tokens found in the prefix cache, as vLLM 0.33.0 and SGLang 0.5.23 count them."""


@check(
    "prefix-fresh",
    Level.QUICK,
    "No stale prefix",
    proves="When one line of a long prompt changes, the answer follows the new prompt, though all before it is cached.",
    failure_means="A cache that is matched too generously, or restored by half: MLA pages without the KDA state give "
    "fluent answers to another prompt. Also response caches in gateways.",
    limit_s=300,
)
async def prefix_fresh(session: Session) -> Verdict:
    """Ask, change a code in the middle, ask again, change it back, ask about another; twice, and a second turn."""
    if session.untrained:
        return await _untrained_fresh(session)
    for depth in (0.5, 0.97):
        register = document(session.dice, _RECORDS)
        name, old = register.at(depth)
        other, other_code = register.at(0.2)
        new = session.code()
        steps = (
            ("first", register.ask(name), old),
            ("again", register.ask(name), old),
            (f"one code changed at {depth:.0%}", register.changed(name, new).ask(name), new),
            ("changed back", register.ask(name), old),
            ("another question", register.ask(other), other_code),
            ("a second turn", _second_turn(register.ask(name), old, other), other_code),
        )
        for what, prompt, code in steps[:5] if depth < 0.9 else (steps[0], *steps[2:]):
            answer = await session.endpoint.chat(session.brief(prompt, tokens=48))
            if code not in answer.content:
                stale = [known for known in (old, new, other_code) if known != code and known in answer.content]
                why = f"it answers {stale[0]}, from an earlier prompt" if stale else f"it says {answer.content[:60]!r}"
                return failed(f"{what}: {why} instead of {code}", answer.exchange())
    return passed("ten answers follow their own prompts", answer.exchange())


def _second_turn(asked: str, answered: str, other: str) -> list[dict[str, Any]]:
    """The conversation after the first answer: engines keep a state of its front, and of what they generated."""
    return [
        {"role": "user", "content": asked},
        {"role": "assistant", "content": answered},
        {"role": "user", "content": f"What is the code of {other} in this register? Answer with the code only."},
    ]


async def _untrained_fresh(session: Session) -> Verdict:
    """A hit must give what the miss gave, and a changed prompt must change the chances of the tokens."""
    if not session.dialect.greedy:
        return not_applicable("answers do not repeat: temperature 0 is refused")
    register = document(session.dice, _UNTRAINED_RECORDS)
    name, _ = register.at(0.5)
    prompts = (register.ask(name), register.changed(name, session.code()).ask(name))
    bodies = [session.body(prompt, tokens=8) for prompt in prompts]
    misses = [(await session.telling(body))[1] for body in bodies]
    hits = [(await session.telling(body))[1] for body in bodies]
    strayed = [(miss, hit) for miss, hit in zip(misses, hits, strict=True) if not same(miss, hit)]
    near = await _nearness_of_hits(session) if strayed and strayed[0][0].chances else []
    if strayed and not _rounded(near):
        miss, hit = strayed[0]
        return failed("the same prompt answers differently once its prefix is cached", hit.exchange(), miss.exchange())
    if _fingerprint(misses[0]) == _fingerprint(misses[1]):
        if not misses[0].chances:
            return not_applicable("both answers are alike and the endpoint gives no logprobs to tell them apart")
        return failed("a prompt that differs by one code has the same chances to four digits", misses[1].exchange())
    if strayed:
        figure = Figure("share of chances that a hit has of its miss, median", 100 * median(near), "%")
        what = "hits stray from their misses as near ties of random weights do, and are nearer to them than to others"
        return warned(what, strayed[0][1].exchange(), strayed[0][0].exchange(), figures=[figure])
    return passed("hits answer as misses did, and a changed prompt changes the chances", hits[0].exchange())


async def _nearness_of_hits(session: Session) -> list[float]:
    """How near the cached answer of each of some new prompts is to its uncached one; 1 for one that does not stray."""
    near = []
    for _ in range(_MORE):
        register = document(session.dice, _UNTRAINED_RECORDS)
        body = session.body(register.ask(register.at(0.5)[0]), tokens=8)
        (_, miss), (_, hit) = await session.telling(body), await session.telling(body)
        near.append(1.0 if same(miss, hit) else nearness(miss, hit))
    return near


def _rounded(near: list[float]) -> bool:
    """Whether hits stray here and there by rounding: not just these, and in the main near to their misses.

    What a stale prefix gives is near to another prompt's answer, in the main less than `FAR`.
    """
    return sum(one < 1 for one in near) * 4 >= len(near) > 0 and median(near) >= FAR


def _fingerprint(answer: Answer) -> tuple[object, ...]:
    return (answer.meaning, tuple(round(chance.logprob, 4) for chance in answer.chances))


@check(
    "prefix-cache",
    Level.FULL,
    "Effect of the prefix cache",
    proves="A long prompt that was seen before is found in the cache, by usage, by /metrics, or by how much sooner it "
    "starts to answer.",
    failure_means="Prefix caching is off, or on without effect (hybrid models need it twice: pages and states), or a "
    "router sends the second request to another replica. Agents pay for every turn in full.",
    limit_s=600,
)
async def prefix_cache(session: Session) -> Verdict:
    """Five documents, each asked about twice. The first is not counted: engines compile for a new length."""
    cold, warm, cached, prompts, counted = [], [], [], [], []
    for number in range(4 if session.untrained else 6):
        register = document(session.dice, _UNTRAINED_RECORDS * 2 if session.untrained else _RECORDS * 2)
        bodies = [session.body(register.ask(register.at(depth)[0]), tokens=8, max_tokens=8) for depth in (0.3, 0.6)]
        first = await session.endpoint.stream(bodies[0])
        before = await session.gauge(*_HITS)
        second = await session.endpoint.stream(bodies[1])
        after = await session.gauge(*_HITS)
        if fault := _wrong_count(first, second):
            return failed(fault, second.exchange(), first.exchange())
        if number:
            cold.append(first.first_s)
            warm.append(second.first_s)
            prompts.append(second.usage.prompt if second.usage else 0)
            cached.append(second.usage.cached if second.usage else None)
            if before is not None and after is not None:
                counted.append(after - before)
    speedup = median(cold) / max(median(warm), 1e-9)
    said = [count for count in cached if count is not None]
    source, known = ("usage", said) if said else ("/metrics", counted)
    figures = [
        Figure("time to first token, new prompt", 1000 * median(cold), "ms"),
        Figure("time to first token, seen before", 1000 * median(warm), "ms"),
        Figure("times faster", speedup, "x"),
        Figure("prompt", median(prompts), "tokens"),
    ]
    if known:
        figures.append(Figure(f"of it cached, by {source}", median(known), "tokens"))
    bars = tuple(
        Series(name, tuple((float(n), 1000 * value) for n, value in enumerate(values)))
        for name, values in (("new", cold), ("seen before", warm))
    )
    labels = tuple(f"document {n + 1}" for n in range(len(cold)))
    plot = Plot("Time to first token, new and seen before", "bars", "", "ms", bars, labels)
    if known and median(known) > 0:
        what = f"{median(known):,.0f} of {median(prompts):,.0f} tokens cached by {source}"
        what += f", first token {speedup:.1f} times sooner"
        return passed(what, second.exchange(), figures=figures, plots=[plot])
    if speedup > 1.5 and (not known or max(warm) < min(cold)):  # against a count of none, times must leave no doubt
        return passed(f"first token {speedup:.1f} times sooner", second.exchange(), figures=figures, plots=[plot])
    what = f"no cached tokens by {source}" if known else "neither usage nor /metrics says what was cached"
    return warned(f"{what}, and the first token is {speedup:.1f} times sooner", figures=figures, plots=[plot])


def _wrong_count(first: Answer, second: Answer) -> str:
    """What is wrong with how two prompts of about the same length are counted, the second with most of it cached."""
    if not first.usage or not second.usage:
        return ""
    if second.usage.prompt < 0.7 * first.usage.prompt:
        counts = f"{first.usage.prompt} tokens when it is new and {second.usage.prompt} when it is cached"
        return f"a prompt counts {counts}: prompt_tokens leaves out what is cached"
    if (second.usage.cached or 0) > second.usage.prompt:
        return f"{second.usage.cached} of {second.usage.prompt} prompt tokens are said to be cached"
    return ""
