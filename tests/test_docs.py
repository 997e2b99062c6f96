"""The documents stay true: their commands run, the picture is that of the code, the README stays short."""

import importlib.util
import re
import shlex
from pathlib import Path

import pytest

from tests.cli.run import k3
from tests.paths import ROOT

DRAW = ROOT / "docs" / "draw_house.py"


def commands(document: Path) -> list[str]:
    """The indented lines of a document that call `k3` with real arguments, and end by themselves."""
    found = re.findall(r"^    (k3 (?!guard ).+)$", document.read_text(), re.MULTILINE)
    return [line for line in found if not re.search(r"\b[A-Z]{2,}\b(?<!\bK3)", line.partition("--json")[0])]


def test_the_picture_is_drawn_from_the_code_as_it_is() -> None:
    spec = importlib.util.spec_from_file_location("draw_house", DRAW)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (ROOT / "docs" / "pictures" / "house.svg").read_text() == module.draw(), "run `make docs`"


def test_every_room_is_in_the_architecture_page() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    for room in (ROOT / "src" / "k3stack").iterdir():
        if (room / "__init__.py").is_file():
            assert f"| `{room.name}` |" in page, room.name


def test_the_readme_is_short_enough_to_be_read() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= 900


def test_links_between_documents_lead_somewhere() -> None:
    for document in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name}: {target}"


def test_the_commands_of_the_readme_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = commands(ROOT / "README.md")
    assert len(lines) >= 7
    for line in lines:
        may_be_no = line.endswith("|| true")
        ran = k3(*shlex.split(line.removesuffix("|| true"))[1:])
        assert ran.code == 0 or (may_be_no and ran.code == 1), f"{line}: {ran.err}"
