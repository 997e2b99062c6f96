"""What docs/up.md tells to type is what the verbs take."""

import re
import shlex

import pytest

from tests.cli.run import k3
from tests.paths import ROOT

PAGES = [ROOT / "docs" / "up.md", ROOT / "docs" / "troubleshooting.md"]
LINES = [line for page in PAGES for line in re.findall(r"^    (k3 .+?)(?:  .*)?$", page.read_text(), re.MULTILINE)]


@pytest.mark.parametrize("line", sorted(set(LINES)))
def test_every_option_of_a_documented_command_is_one(line: str) -> None:
    words = shlex.split(line)[1:]
    words = words[: words.index("--")] if "--" in words else words
    assert (helped := k3(words[0], "--help")).code == 0
    for word in words[1:]:
        if word.startswith("--"):
            assert word in helped.out, f"{line}: {word}"


def test_the_options_that_the_text_speaks_of_are_there() -> None:
    text = PAGES[0].read_text()
    told = set(re.findall(r"`(--[a-z-]+)", text))
    helped = k3("up", "--help").out + k3("preflight", "--help").out
    assert told and all(word in helped for word in told)
