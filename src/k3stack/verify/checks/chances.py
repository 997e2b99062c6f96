"""Numbers behind the text: log probabilities, and whether answers repeat."""

from __future__ import annotations

import math

from k3stack.verify.answer import Answer
from k3stack.verify.endpoint import Refused
from k3stack.verify.likeness import same
from k3stack.verify.registry import Verdict, check, failed, not_applicable, passed, warned
from k3stack.verify.report import Figure, Level
from k3stack.verify.session import Session
from k3stack.verify.statistics import ratio

_REPEATS = 5


@check(
    "logprobs",
    Level.FULL,
    "Log probabilities",
    proves="Log probabilities are those of the answer's own tokens, streamed and not, at most 0, sorted, add up to at "
    "most 1, and the likeliest token is the one taken at temperature 0.",
    failure_means="NaN or infinite logits (bad scales, a broken kernel), probabilities taken after sampling, or those "
    "of other tokens.",
)
async def logprobs(session: Session) -> Verdict:
    """Twenty tokens with their five likeliest, both ways."""
    body = session.brief("Count from 1 to 20, numbers separated by single spaces.", tokens=20, max_tokens=20)
    try:
        answer = await session.endpoint.chat({**body, "logprobs": True, "top_logprobs": 5})
    except Refused as error:
        if error.status >= 500:
            return failed(f"asking for logprobs gives HTTP {error.status}", error.exchange)
        return not_applicable(f"logprobs are refused: {error}", error.exchange)
    if not answer.chances:
        return not_applicable("the endpoint gives no logprobs", answer.exchange())
    if fault := _fault(answer, session.dialect.greedy):
        return failed(fault, answer.exchange())
    streamed = await session.endpoint.stream({**body, "logprobs": True, "top_logprobs": 5})
    if streamed.chances and (fault := _fault(streamed, session.dialect.greedy)):
        return failed(f"stream: {fault}", streamed.exchange())
    if streamed.text and not streamed.chances:
        return warned("a whole answer has log probabilities, a stream has none", streamed.exchange())
    mean = sum(chance.logprob for chance in answer.chances) / len(answer.chances)
    figures = [Figure("mean log probability", mean, ""), Figure("tokens", len(answer.chances), "")]
    return passed(f"{len(answer.chances)} tokens with sane log probabilities", answer.exchange(), figures=figures)


def _fault(answer: Answer, greedy: bool) -> str:
    for number, chance in enumerate(answer.chances):
        values = [value for _, value in chance.top]
        where = f"token {number} ({chance.token!r})"
        if not all(math.isfinite(value) and value <= 1e-4 for value in (chance.logprob, *values[:1])):
            return f"{where}: log probability {chance.logprob}"
        if any(math.isnan(value) or value > 1e-4 for value in values):
            return f"{where}: log probabilities {values}"
        if values != sorted(values, reverse=True):
            return f"{where}: the likeliest are not sorted: {values}"
        if sum(math.exp(value) for value in values) > 1.01:
            return f"{where}: probabilities add up to {sum(math.exp(value) for value in values):.3f}"
        if greedy and chance.top and chance.token not in dict(chance.top):
            return f"{where} is not among its own likeliest tokens {[token for token, _ in chance.top]}"
        if greedy and values and chance.logprob < values[0] - 1e-2:
            return f"{where} is taken at temperature 0, though {chance.top[0][0]!r} is likelier"
    spelled, said = "".join(chance.token for chance in answer.chances), answer.text
    readable = "\ufffd" not in spelled + said and not spelled.startswith("token_id:")
    if readable and "".join(said.split()) not in "".join(spelled.split()):
        return f"the tokens spell {spelled[:60]!r}, the answer says {said[:60]!r}"
    return ""


@check(
    "repeat",
    Level.FULL,
    "Repeatability",
    proves="The same request at temperature 0, alone, gives the same answer.",
    failure_means="Some difference is normal for a BF16 model whose batches change. Much of it, in requests that run "
    "alone, means kernels that race or a cache that is not restored exactly.",
)
async def repeat(session: Session) -> Verdict:
    """Five times the same, one after another."""
    if not session.dialect.greedy:
        return not_applicable("temperature 0 is refused")
    prompt = "List ten rivers of the world with one sentence about each."
    tokens = 24 if session.untrained else 96
    body = session.body(prompt, tokens, max_tokens=tokens)
    answers = [(await session.telling(body))[1] for _ in range(_REPEATS)]
    equal = sum(answer.meaning == answers[0].meaning for answer in answers)
    if session.untrained and not answers[0].text:
        return not_applicable("the random model's tokens give no text: empty answers prove nothing")
    figures = [Figure("equal to the first, of 5", equal, ""), Figure("share", 100 * ratio(equal, _REPEATS), "%")]
    if equal == _REPEATS:
        return passed("five equal answers", figures=figures)
    odd = next(answer for answer in answers if answer.meaning != answers[0].meaning)
    evidence = (odd.exchange("another answer"), answers[0].exchange("the first answer"))
    if session.untrained and not all(same(answers[0], one) for one in answers):
        return failed(f"only {equal} of {_REPEATS} answers are equal", *evidence, figures=figures)
    return warned(f"{equal} of {_REPEATS} answers are equal to the first", *evidence, figures=figures)
