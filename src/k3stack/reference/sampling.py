"""From logits to a token.

In order: logit bias, repetition, frequency and presence penalty, grammar, temperature, then top_k, min_p and top_p on
the probabilities. Arithmetic is float64, so that a draw does not depend on the size of the vocabulary's sums. Chance
is a function of the request's seed and the token's position alone: nothing that runs beside a request, no chunking
and no pre-emption changes its answer.

Shapes: V the vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from k3stack.reference.request import Sampling, Token

__all__ = ["Chance", "adjust", "distribution", "pick", "report"]

Row = NDArray[np.float64]
"""[V]"""


class Chance:
    """The random numbers for one position of one answer: the same seed and position, the same numbers."""

    def __init__(self, seed: int, position: int) -> None:
        self._key = seed, position
        self._source: np.random.Generator | None = None

    def draw(self) -> float:
        """The next number, from 0 up to but not including 1."""
        if self._source is None:
            seed, position = self._key
            self._source = np.random.Generator(np.random.Philox(key=seed % 2**64, counter=position))
        return float(self._source.random())


def adjust(
    logits: NDArray[np.float32],
    sampling: Sampling,
    answer: Mapping[int, int],
    prompt: Collection[int],
    allowed: NDArray[np.bool_] | None,
) -> Row:
    """Logits [V] after bias, penalties and grammar.

    Args:
        logits: [V], left as they are.
        sampling: the request's.
        answer: how often each token is in the answer so far.
        prompt: the tokens of the prompt.
        allowed: [V], what the grammar takes next.
    """
    row = logits.astype(np.float64)
    for token, bias in sampling.logit_bias.items():
        row[token] += bias
    if sampling.repetition_penalty != 1:
        seen = np.fromiter({*prompt, *answer}, dtype=np.int64)
        values = row[seen]
        row[seen] = np.where(values > 0, values / sampling.repetition_penalty, values * sampling.repetition_penalty)
    if answer and (sampling.frequency_penalty or sampling.presence_penalty):
        said = np.fromiter(answer, dtype=np.int64)
        counts = np.fromiter(answer.values(), dtype=np.float64)
        row[said] -= sampling.frequency_penalty * counts + sampling.presence_penalty
    if allowed is not None:
        row[~allowed] = -np.inf
    return row


def distribution(row: Row, sampling: Sampling) -> Row:
    """Probabilities [V] to draw from. At temperature 0 all of it is on the first of the most likely tokens."""
    if sampling.greedy:
        only = np.zeros_like(row)
        only[int(row.argmax())] = 1
        return only
    row = row / sampling.temperature
    probabilities = np.exp(row - row.max())
    probabilities /= probabilities.sum()
    if 0 < sampling.top_k < len(row):
        least = np.partition(probabilities, -sampling.top_k)[-sampling.top_k]
        probabilities[probabilities < least] = 0
    if sampling.min_p > 0:
        probabilities[probabilities < sampling.min_p * probabilities.max()] = 0
    if sampling.top_p < 1:
        _keep_nucleus(probabilities, sampling.top_p)
    whole: Row = probabilities / probabilities.sum()
    return whole


def pick(probabilities: Row, chance: Chance) -> int:
    """Draw a token: the first whose share of the cumulated probabilities [V] reaches the number drawn."""
    cumulated = probabilities.cumsum()
    place = int(np.searchsorted(cumulated, chance.draw() * cumulated[-1], side="right"))
    if place < len(probabilities) and probabilities[place] > 0:
        return place
    return int(np.flatnonzero(probabilities)[-1])  # rounding put the number behind the last token


def report(logits: NDArray[np.float32], chosen: int, count: int | None) -> Token:
    """A token with its log-probability and the `count` most likely ones; without any for None.

    Args:
        logits: of its place [vocab].
        chosen: the token.
    """
    if count is None:
        return Token(chosen)
    row = logits.astype(np.float64)
    row = row - row.max()
    logs = row - np.log(np.exp(row).sum())
    best = _best(logs, count)
    return Token(chosen, float(logs[chosen]), tuple((int(t), float(logs[t])) for t in best), _rank(logs, chosen))


def _best(logs: Row, count: int) -> Sequence[int]:
    if count == 0:
        return ()
    count = min(count, len(logs))
    top = np.argpartition(logs, -count)[-count:]
    order = np.lexsort((top, -logs[top]))
    return [int(token) for token in top[order]]


def _rank(logs: Row, chosen: int) -> int:
    return int((logs > logs[chosen]).sum()) + 1


def _keep_nucleus(probabilities: Row, top_p: float) -> None:
    """Keep the most likely tokens whose sum first reaches `top_p`."""
    order = np.argsort(-probabilities, kind="stable")
    cumulated = probabilities[order].cumsum()
    kept = int(np.searchsorted(cumulated, top_p * cumulated[-1], side="left")) + 1
    probabilities[order[kept:]] = 0
