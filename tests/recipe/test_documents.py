"""The page about recipes runs as it is written, and the page of rules is that of the rules."""

import importlib.util
import re
import shlex
import textwrap
from pathlib import Path
from types import ModuleType

import pytest

from k3stack.hardware.table import gpu
from k3stack.recipe.examine import examine
from tests.cli.run import k3
from tests.paths import ROOT
from tests.test_docs import commands

DOCS = ROOT / "docs"


def writer() -> ModuleType:
    spec = importlib.util.spec_from_file_location("write_rules", DOCS / "write_rules.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_of_rules_is_up_to_date() -> None:
    assert (DOCS / "rules.md").read_text() == writer().write(), "run `python docs/write_rules.py`"


def pair() -> str:
    """The script that the page writes."""
    found = re.search(r"cat > pair.sh <<'END'\n(.*?)\n    END\n", (DOCS / "recipes.md").read_text(), re.DOTALL)
    assert found
    return textwrap.dedent(found[1])


def test_what_the_page_says_of_its_script() -> None:
    seen = examine(pair(), gpu("b300"))
    assert [one.name for one in seen.roles] == ["prefill", "decode"]
    assert {one.rule for one in seen.together} == {
        *("vllm-pair-dcp", "no-router", "same-port", "same-side-channel", "same-gpus")
    }


def test_the_commands_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pair.sh").write_text(pair())
    lines = commands(DOCS / "recipes.md")
    assert len(lines) >= 12
    for line in lines:
        may_be_no = line.endswith("|| true")
        ran = k3(*shlex.split(line.removesuffix("|| true"))[1:])
        assert ran.code == 0 or (may_be_no and ran.code in (1, 2)), f"{line}: {ran.err}"
