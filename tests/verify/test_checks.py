"""A correct endpoint passes every check; one that is broken in one way fails the check that is for it."""

from __future__ import annotations

import pytest

from k3stack.verify import CheckReport, Level, Status, Target, run_checks
from k3stack.verify.registry import all_checks
from tests.verify.broken import FAULTS, FIRST, MORE, UNSEEN
from tests.verify.fake_k3 import FakeK3, serving
from tests.verify.proxy import Body, Proxy

# These wait for what does not come, which takes seconds.
PATIENT = ("GeneratesOn", "FewWorkers", "BlocksOnMalformed")
WAITING = ("slow-clients", "soak")
# Of the faults planted later one for each check that was written for them, where that takes a moment only.
SAMPLE = (
    "WrongContentType", "NoBlankLines", "MillisecondsCreated", "AnswersAsK2", "BuffersStreams", "EscapesHtml",
    "MixesChoices", "NeedsNoKey", "CallsInParallelAnyway", "NothingForNoArguments", "RefusesNullContent",
    "KeepsSixteenTools", "StripsSchemas", "DropsSystem", "CachesByLastMessage", "LosesBlockEdges",
    "MixesSharedPrefixes", "CachesSampled", "IgnoresTemperature", "LeaksThinkTags", "GrammarSpoilsNeighbours",
    "IgnoresTopP", "ReasoningBeyondCompletion", "CutReasoningAsContent", "CutCallSaysDone", "DropsNulls",
    "DropsDeveloper", "StopTailLeaks", "LosesResultParts", "CountsOneChoice", "DropsDefinitions", "ForgetsExtension",
    "CutsDottedNames", "LosesTextBeforeCalls", "SometimesNoFinish", "SometimesThinksAloud", "EightKilobytes",
)  # fmt: skip


class SilentUsage(Proxy):
    """No fault, but how vLLM answers by itself: usage does not tell what was cached."""

    def event(self, event: Body, seen: int, body: Body) -> list[Body]:
        (event.get("usage") or {}).pop("prompt_tokens_details", None)
        return [event]


def found(report: CheckReport) -> dict[str, str]:
    return {one.id: one.summary for one in report.results if one.status not in (Status.PASS, Status.NOT_APPLICABLE)}


def test_a_correct_endpoint_passes_every_check(trained: str) -> None:
    ids = [one.id for one in all_checks() if one.id not in WAITING]
    report = run_checks(Target(trained), Level.FULL, only=ids)
    assert found(report) == {} and report.passed
    assert [one.id for one in report.results if one.status is not Status.PASS] == ["key"], "no key is given"


def test_a_cache_that_usage_does_not_tell_of_is_seen_in_the_metrics() -> None:
    fake = FakeK3(prefill_s=0.0)
    with serving(fake.app()) as upstream, serving(SilentUsage(upstream).app()) as url:
        told = run_checks(Target(url), Level.FULL, only=["prefix-cache"]).result("prefix-cache")
        fake.cache = False
        off = run_checks(Target(url), Level.FULL, only=["prefix-cache"]).result("prefix-cache")
    assert told.status is Status.PASS and "by /metrics" in told.summary
    assert off.status is Status.WARN and "no cached tokens by /metrics" in off.summary


def test_random_weights_pass_on_mechanics_and_claim_nothing_else(untrained: str) -> None:
    senseless = ("recall", "tool-single", "schema-accuracy", "markers")
    mechanical = ("stream", "usage", "tool-required", "schema-strict", "needles-8", "prefix-fresh", "stop", "logprobs")
    report = run_checks(Target(untrained), Level.FULL, only=senseless + mechanical)
    assert found(report) == {} and report.passed
    assert {report.result(one).status for one in senseless} == {Status.NOT_APPLICABLE}
    assert {report.result(one).status for one in mechanical} == {Status.PASS}


