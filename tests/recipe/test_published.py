"""What was published can be asked for, and the page says why ours is another, for every setting that is."""

import re
from functools import lru_cache

import pytest

from tests.paths import ROOT
from tests.recipe.published import PUBLISHED, Difference, Published, differences

PAGE = (ROOT / "docs" / "recipes.md").read_text()


@lru_cache
def table() -> dict[str, set[str]]:
    """Settings of the page's table, for each engine."""
    part = PAGE.split("## How our commands differ from published ones")[1].split("\n## ")[0]
    found: dict[str, set[str]] = {"vllm": set(), "sglang": set()}
    for row in re.findall(r"^\| (`.*`) \| (\w+) \| \S", part, re.MULTILINE):
        for engine in found if row[1] == "both" else (row[1],):
            found[engine] |= set(re.findall(r"`([^`]+)`", row[0]))
    return found


@lru_cache
def compared() -> tuple[tuple[Published, tuple[Difference, ...]], ...]:
    return tuple((one, tuple(differences(one))) for one in PUBLISHED)


def test_every_published_selection_can_be_asked_for_and_fits() -> None:
    assert len(PUBLISHED) == 26 and f"{len(PUBLISHED)} commands" in PAGE
    for one in PUBLISHED:
        found = one.ask()
        assert found.yes, (one.name, found.reason)


@pytest.mark.parametrize("number", range(len(PUBLISHED)))
def test_every_difference_has_its_reason_on_the_page(number: int) -> None:
    published, found = compared()[number]
    unexplained = [difference for difference in found if difference.setting not in table()[published.engine]]
    assert not unexplained


def test_the_page_explains_nothing_that_is_not_there() -> None:
    for engine, settings in table().items():
        there = {difference.setting for one, found in compared() for difference in found if one.engine == engine}
        others = {difference.setting for one, found in compared() for difference in found}
        assert settings - there <= others, (engine, settings - there)
        assert settings <= others


def test_the_layout_is_never_among_the_differences() -> None:
    shape = set(
        """tensor-parallel-size pipeline-parallel-size data-parallel-size enable-expert-parallel tp-size pp-size ep-size
        decode-context-parallel-size dcp-size nnodes quantization moe-runner-backend speculative-config
        speculative-algorithm kv-transfer-config disaggregation-mode""".split()
    )
    for one, found in compared():
        assert not shape & {difference.setting for difference in found}, one.name
