"""docs/check.md stays true: its table is that of the code, its options exist, its commands and its example run."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from k3stack.cli.main import app
from k3stack.verify import charts
from k3stack.verify.report import CheckReport
from tests.cli.run import k3
from tests.paths import ROOT

PAGE = ROOT / "docs" / "check.md"


def test_the_table_is_that_of_the_code() -> None:
    spec = importlib.util.spec_from_file_location("write_checks", ROOT / "docs" / "write_checks.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert PAGE.read_text() == module.write(), "run docs/write_checks.py"


def test_every_option_exists_and_none_is_missing() -> None:
    help_text = CliRunner().invoke(app, ["check", "--help"]).output
    table = PAGE.read_text().partition("## Options")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(--[a-z-]+)`", table))
    assert named | {"--help", "--level", "--only"} == set(re.findall(r"(--[a-z-]+)", help_text))


def test_the_commands_run(trained: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that take a level are held to one check, since the levels have tests of their own."""
    monkeypatch.chdir(tmp_path)
    lines = re.findall(r"^    (k3 .+)$", PAGE.read_text(), re.MULTILINE)
    assert len(lines) >= 5
    for line in lines:
        words = shlex.split(line.replace("http://127.0.0.1:8000", trained))[1:]
        ran = k3(*words, *([] if "--only" in words else ["--only", "models"]))
        assert ran.code == 0, f"{line}: {ran.err}"


def test_the_example_runs(trained: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"```python\n(.+?)```", PAGE.read_text(), re.DOTALL)
    names: dict[str, object] = {}
    exec(example.replace("http://127.0.0.1:8000", trained).replace("Level.QUICK", 'Level.QUICK, only=["chat"]'), names)
    report = names["report"]
    assert isinstance(report, CheckReport) and report.passed
    assert (tmp_path / "report.html").is_file()


def test_doctests() -> None:
    import doctest

    assert doctest.testmod(charts).failed == 0