@pytest.mark.parametrize("name", [name for name in FIRST if name not in PATIENT])
def test_a_fault_is_found_by_its_check(trained: str, name: str) -> None:
    fault = FAULTS[name]
    with serving(fault(trained).app()) as url:
        report = run_checks(Target(url), Level.FULL, only=fault.expected)
    assert set(found(report)) == set(fault.expected)
    assert all(report.result(one).status is Status.FAIL for one in fault.expected)
    assert all(report.result(one).evidence for one in fault.expected), "a failure shows what was sent and received"


def beside_others(upstream: str, name: str, only: tuple[str, ...] = ()) -> CheckReport:
    """The report about a fault; the one that needs no key is given one."""
    target_key = "SOME_KEY" if name == "NeedsNoKey" else None
    with serving(FAULTS[name](upstream).app()) as url, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOME_KEY", "secret-key")
        return run_checks(Target(url, key_variable=target_key), Level.FULL, only=only)


def assert_found(report: CheckReport, name: str) -> None:
    fault = FAULTS[name]
    wanted = Status.WARN if fault.only_warned else Status.FAIL
    assert {report.result(one).status for one in fault.expected} == {wanted}, found(report)


@pytest.mark.parametrize(
    "name", [name if name in SAMPLE else pytest.param(name, marks=pytest.mark.slow) for name in (*MORE, *UNSEEN)]
)
def test_a_fault_planted_later_is_found_by_its_check(trained: str, name: str) -> None:
    assert_found(beside_others(trained, name, FAULTS[name].beside + FAULTS[name].expected), name)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(FIRST))
def test_the_full_level_finds_the_first_faults(trained: str, name: str) -> None:
    """`benchmarks/check.py` asks the full level about all of them."""
    report = beside_others(trained, name)
    assert_found(report, name)
    failed = [one.id for one in report.results if one.status is Status.FAIL]
    assert len(failed) <= 15, "one fault must not make everything fail"


@pytest.mark.slow
@pytest.mark.parametrize("quarter", range(4))
def test_a_correct_endpoint_passes_twenty_times(trained: str, quarter: int) -> None:
    """A quarter each, so that two workers share the minutes."""
    for _ in range(5):
        report = run_checks(Target(trained), Level.FULL)
        assert found(report) == {} and report.passed


@pytest.mark.slow
def test_random_weights_pass_the_full_level(untrained: str) -> None:
    report = run_checks(Target(untrained), Level.FULL)
    assert found(report) == {} and report.passed


@pytest.mark.slow
def test_a_soak_counts_every_kind_of_request(trained: str) -> None:
    report = run_checks(Target(trained, soak_s=5), Level.SOAK, only=["soak"])
    result = report.result("soak")
    assert result.status is Status.PASS
    assert {one.name for one in result.figures} >= {"requests", "of them: abandon", "of them: recall"}
    assert result.plots[0].series[0].points


@pytest.mark.parametrize("name", ["MixesStates", "DropsToken", "StalePrefix", "SwallowsStop"])
def test_faults_are_found_with_random_weights_too(untrained: str, name: str) -> None:
    wanted = {
        "MixesStates": "needles-8",
        "DropsToken": "stream",
        "StalePrefix": "prefix-fresh",
        "SwallowsStop": "stop",
    }[name]
    with serving(FAULTS[name](untrained).app()) as url:
        report = run_checks(Target(url), Level.FULL, only=[wanted])
    assert report.result(wanted).status is Status.FAIL


def test_what_random_weights_cannot_show_is_not_taken_for_a_pass(untrained: str) -> None:
    with serving(FAULTS["IgnoresToolChoice"](untrained).app()) as url:
        report = run_checks(Target(url), Level.FULL, only=["tool-required", "tool-none"])
    assert report.counts == {Status.NOT_APPLICABLE: 2}


def test_every_check_says_what_it_is_for() -> None:
    for one in all_checks():
        assert one.title and one.proves.endswith(".") and one.failure_means.endswith("."), one.id
        assert one.judge.__doc__, one.id
