"""Rounding that is blown up: told from the state of another request by what the endpoint does with copies of one."""

from __future__ import annotations

import gzip
import json
from collections import deque
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from aiohttp import web

from k3stack.verify import Level, Status, Target, run_checks
from k3stack.verify.answer import Answer, TokenChance
from k3stack.verify.likeness import FAR, nearness
from tests.verify.broken import MixesStates
from tests.verify.fake_k3 import serving
from tests.verify.proxy import Body, Proxy, message_of

MEASURED = json.loads(gzip.decompress((Path(__file__).parent / "rounding_h200.json.gz").read_bytes()))["answers"]


def recorded(row: list[Any]) -> Answer:
    chances = (TokenChance(str(token), own, tuple((str(a), b) for a, b in top)) for token, own, top in row)
    return Answer({}, "", chances=tuple(chances))


@pytest.mark.parametrize("where", list(MEASURED))
def test_what_a_gpu_gave_is_near_to_the_same_prompt_and_far_from_others(where: str) -> None:
    ways = {way: [recorded(row) for row in rows] for way, rows in MEASURED[where].items()}
    alone = ways["alone"]
    for way in ("again", "together-8"):
        assert median(map(nearness, alone, ways[way])) > 0.7
    others = [nearness(one, other) for one in alone for other in alone if one is not other]
    assert median(others) < 0.25
    assert sum(one >= FAR for one in others) < len(others) / 10


def test_equal_answers_are_near_and_those_without_chances_are_not() -> None:
    one = recorded(MEASURED["mxfp4, one GPU"]["alone"][0])
    assert nearness(one, one) == pytest.approx(1)
    assert nearness(one, Answer({}, "")) == 0


def blurred(answer: Body) -> Body:
    """The seventh token is another one that was not likely: what follows from it does not matter to anybody."""
    choice = answer["choices"][0]
    if not choice.get("logprobs") or len(choice["logprobs"]["content"]) < 8:
        return answer
    places = choice["logprobs"]["content"]
    old = places[6]
    places[6] = {
        **old,
        "token": "Q",
        "top_logprobs": [{**old["top_logprobs"][0], "token": "Q"}, *old["top_logprobs"][1:]],
    }
    kind = "reasoning_content" if message_of(answer).get("reasoning_content") else "content"
    message_of(answer)[kind] = "".join(place["token"] for place in places)
    return answer


class Blurs(Proxy):
    """Rounds otherwise whenever two requests run at once, whatever they ask."""

    def whole(self, answer: Body, body: Body) -> Body:
        return blurred(answer) if self.in_flight > 1 else answer


class BlursBesideOthers(Proxy):
    """Only in the company of requests that ask something else: that is no rounding."""

    def __init__(self, upstream: str) -> None:
        super().__init__(upstream)
        self.recent: deque[str] = deque(maxlen=8)

    def request(self, body: Body) -> Body:
        self.recent.append(str(body["messages"]))
        return body

    def whole(self, answer: Body, body: Body) -> Body:
        return blurred(answer) if self.in_flight > 1 and len(set(self.recent)) > 1 else answer


class BlursAndMixes(MixesStates):
    """Rounds otherwise, and mixes states too: the answer of another request is not equal to that one's own either."""

    def whole(self, answer: Body, body: Body) -> Body:
        return blurred(answer) if self.in_flight > 1 else answer


class BlursHits(Proxy):
    """Rounds otherwise once a prompt is cached."""

    most = 1000

    def __init__(self, upstream: str) -> None:
        super().__init__(upstream)
        self.seen: set[str] = set()
        self.blurred = 0

    def whole(self, answer: Body, body: Body) -> Body:
        prompt = str(body["messages"])
        hit = prompt in self.seen and self.blurred < self.most
        self.seen.add(prompt)
        self.blurred += hit and body.get("logprobs", False)
        return blurred(answer) if hit else answer


class BlursTwoHits(BlursHits):
    """Two answers differ and no others: that is no rounding."""

    most = 2


@pytest.mark.parametrize(
    ("endpoint", "check", "wanted"),
    [
        (Blurs, "needles-8", Status.WARN),
        (Blurs, "prefix-shared", Status.WARN),
        (BlursBesideOthers, "needles-8", Status.FAIL),
        (BlursAndMixes, "needles-8", Status.FAIL),
        (BlursHits, "prefix-fresh", Status.WARN),
        (BlursTwoHits, "prefix-fresh", Status.FAIL),
    ],
)
def test_rounding_is_a_warning_and_what_others_do_a_failure(
    untrained: str, endpoint: type[Proxy], check: str, wanted: Status
) -> None:
    with serving(endpoint(untrained).app()) as url:
        result = run_checks(Target(url), Level.FULL, only=[check]).result(check)
    assert result.status is wanted, result.summary
    assert result.evidence


class ClosesAfterError(Proxy):
    """As uvicorn does when an application raises after its answer: HTTP 500, and the connection is closed unsaid."""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/chat/completions") and b"file:///" in await request.read():
            response = web.json_response({"error": {"message": "no"}}, status=500)
            await response.prepare(request)
            await response.write_eof()
            self.doomed = request.transport
            return response
        if request.transport is getattr(self, "doomed", None) and request.transport is not None:
            request.transport.close()  # whoever uses that connection once more loses the request
        return await super().handle(request)


def test_a_connection_that_ends_after_an_error_is_not_used_again(trained: str) -> None:
    with serving(ClosesAfterError(trained).app()) as url:
        report = run_checks(Target(url), Level.FULL, only=["images-bad", "needles-8"])
    assert report.result("images-bad").status is Status.WARN
    assert report.result("needles-8").status is Status.PASS
