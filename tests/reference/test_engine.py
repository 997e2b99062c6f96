"""The engine over a model whose answer depends on the whole history: whatever runs around a request, it is the same."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k3stack.errors import UsageError
from k3stack.reference.engine import Engine, EngineOptions
from k3stack.reference.request import Finish, Request, Sampling, Token
from tests.reference.fake import VOCABULARY, FakeModel, answer

GREEDY = Sampling(temperature=0, max_tokens=12)


def options(**changes: int) -> EngineOptions:
    values = {"context": 256, "slots": 4, "page_tokens": 4, "chunk_tokens": 16, "snapshot_every": 32, **changes}
    return EngineOptions(**values)  # type: ignore[arg-type]


def prompts(count: int, seed: int = 0, longest: int = 90) -> list[tuple[int, ...]]:
    random = np.random.default_rng(seed)
    shared = tuple(int(t) for t in random.integers(0, VOCABULARY, 40))
    made = []
    for number in range(count):
        own = tuple(int(t) for t in random.integers(0, VOCABULARY, random.integers(1, longest)))
        made.append(shared[: int(random.integers(0, 40))] + own if number % 2 else own)
    return made


def requests(made: list[tuple[int, ...]], sampling: Sampling = GREEDY) -> list[Request]:
    return [Request(str(number), prompt, sampling) for number, prompt in enumerate(made)]


def ids(tokens: list[Token]) -> list[int]:
    return [token.id for token in tokens]


@settings(max_examples=12)
@given(
    seed=st.integers(0, 10**6),
    slots=st.integers(1, 5),
    page_tokens=st.integers(1, 9),
    chunk_tokens=st.integers(1, 70),
    snapshot_every=st.integers(1, 50),
    tight=st.booleans(),
    prefixes=st.sampled_from([0, 60, 2**20]),
)
def test_an_answer_is_the_same_whatever_happens_around_it(
    seed: int, slots: int, page_tokens: int, chunk_tokens: int, snapshot_every: int, tight: bool, prefixes: int
) -> None:
    made = prompts(6, seed)
    pages = -(-160 // page_tokens) + (2 if tight else 400)
    engine = Engine(
        FakeModel(),
        EngineOptions(160, slots, page_tokens, pages, chunk_tokens=chunk_tokens, snapshot_every=snapshot_every)
        if not prefixes
        else EngineOptions(
            160,
            slots,
            page_tokens,
            pages,
            chunk_tokens=chunk_tokens,
            snapshot_every=snapshot_every,
            snapshot_bytes=prefixes,
        ),
    )
    for _ in range(2):  # the second time prefixes are known
        for request in requests(made):
            engine.add(request)
        answers: dict[str, list[int]] = {str(number): [] for number in range(len(made))}
        while engine.busy:
            for update in engine.step():
                answers[update.id] += [token.id for token in update.tokens]
            engine.cache.check()
        assert answers == {str(number): answer(prompt, 12) for number, prompt in enumerate(made)}


def test_pages_run_out_and_the_latest_request_is_computed_again() -> None:
    made = prompts(4, 3, longest=60)
    engine = Engine(FakeModel(), options(pages=64, slots=4, snapshot_bytes=0))
    answers = engine.run(requests(made, Sampling(temperature=0, max_tokens=60)))
    assert {key: ids(tokens) for key, tokens in answers.items()} == {
        str(number): answer(prompt, 60) for number, prompt in enumerate(made)
    }
    assert engine.scheduler.preemptions > 0
    engine.cache.check()


def test_a_long_prompt_beside_an_answer_that_grows_is_begun_again_once() -> None:
    engine = Engine(FakeModel(), options(context=96, pages=24, snapshot_bytes=0))
    made = [
        Request("short", tuple(range(10)), Sampling(temperature=0, max_tokens=80)),
        Request("long", (7,) * 80, GREEDY),
    ]
    answers = engine.run(made)
    assert [ids(answers[one.id]) for one in made] == [answer(one.prompt, one.sampling.max_tokens) for one in made]
    assert engine.scheduler.preemptions == 1


def test_a_known_prompt_computes_its_last_token_alone() -> None:
    engine = Engine(FakeModel(), options())
    prompt = tuple(range(50))
    engine.run([Request("a", prompt, GREEDY)])
    before = engine.counters.computed_tokens
    engine.run([Request("b", prompt, Sampling(temperature=0, max_tokens=1))])
    assert engine.counters.computed_tokens - before == 1
    assert engine.counters.cached_tokens == 49


def test_the_place_where_two_prompts_went_apart_is_kept_for_the_third() -> None:
    engine = Engine(FakeModel(), options(snapshot_every=1000))
    shared = tuple(range(23))
    sampling = Sampling(temperature=0, max_tokens=1)
    computed = []
    for number, own in enumerate((40, 41, 42)):
        before = engine.counters.computed_tokens
        engine.run([Request(str(number), (*shared, own, own, own), sampling)])
        computed.append(engine.counters.computed_tokens - before)
    assert computed == [26, 26, 3]


def test_a_shared_page_is_copied_before_it_is_written() -> None:
    engine = Engine(FakeModel(), options(page_tokens=8))
    prompt = tuple(range(21))  # its prefix of 20 tokens ends within a page
    engine.run([Request("a", prompt, GREEDY)])
    both = [Request("b", (*prompt, 1), GREEDY), Request("c", (*prompt, 2), GREEDY)]
    answers = engine.run(both)
    assert [ids(answers[each.id]) for each in both] == [answer(each.prompt, 12) for each in both]
    assert ids(engine.run([Request("d", prompt, GREEDY)])["d"]) == answer(prompt, 12)
    engine.cache.check()


def test_siblings_compute_their_prompt_once() -> None:
    engine = Engine(FakeModel(), options())
    prompt = tuple(range(60))
    sampling = [Sampling(seed=number, max_tokens=5) for number in range(4)]
    siblings = [Request(str(n), prompt, each, after="0" if n else None) for n, each in enumerate(sampling)]
    answers = engine.run(siblings)
    assert engine.counters.computed_tokens == 60 + 3 + 4 * 4
    assert len({tuple(ids(tokens)) for tokens in answers.values()}) > 1


def test_a_cancelled_request_leaves_nothing_behind() -> None:
    engine = Engine(FakeModel(), options(snapshot_bytes=0))
    for moment in range(12):
        made = requests(prompts(6, 5), Sampling(temperature=0, max_tokens=20))
        for request in made:
            engine.add(request)
        for _ in range(moment):
            engine.step()
        for request in made:
            engine.cancel(request.id)
            engine.cache.check()
        assert not engine.busy
        assert engine.cache.pool.free == len(engine.cache.pool)
        assert engine.cache.free_slots == 4


def test_a_long_prompt_does_not_stop_others_for_more_than_a_chunk() -> None:
    model = FakeModel()
    engine = Engine(model, options(context=600))
    engine.add(Request("short", (1, 2, 3), Sampling(temperature=0, max_tokens=100)))
    engine.step(), engine.step()
    engine.add(Request("long", tuple(range(64)) * 8, GREEDY))
    for _ in range(20):
        (update,) = [update for update in engine.step() if update.id == "short"]
        assert len(update.tokens) == 1
    assert max(map(sum, model.passes)) <= 16 + 4


def test_first_come_first_served() -> None:
    engine = Engine(FakeModel(), options(slots=2, snapshot_bytes=0))
    for request in requests([(1,) * 5, (2,) * 5, (3,) * 5, (4,) * 5]):
        engine.add(request)
    ends = []
    while engine.busy:
        ends += [update.id for update in engine.step() if update.finish]
    assert ends == ["0", "1", "2", "3"]


@pytest.mark.parametrize("sampling", [Sampling(seed=4, max_tokens=9), Sampling(seed=9, top_p=0.7, max_tokens=9)])
def test_a_seed_gives_the_same_answer_beside_others(sampling: Sampling) -> None:
    prompt = prompts(1, 8)[0]
    alone = ids(Engine(FakeModel(), options()).run([Request("x", prompt, sampling)])["x"])
    noise = [Request(str(n), p, Sampling(seed=n, max_tokens=7)) for n, p in enumerate(prompts(9, 2))]
    beside = Engine(FakeModel(), options(pages=70)).run([*noise[:4], Request("x", prompt, sampling), *noise[4:]])
    assert ids(beside["x"]) == alone


def test_stops() -> None:
    prompt = (5, 6, 7)
    said = answer(prompt, 12)
    end = said[4]
    first = said.index(end)
    engine = Engine(FakeModel(), options(), end_tokens=[end])
    assert ids(engine.run([Request("a", prompt, GREEDY)])["a"]) == said[: first + 1]
    ignored = Sampling(temperature=0, max_tokens=12, ignore_eos=True)
    assert ids(engine.run([Request("b", prompt, ignored)])["b"]) == said
    stopped = Sampling(temperature=0, max_tokens=12, ignore_eos=True, stop_tokens=frozenset({said[2]}))
    assert ids(engine.run([Request("c", prompt, stopped)])["c"]) == said[: said.index(said[2]) + 1]


def test_the_context_ends_an_answer() -> None:
    engine = Engine(FakeModel(), options(context=16))
    engine.add(Request("a", (1,) * 10, Sampling(temperature=0, max_tokens=100)))
    updates = list(itertools.chain.from_iterable(engine.step() for _ in range(20)))
    assert updates[-1].finish is Finish.LENGTH
    assert sum(len(update.tokens) for update in updates) == 6
    with pytest.raises(UsageError, match="16 tokens, the context 16"):
        engine.add(Request("b", (1,) * 16))


def test_log_probabilities_of_prompt_and_answer_agree() -> None:
    engine = Engine(FakeModel(), options())
    asked = Sampling(temperature=0, max_tokens=5, logprobs=3)
    prompt = tuple(range(30))
    said = engine.run([Request("a", prompt, asked)])["a"]
    whole = (*prompt, *ids(said))
    engine.add(Request("b", whole, Sampling(temperature=0, max_tokens=0, prompt_logprobs=3), resume=False))
    told: list[Token] = []
    while engine.busy:
        for update in engine.step():
            told += update.prompt
    assert [token.id for token in told] == list(whole)
    assert told[0].logprob is None
    assert told[30:] == said
    assert all(token.rank == 1 and token.top[0] == (token.id, token.logprob) for token in said)
