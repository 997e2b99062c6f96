"""The comparison itself.

A answers each prompt greedily. Both sides then score the same tokens, prompt and answer, so that no early difference
makes the later places incomparable. At each place of the answer:

    agreement    whether both find the same token the most likely
    KL           sum over the tokens that both sides report of p_A log(p_A / p_B), and the same for what is left over
                 on each side as one outcome. Joining outcomes can only make it smaller, so this is a lower bound of
                 KL(A || B); with the whole vocabulary it is exact.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from k3stack.errors import UsageError
from k3stack.reference.parity.side import Key, Scored, Side
from k3stack.values import Origin
from k3stack.xtml import Segment

__all__ = ["ParityReport", "PromptParity", "compare", "divergence"]


@dataclass(frozen=True, slots=True)
class PromptParity:
    """How two sides compare on one prompt.

    Attributes:
        prompt: its name.
        prompt_tokens: how many tokens it has.
        kl: KL(A || B) at each place of the answer, nats.
        agree: whether both find the same token the most likely, at each place.
        covered: A's probability on the tokens that both report, at each place.
        first_divergence: the first place where they do not agree; None where there is none.
    """

    prompt: str
    prompt_tokens: int
    kl: tuple[float, ...]
    agree: tuple[bool, ...]
    covered: tuple[float, ...]
    first_divergence: int | None

    @property
    def first_text(self) -> str:
        """The place of the first divergence for people, counted from 1."""
        return "-" if self.first_divergence is None else str(self.first_divergence + 1)


@dataclass(frozen=True, slots=True)
class ParityReport:
    """How two sides compare.

    Attributes:
        a, b: the sides.
        top: most likely tokens compared at each place; 0: all of them.
        exact_kl: whether the KL is exact; else it is a lower bound.
        tokens: places compared.
        agreement: share of places where both find the same token the most likely.
        mean_kl, max_kl: nats.
        covered: mean probability of A on the tokens that both report.
        prompts: each prompt.
        origin: where these numbers come from.
    """

    a: str
    b: str
    top: int
    exact_kl: bool
    tokens: int
    agreement: float
    mean_kl: float
    max_kl: float
    covered: float
    prompts: tuple[PromptParity, ...]
    origin: Origin = Origin.MEASURED


def compare(
    a: Side,
    b: Side,
    prompts: Mapping[str, Sequence[Segment]],
    tokens: int = 32,
    top: int = 20,
    report: Callable[[int, int | None, str], None] = lambda *_: None,
) -> ParityReport:
    """Compare two sides on prompts (by name), `tokens` tokens of answer each.

    Raises:
        UsageError: neither side can tokenise.
        K3Error: a side cannot answer.
    """
    found = []
    whole = True
    for done, (name, prompt) in enumerate(prompts.items()):
        report(done, len(prompts), name)
        ids = a.tokens(prompt) or b.tokens(prompt)
        if ids is None:
            hint = "Give a checkpoint folder as one side; its tokenizer is used for both"
            raise UsageError("neither side can tokenise the prompts", where="A, B", hint=hint)
        said = a.answer(ids, tokens)
        both = [*ids, *said]
        scored_a, scored_b = (side.score(both, len(ids), top) for side in (a, b))
        scored_a, scored_b = _same_keys(scored_a, scored_b, a, b)
        parity = _prompt(name, len(ids), scored_a, scored_b)
        whole = whole and all(len(x.logprobs) == len(y.logprobs) > top for x, y in zip(scored_a, scored_b, strict=True))
        found.append(parity)
    kl = [value for each in found for value in each.kl]
    agree = [value for each in found for value in each.agree]
    covered = [value for each in found for value in each.covered]
    return ParityReport(
        a=a.name,
        b=b.name,
        top=top,
        exact_kl=whole and top == 0,
        tokens=len(kl),
        agreement=sum(agree) / len(agree),
        mean_kl=sum(kl) / len(kl),
        max_kl=max(kl),
        covered=sum(covered) / len(covered),
        prompts=tuple(found),
    )


def divergence(a: Mapping[Key, float], b: Mapping[Key, float]) -> tuple[float, float]:
    """KL(A || B) over the tokens that both report and the rest of each as one outcome; A's share on the former."""
    common = a.keys() & b.keys()
    kl = covered_a = covered_b = 0.0
    for key in common:
        p = math.exp(a[key])
        kl += p * (a[key] - b[key])
        covered_a += p
        covered_b += math.exp(b[key])
    rest_a, rest_b = 1 - covered_a, 1 - covered_b
    if rest_a > 1e-12:
        kl += rest_a * math.log(rest_a / max(rest_b, 1e-12))
    return max(0.0, kl), min(1.0, covered_a)


def _prompt(name: str, length: int, a: Sequence[Scored], b: Sequence[Scored]) -> PromptParity:
    agree = tuple(x.best == y.best for x, y in zip(a, b, strict=True))
    pairs = [divergence(x.logprobs, y.logprobs) for x, y in zip(a, b, strict=True)]
    first = next((place for place, same in enumerate(agree) if not same), None)
    return PromptParity(name, length, tuple(kl for kl, _ in pairs), agree, tuple(share for _, share in pairs), first)


def _same_keys(a: list[Scored], b: list[Scored], side_a: Side, side_b: Side) -> tuple[list[Scored], list[Scored]]:
    """If one side tells ids and the other text, ids become text."""
    texts_a, texts_b = (any(isinstance(key, str) for each in side for key in each.logprobs) for side in (a, b))
    if texts_a == texts_b:
        return a, b
    return (a, [_spelled(each, side_b) for each in b]) if texts_a else ([_spelled(each, side_a) for each in a], b)


def _spelled(scored: Scored, side: Side) -> Scored:
    """Tokens with the same text become one."""
    sums: dict[Key, float] = defaultdict(float)
    for key, logprob in scored.logprobs.items():
        sums[_text(key, side)] += math.exp(logprob)
    return Scored(_text(scored.token, side), _text(scored.best, side), {k: math.log(v) for k, v in sums.items()})


def _text(key: Key, side: Side) -> str:
    return side.text(key) if isinstance(key, int) else key
