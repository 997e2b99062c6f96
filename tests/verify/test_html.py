"""The page: whole, safe with any text, without a network; in a browser without errors or sideways scrolling."""

from __future__ import annotations

import dataclasses
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

from k3stack.verify import CheckReport, Level, Plot, Series, Status, Target, run_checks, write_html
from k3stack.verify.charts import chart
from k3stack.verify.html import html_text
from tests.verify.broken import FAULTS
from tests.verify.fake_k3 import serving
from tests.verify.test_report import report, result

CHROMIUM = shutil.which("chromium")
_VOID = {"meta", "line", "circle", "rect", "polyline", "br", "link", "img"}


class Balance(HTMLParser):
    """Collects what is left open, and attributes that would load something."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [f"{tag} {name}={value}" for name, value in attrs if name in ("src", "srcset", "data")]
        self.loads += [
            f"{tag} {value}" for name, value in attrs if name == "href" and not (value or "").startswith("#")
        ]
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in _VOID:
            assert self.open.pop() == tag


def parsed(text: str) -> Balance:
    page = Balance()
    page.feed(text)
    return page


def test_the_page_is_whole_and_loads_nothing() -> None:
    text = html_text(report(*(result(status.value.replace(" ", "-"), status) for status in Status)))
    page = parsed(text)
    assert page.open == [] and page.loads == []
    assert "@import" not in text and "url(" not in text
    for status in Status:
        assert status.value in text


def test_hostile_text_stays_text() -> None:
    evil = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"
    one = result(evil, Status.FAIL, evil)
    plots = tuple(
        Plot(evil, kind, evil, evil, (Series(evil, ((1.0, 1.0), (2.0, 2.0))),), (evil, evil)) for kind in KINDS
    )
    page = parsed(html_text(report(dataclasses.replace(one, title=evil, plots=plots, proves=evil))))
    assert page.tags.count("script") == 1, "our own"
    assert "img" not in page.tags


KINDS = ("line", "dots", "bars", "grid")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "points",
    [
        (),
        ((1.0, 0.0),),
        ((0.0, 0.0), (1.0, 0.0)),
        ((1.0, float("nan")), (4.0, 1e12), (16.0, 1e-12)),
        tuple((float(number), number % 7.0) for number in range(200)),
    ],
)
def test_a_chart_draws_whatever_was_measured(kind: str, points: tuple[tuple[float, float], ...]) -> None:
    svg = chart(Plot("t", kind, "x", "y", (Series("a", points), Series("b", points)), ("one", "two")))
    assert "nan" not in re.sub(r"<title>.*?</title>", "", svg)
    parsed(svg)


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 400])
def test_in_a_browser(trained: str, tmp_path: Path, scheme: str, width: int) -> None:
    from playwright.sync_api import sync_playwright

    with serving(FAULTS["SwallowsStop"](trained).app()) as url:
        found: CheckReport = run_checks(Target(url), Level.FULL, only=["stop", "recall", "speed", "schema-strict"])
    page = tmp_path / "report.html"
    write_html(found, page)
    said: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
        tab.on("console", lambda message: said.append(message.text))
        tab.on("request", lambda request: said.append(request.url) if not request.url.startswith("file:") else None)
        tab.goto(page.as_uri())
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        tab.click(".strip a.fail")
        assert tab.evaluate("document.querySelector('#stop').open")
        dark = tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(16, 20, 26)"
        assert dark == (scheme == "dark")
        browser.close()
    assert said == []
