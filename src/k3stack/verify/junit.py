"""The report as JUnit XML, which CI systems show: one test case for each check."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

from k3stack.files import write_text
from k3stack.verify.report import CheckReport, CheckResult, Status
from k3stack.verify.text import figure_text

__all__ = ["junit_text", "write_junit"]

# XML 1.0 has no way to write these, not even escaped; an endpoint may send any of them.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def write_junit(report: CheckReport, path: Path | str) -> None:
    """Write the report as JUnit XML."""
    write_text(Path(path), junit_text(report))


def junit_text(report: CheckReport) -> str:
    """The report as JUnit XML: warnings are passes with output, what is not applicable is skipped."""
    counts = report.counts
    suite = ElementTree.Element(
        "testsuite",
        name=f"k3 check {report.level.value}",
        tests=str(len(report.results)),
        failures=str(counts[Status.FAIL]),
        errors=str(counts[Status.ERROR]),
        skipped=str(counts[Status.NOT_APPLICABLE]),
        time=f"{report.seconds:.3f}",
        timestamp=report.started.partition("+")[0],
        hostname=_clean(report.target.url),
    )
    for result in report.results:
        _case(suite, result)
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _case(suite: ElementTree.Element, result: CheckResult) -> None:
    case = ElementTree.SubElement(suite, "testcase", classname="k3check", name=result.id, time=f"{result.seconds:.3f}")
    summary = _clean(result.summary)
    if result.status is Status.NOT_APPLICABLE:
        ElementTree.SubElement(case, "skipped", message=summary)
    elif result.status in (Status.FAIL, Status.ERROR):
        tag = "failure" if result.status is Status.FAIL else "error"
        ElementTree.SubElement(case, tag, message=summary, type=result.status.value).text = _clean(_explained(result))
    else:
        figures = [f"{one.name}: {figure_text(one)}" for one in result.figures]
        ElementTree.SubElement(case, "system-out").text = _clean("\n".join([f"{result.status}: {summary}", *figures]))


def _explained(result: CheckResult) -> str:
    parts = [result.summary, f"usually means: {result.failure_means}"]
    for one in result.evidence:
        parts += [f"sent: {one.sent}", f"received: {one.received}"]
    return "\n".join(parts)


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("\ufffd", text)
