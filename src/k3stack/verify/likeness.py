"""Whether two answers to one prompt differ by rounding alone, and how near they are where rounding is blown up.

Engines on GPUs add up in another order when a batch or a cached prefix is another one, so that near ties fall the
other way (measured with vLLM 0.33.0 on one H200: of 16 repeated answers of random weights 5 parted, after a cached
prefix 14; the log probabilities of the first token moved by 0.09 at most, and four or five of the five likeliest tokens
stayed the same). The answer to another prompt shares at most one of the five. So up to where two answers part, the
likeliest tokens must be the same in the main, and there each must have had the other's token among its own.

Where a router chooses experts by near ties, as with random weights, rounding is blown up: the answers of some prompts
have other likeliest tokens before they part. `nearness` tells these from answers to other prompts, in the main.
Measured with vLLM 0.33.0 on H200, 112 prompts of a tiny MXFP4 checkpoint on one GPU and of a tiny NVFP4 one on two: the
median nearness of an answer to the same prompt's, in company of 4 to 48 or with a cached prefix, was 0.93 and more, and
0.75 and more; that to another prompt's 0.15 to 0.22, and 0.37 to 0.49 at the nearest tenth.
"""

from __future__ import annotations

import math

from k3stack.verify.answer import Answer, TokenChance

__all__ = ["FAR", "alike", "near_tie", "nearness", "same"]

FAR = 0.45
"""A nearness below this is that of answers to different prompts."""

_SHARED = 3
_ENOUGH = 4
_MOVED = 1.0


def alike(one: Answer, other: Answer) -> bool:
    """Whether rounding explains the difference; False too where the endpoint gives no log probabilities to tell."""
    if not one.chances or not other.chances:
        return False
    for mine, theirs in zip(one.chances, other.chances, strict=False):
        if not _close(mine, theirs):
            return False
        if mine.token != theirs.token:
            return True  # from here on they have read different things
    return True


def _close(mine: TokenChance, theirs: TokenChance) -> bool:
    """Whether one position's likeliest tokens are those of the same state."""
    here, there = dict(mine.top), dict(theirs.top)
    if len(here) < _ENOUGH or len(there) < _ENOUGH:
        return mine.token == theirs.token and abs(mine.logprob - theirs.logprob) <= _MOVED
    shared = here.keys() & there.keys()
    near = all(abs(here[token] - there[token]) <= _MOVED for token in shared)
    return len(shared) >= _SHARED and near and mine.token in there and theirs.token in here


def same(one: Answer, other: Answer) -> bool:
    """Equal, or apart by a near tie."""
    return one.meaning == other.meaning or alike(one, other)


def nearness(one: Answer, other: Answer) -> float:
    """How much of their chances two answers share, 0 to 1: the mean over the places up to where they part.

    At a place it is the sum of the lesser probabilities of the likeliest tokens that both list, over the lesser of
    both lists' sums. 0 where the endpoint gives no log probabilities.
    """
    shares = []
    for mine, theirs in zip(one.chances, other.chances, strict=False):
        here, there = dict(mine.top), dict(theirs.top)
        both = sum(math.exp(min(here[token], there[token])) for token in here.keys() & there.keys())
        least = min(sum(map(math.exp, here.values())), sum(map(math.exp, there.values())))
        shares.append(both / least if least else 0.0)
        if mine.token != theirs.token:
            break
    return sum(shares) / len(shares) if shares else 0.0


def near_tie(one: Answer, other: Answer) -> bool:
    """Whether two greedy answers to one prompt part where both tokens were about as likely, in both of them."""
    for mine, theirs in zip(one.chances, other.chances, strict=False):
        if mine.token != theirs.token:
            here, there = dict(mine.top), dict(theirs.top)
            if theirs.token not in here or mine.token not in there:
                return False
            return max(abs(mine.logprob - here[theirs.token]), abs(theirs.logprob - there[mine.token])) <= _MOVED
    return True
