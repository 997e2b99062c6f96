"""Speculative decoding changes how many passes an answer takes, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3stack.reference.engine import Engine
from k3stack.reference.request import Request, Sampling
from k3stack.reference.sampling import Chance
from k3stack.reference.speculate import Proposal, verify_one
from tests.reference.fake import VOCABULARY, FakeDraft, FakeModel, answer
from tests.reference.test_engine import ids, options, prompts


@pytest.mark.parametrize("wrong", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("pages", [None, 48])
def test_greedy_answers_are_the_same_with_a_draft(wrong: float, pages: int | None) -> None:
    made = prompts(8, 4, longest=60)
    expected = {prompt: answer(prompt, 30) for prompt in made}
    model = FakeModel()
    changes = {} if pages is None else {"pages": pages}
    engine = Engine(model, options(context=160, draft_tokens=3, **changes), [], FakeDraft(expected, wrong))
    requests = [Request(str(n), prompt, Sampling(temperature=0, max_tokens=30)) for n, prompt in enumerate(made)]
    answers = engine.run(requests)
    engine.cache.check()
    assert {prompt: ids(answers[str(n)]) for n, prompt in enumerate(made)} == expected
    counters = engine.counters
    rate = counters.accepted_tokens / counters.drafted_tokens
    assert rate == 1.0 if wrong == 0 else rate == 0 if wrong == 1 else 0.2 < rate < 0.8
    if wrong == 0 and pages is None:
        assert counters.passes < 8 * 30 / 4


def test_an_answer_ends_within_a_proposal() -> None:
    prompt = (3, 1, 4)
    said = answer(prompt, 30)
    place = next(place for place in range(3, 30) if said[place] not in said[:place])
    draft = FakeDraft({prompt: said}, 0)
    engine = Engine(FakeModel(), options(draft_tokens=4), [said[place]], draft)
    assert ids(engine.run([Request("a", prompt, Sampling(temperature=0, max_tokens=30))])["a"]) == said[: place + 1]
    for most in range(1, 9):
        engine = Engine(FakeModel(), options(draft_tokens=4), [], draft)
        assert ids(engine.run([Request("a", prompt, Sampling(temperature=0, max_tokens=most))])["a"]) == said[:most]
        # The prefix kept at the end is as good as any other.
        again = engine.run([Request("b", (*prompt, *said[:most]), Sampling(temperature=0, max_tokens=2))])["b"]
        assert ids(again) == answer((*prompt, *said[:most]), 2)
        engine.cache.check()


@given(seed=st.integers(0, 2**32), size=st.integers(2, 6), sharp=st.floats(0.2, 4))
def test_accepting_and_rejecting_leaves_the_target_distribution(seed: int, size: int, sharp: float) -> None:
    """Exact, not by counting: the probability of each token over all outcomes of draft, acceptance and redraw."""
    random = np.random.default_rng(seed)
    p, q = (np.exp(sharp * random.standard_normal(size)) for _ in range(2))
    p, q = p / p.sum(), q / q.sum()
    outcome = np.zeros(size)
    for drafted in range(size):
        accept = min(1.0, p[drafted] / q[drafted])
        rest = np.maximum(p - q, 0)
        outcome[drafted] += q[drafted] * accept
        if accept < 1:
            outcome += q[drafted] * (1 - accept) * rest / rest.sum()
    assert np.allclose(outcome, p, atol=1e-12)
    # And that is what the function does: same acceptance bound, same redraw.
    for drafted in range(size):
        proposal = Proposal((drafted,), (q,))
        bound = p[drafted] / q[drafted]
        for position in range(8):
            token, accepted = verify_one(p, proposal, 0, Chance(seed, position))
            drawn = Chance(seed, position).draw()
            assert accepted == (bound >= 1 or drawn * q[drafted] < p[drafted])
            assert token == drafted if accepted else p[token] > q[token]


def test_sampled_answers_have_the_same_distribution_with_a_draft() -> None:
    prompt = (9, 9, 2)
    sampling = Sampling(temperature=1.5, top_k=4, max_tokens=3)
    counts = []
    for drafted in (0, 3):
        draft = FakeDraft({prompt: answer(prompt, 8)}, 0.3)
        engine = Engine(FakeModel(), options(slots=64, draft_tokens=drafted), [], draft)
        requests = [
            Request(str(n), prompt, Sampling(temperature=1.5, top_k=4, max_tokens=sampling.max_tokens, seed=n))
            for n in range(500)
        ]
        found = np.zeros((3, VOCABULARY))
        for tokens in engine.run(requests).values():
            for place, token in enumerate(tokens):
                found[place, token.id] += 1
        counts.append(found / 500)
    # Half the sum of absolute differences; two samples of 500 over few tokens differ by about 0.05.
    assert np.abs(counts[0] - counts[1]).sum(axis=1).max() / 2 < 0.13
