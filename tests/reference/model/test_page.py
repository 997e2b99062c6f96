"""The page about the model: its code runs, and the files it names are there and short."""

import re
from pathlib import Path

import pytest

from tests.cli.run import k3
from tests.paths import ROOT

PAGE = (ROOT / "docs" / "reference-model.md").read_text()
MODEL = ROOT / "src" / "k3stack" / "reference" / "model"


def test_the_files_it_names_are_there_and_short() -> None:
    for name in re.findall(r"`(src/[\w/]+\.py)`", PAGE):
        assert (ROOT / name).is_file()
    for name in re.findall(r"`(\w+\.py)`", PAGE):
        assert (MODEL / name).is_file()
    assert all(len(path.read_text().splitlines()) <= 400 for path in MODEL.glob("*.py"))


@pytest.mark.slow
def test_its_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    (command,) = re.findall(r"^    k3 (.*)$", PAGE, re.MULTILINE)
    assert k3(*command.split()).code == 0
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(code, "reference-model.md", "exec"), {})
    assert 0 <= int(capsys.readouterr().out) < 512
