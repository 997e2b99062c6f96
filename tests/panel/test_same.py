"""300 random states: the served page and the exported site say what `k3 recipe` and `k3 plan` say, byte for byte."""

import random
import shutil
from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from k3stack.panel.about import CONCURRENCIES, CONTEXTS
from k3stack.panel.export import export
from k3stack.panel.rows import selection
from k3stack.panel.walk import Coverage, beginning, reachable
from k3stack.recipe.choice import Choice
from k3stack.recipe.render import Form
from tests.panel.browser import CHROMIUM, WHY_NOT, Tab, serving
from tests.panel.states import clicked
from tests.panel.test_answer import against_the_command_line, json_of

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not CHROMIUM, reason=WHY_NOT)]

STATES = 300
FEW = 60
HELD = Coverage(("h200", "mi355x"))


@lru_cache(maxsize=1)
def held() -> tuple[Choice, ...]:
    """What the tests' site holds: the choices nearest to its beginning, and as many of the others, to save time."""
    choices = reachable(beginning(HELD), HELD)
    near, far = choices[:FEW], choices[FEW:]
    return (*near, *random.Random(1).sample(far, FEW))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "site"
    with mock.patch("k3stack.panel.export.reachable", lambda begin, coverage, run: list(held())):
        written = export(folder, HELD.hardware)
    assert written.states == 2 * FEW and written.files < 40
    return folder


def asked(choice: Choice, form: Form) -> dict[str, Any]:
    work = choice.workload
    return {
        "selection": selection(choice),
        "context": work.context,
        "concurrency": work.concurrency,
        "form": form.value,
    }


def test_the_served_page(browser: Any) -> None:
    """What the page itself shows and copies, state by state, against the command line."""
    with serving() as address:
        tab = Tab(browser, address)
        for seed in range(STATES):
            choice, form = clicked(1_000 + seed), list(Form)[seed % len(Form)]
            link = asked(choice, form)
            hash_ = "#{selection}&context={context}&concurrency={concurrency}&form={form}".format(**link)
            tab.page.evaluate("hash => { location.hash = hash }", hash_)
            want = json_of(choice, form)
            tab.until(SHOWN.replace("LINK", hash_).replace("COMMAND", want["command"].replace("'", "\\'")))
            shown = tab.page.evaluate("link => K3.source_of.ask(link)", link)
            assert shown == want
            lines = want["written"]["lines"] if want["written"] else []
            assert tab.command() == "\n".join("".join(text for text, _ in line) for line in lines)
            against_the_command_line(shown)
        tab.close()


SHOWN = "location.hash === 'LINK' && document.getElementById('same').textContent.endsWith('COMMAND')"


def test_the_exported_site_with_the_network_off(browser: Any, site: Path) -> None:
    choices = held()
    here = {selection(choice) for choice in choices}
    dice = random.Random(300)
    tab = Tab(browser, f"{site.as_uri()}/index.html", offline=True)
    for number in range(STATES):
        choice = dice.choice(choices).at(dice.choice(CONTEXTS), dice.choice(CONCURRENCIES))
        form = list(Form)[number % len(Form)]
        shown = tab.page.evaluate("link => K3.source_of.ask(link)", asked(choice, form))
        want = json_of(choice, form)
        assert plain(shown, here) == plain(want, here), selection(choice)
        against_the_command_line(shown)
    tab.close()


def plain(shown: dict[str, Any], here: set[str]) -> dict[str, Any]:
    """Without what may differ: the order of a command's reasons, and values that the site does not hold."""
    written = shown["written"]
    if written is not None:
        reasons = written["reasons"]
        lines = [[[text, None if at_ < 0 else reasons[at_]] for text, at_ in line] for line in written["lines"]]
        written = {**written, "lines": lines, "reasons": None}
    rows = [
        {**row, "options": [option if option["to"] in here else _not_here(option) for option in row["options"]]}
        for row in shown["rows"]
    ]
    return {**shown, "written": written, "rows": rows}


def _not_here(option: dict[str, Any]) -> dict[str, Any]:
    """A value that cannot be taken in the site: refused by a rule, or not held."""
    refused = option["refused"]
    own = refused is None or refused["rule"] == "not-in-site"
    return {**option, "to": "", "moves": [], "refused": "not here" if own else refused}


def test_the_site_is_used_like_the_page(browser: Any, site: Path) -> None:
    tab = Tab(browser, f"{site.as_uri()}/index.html", offline=True)
    assert tab.page.locator("#o-hardware-h200").get_attribute("aria-checked") == "true"
    tab.take("engine", "sglang")
    assert "sglang" in tab.command() or "No command" in tab.text("#command")
    tab.take("hardware", "b300")
    assert "This site does not hold it" in tab.text("#note-hardware")
    tab.take("hardware", "mi355x")
    tab.page.locator("#s-context").focus()
    tab.page.keyboard.press("Home")
    tab.until("location.hash.includes('context=8192')")
    assert "8,192" in tab.text("#v-context") and "--context-length 8192" in tab.command()
    assert tab.page.locator("#check-text").is_disabled() and "k3 recipe --from" in tab.text("#check-hint")
    assert not tab.page.locator("#machine").is_visible()
    tab.page.click("#copy")
    tab.until("document.getElementById('copy').textContent === 'Copied'")
    tab.close()


def test_the_site_takes_what_would_fit_at_one_of_its_stops(browser: Any, site: Path) -> None:
    tab = Tab(browser, f"{site.as_uri()}/index.html", offline=True)
    assert "Does not fit" in tab.text("#verdict") and "context 49,152" in tab.text("#limits")
    tab.page.locator(".would .tool").first.click()
    tab.settle()
    assert "context=32768&concurrency=5" in tab.link(), "the site has no 49,152: the stop below it fits too"
    assert "Does not fit" not in tab.text("#verdict") and tab.command()
    assert "196,608 → 32,768" in tab.text("#notices")
    tab.close()


def test_a_file_of_the_site_that_is_gone_is_said(browser: Any, site: Path, tmp_path: Path) -> None:
    shutil.copytree(site, tmp_path / "site")
    next((tmp_path / "site" / "data").glob("mi355x-sglang-*.js")).unlink()
    tab = Tab(browser, f"{(tmp_path / 'site').as_uri()}/index.html", offline=True)
    tab.excused = "ERR_FILE_NOT_FOUND"
    tab.take("engine", "sglang")
    before = tab.link()
    tab.take("hardware", "mi355x")
    assert "could not be read" in tab.text("#notices") and tab.link() == before
    tab.close()


@pytest.mark.parametrize(
    ("link", "says"),
    [
        ("engine=vllm&version=0.29.0&hardware=h200", "0.29.0"),
        ("engine=vllm&version=0.33.0&hardware=b300", "b300"),
        ("engine=../../x&version=1&hardware=<script>", "../../x"),
        ("context=-1&concurrency=9e9&evil=1", "cannot be -1"),
        ("context=100000", "100,000"),
    ],
)
def test_a_bad_link_to_the_site_says_what_changed(browser: Any, site: Path, link: str, says: str) -> None:
    tab = Tab(browser, f"{site.as_uri()}/index.html", f"#{link}", offline=True)
    assert says in tab.text("#notices") and tab.text("#verdict")
    tab.close()
