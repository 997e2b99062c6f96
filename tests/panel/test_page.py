"""The page's files: words in both languages, nothing inline, nothing from elsewhere, and not too heavy."""

import json
import re
import string

import pytest

from k3stack.engines.rules import rules
from k3stack.panel.figures import _series
from k3stack.panel.files import LANGUAGES, POLICY, SCRIPTS, call, page, strings
from k3stack.panel.sources import address
from tests.paths import SHARED

ALL = (*SCRIPTS, "served.js", "exported.js")
WORDS = {language: json.loads(page(f"{language}.json")) for language in LANGUAGES}


def places(text: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(text) if name}


def test_both_languages_have_the_same_words() -> None:
    assert WORDS["en"].keys() == WORDS["zh"].keys()
    for key, text in WORDS["en"].items():
        assert text.strip() and WORDS["zh"][key].strip(), key
        assert places(text) == places(WORDS["zh"][key]), key


def test_chinese_is_chinese() -> None:
    """Words that are the same in both languages are names."""
    same = {key for key, text in WORDS["en"].items() if WORDS["zh"][key] == text}
    names = re.compile(r"[\w ./{}+-]{1,12}|vllm serve .*")
    assert all(names.fullmatch(WORDS["en"][key]) for key in same), same


def test_every_word_that_is_asked_for_is_there() -> None:
    asked = set(re.findall(r'data-t="([^"]+)"', page("index.html")))
    for name in ALL:
        asked |= set(re.findall(r'\bt\("([^"$]+)"', page(name)))
    assert asked <= WORDS["en"].keys(), asked - WORDS["en"].keys()
    assert len(asked) > 60


def test_no_words_stand_in_the_scripts() -> None:
    """Text reaches the page through the language files: a script holds no sentence of its own."""
    seen = 0
    for name in ALL:
        code = re.sub(r"(?m)^\s*//[^\n]*$|/\*.*?\*/", "", page(name), flags=re.DOTALL)
        for text in re.findall(r'"((?:[^"\\\n]|\\.)*)"', code):
            assert not re.fullmatch(r"[A-Z][a-z]+( [a-z]+)+.*", text), (name, text)
            seen += 1
    assert seen > 200


def test_nothing_reads_markup_or_runs_text() -> None:
    forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|setAttribute\(\"on"
    for name in ALL:
        assert not re.search(forbidden, page(name)), name
    assert not re.search(r"\son\w+=|style=|<style|<script(?![^>]*src=)", page("index.html"))


def test_nothing_comes_from_elsewhere() -> None:
    for name in ("index.html", "panel.css", *ALL):
        assert not re.search(r"(?:src|href|url|import|fetch)[=(\s]+[\"']?(?:https?:)?//", page(name)), name
    assert "unsafe" not in POLICY


def test_the_page_is_light() -> None:
    files = ["index.html", "panel.css", "icon.svg", *SCRIPTS, "exported.js", "served.js"]
    size = sum(len(page(name).encode()) for name in files) + sum(len(strings(one).encode()) for one in LANGUAGES)
    assert size < 300_000, size


def test_a_call_cannot_end_its_line() -> None:
    made = call("about", {"text": "</script>\u2028\u2029"})
    assert "\u2028" not in made and "\u2029" not in made
    assert json.loads(made[len("K3.about(") : -3])["text"] == "</script>\u2028\u2029"


def test_most_sources_of_rules_can_be_read() -> None:
    sources = {rule.source for engine in ("vllm", "sglang") for rule in rules(engine)}
    linked = {source for source in sources if address(source)}
    assert all(address(source).startswith("https://") for source in linked)
    assert len(linked) > 0.8 * len(sources), sources - linked


@pytest.mark.parametrize(
    ("source", "url"),
    [
        ("model card", "https://huggingface.co/nvidia/Kimi-K3-NVFP4"),
        (
            "vLLM 0.33.0: vllm/config/model.py",
            "https://github.com/vllm-project/vllm/blob/v0.33.0/vllm/config/model.py",
        ),
        (
            "SGLang 0.5.23: sglang/srt/server_args.py X",
            "https://github.com/sgl-project/sglang/blob/v0.5.23/python/sglang/srt/server_args.py",
        ),
        (
            "github.com/vllm-project/vllm/issues/57716; vLLM 0.33.0: vllm/x.py",
            "https://github.com/vllm-project/vllm/issues/57716",
        ),
        ("sglang#32541, vllm#51975", "https://github.com/sgl-project/sglang/issues/32541"),
        ("k3stack", ""),
        ("javascript:alert(1)", ""),
    ],
)
def test_addresses(source: str, url: str) -> None:
    assert address(source) == url


def test_published_speeds_have_sources() -> None:
    for one in _series():
        assert one.source and one.runs, one
        assert one.url.startswith("https://") or not one.url


@pytest.mark.skipif(not SHARED.is_dir(), reason="the collected measurements are not beside this checkout (../shared)")
def test_published_speeds_are_as_collected() -> None:
    collected = json.loads((SHARED / "data" / "perf_points.json").read_text())
    for one in _series():
        known = [row["metrics"] for row in collected if (row["source"], row["url"]) == (one.source, one.url)]
        for run in one.runs:
            assert any(run.metrics.items() <= metrics.items() for metrics in known), (one.setup, run)
