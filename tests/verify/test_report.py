"""The values of a report: verdict, JSON, levels, and what a target refuses."""

import dataclasses
import json
from pathlib import Path

import pytest

from k3stack.errors import UnavailableError, UsageError
from k3stack.values import dump, load
from k3stack.verify import CheckReport, CheckResult, Exchange, Figure, Level, Plot, Series, Status, Target, Weights
from k3stack.verify.junit import junit_text
from k3stack.verify.run import run_checks


def result(check_id: str, status: Status, summary: str = "found") -> CheckResult:
    plot = Plot("a plot", "line", "x", "y", (Series("one", ((0.0, 1.0), (1.0, 2.0))),))
    return CheckResult(
        check_id,
        f"title of {check_id}",
        "proves",
        "means",
        status,
        summary,
        (Exchange("sent", "received"),),
        (Figure("time", 1.5, "s"),),
        (plot,),
        0.25,
    )


def report(*results: CheckResult) -> CheckReport:
    target = Target("http://127.0.0.1:8000")
    return CheckReport(
        target, "k3", Weights.TRAINED, "vllm 0.33.0", Level.QUICK, (), "2026-11-29T20:00:00+00:00", 3.0, "0.1.0", 1,
        ("note",), results,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("statuses", "passed"),
    [
        ((Status.PASS, Status.WARN, Status.NOT_APPLICABLE), True),
        ((Status.PASS, Status.FAIL), False),
        ((Status.PASS, Status.ERROR), False),
        ((Status.NOT_APPLICABLE,), False),
        ((), False),
    ],
)
def test_it_passes_when_nothing_failed_and_something_was_judged(statuses: tuple[Status, ...], passed: bool) -> None:
    assert report(*(result(str(number), status) for number, status in enumerate(statuses))).passed is passed


def test_a_report_survives_json() -> None:
    one = report(result("a", Status.FAIL), result("b", Status.PASS))
    assert load(CheckReport, json.loads(json.dumps(dump(one)))) == one


def test_each_level_holds_the_one_before() -> None:
    assert Level.SOAK.includes(Level.QUICK) and Level.FULL.includes(Level.FULL)
    assert not Level.QUICK.includes(Level.FULL)


@pytest.mark.parametrize("url", ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"])
def test_an_address_may_end_in_v1_or_not(url: str) -> None:
    assert Target(url).base == "http://h:1"


@pytest.mark.parametrize(
    "change", [{"url": "localhost:8000"}, {"longest": 0}, {"silence_s": -1.0}, {"check_s": 0.0}, {"soak_s": 0.0}]
)
def test_a_target_that_cannot_work_is_refused_by_name(change: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        dataclasses.replace(Target("http://h"), **change)  # type: ignore[arg-type]


def test_nobody_there_is_a_clear_error() -> None:
    with pytest.raises(UnavailableError, match="cannot be reached"):
        run_checks(Target("http://127.0.0.1:9"), Level.QUICK)


def test_an_unknown_check_is_named() -> None:
    with pytest.raises(UsageError, match="nonsense"):
        run_checks(Target("http://127.0.0.1:9"), Level.QUICK, only=["nonsense"])


def test_junit_counts_and_survives_any_text(tmp_path: Path) -> None:
    from xml.etree import ElementTree

    text = junit_text(
        report(
            result("a", Status.FAIL, "bad \x00\x1b[31m & <tag> \ud800"),
            result("b", Status.PASS),
            result("c", Status.NOT_APPLICABLE),
            result("d", Status.ERROR),
        )
    )
    suite = ElementTree.fromstring(text.encode())[0]
    assert suite.attrib["tests"] == "4"
    assert [suite.attrib[name] for name in ("failures", "errors", "skipped")] == ["1", "1", "1"]
    assert [case.attrib["name"] for case in suite] == ["a", "b", "c", "d"]
    assert "bad" in suite[0][0].attrib["message"]
