"""The documents stay true: their commands run, the picture is that of the code, the README stays short."""

import importlib.util
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from k3stack.launch.knowledge import failures
from tests.cli.run import k3
from tests.paths import ROOT
from tests.verify.broken import FAULTS

DRAW = ROOT / "docs" / "draw_house.py"


SERVERS = {"serve": 8000, "panel": 8090, "guard": 8081}
"""Verbs that run until they are stopped, and where they listen."""

K3 = (sys.executable, "-c", "from k3stack.cli.main import main; main()")

SLOW = ("up", "check", *SERVERS)


def commands(document: Path) -> list[str]:
    """The indented lines of a document that call `k3` with real arguments."""
    found = re.findall(r"^    (k3 .+)$", document.read_text(), re.MULTILINE)
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


def test_the_counts_of_the_readme_are_those_of_the_data() -> None:
    text = (ROOT / "README.md").read_text()
    assert f"its cause out of {len(failures())} |" in text
    assert f" of {len(FAULTS)} planted faults found |" in text


def test_links_between_documents_lead_somewhere() -> None:
    for document in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name}: {target}"


def test_the_commands_of_the_readme_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [line for line in commands(ROOT / "README.md") if line.split()[1] not in SLOW]
    assert len(lines) >= 7
    for line in lines:
        may_be_no = line.endswith("|| true")
        ran = k3(*shlex.split(line.removesuffix("|| true"))[1:])
        assert ran.code == 0 or (may_be_no and ran.code == 1), f"{line}: {ran.err}"


@contextmanager
def serving(words: list[str]) -> Iterator[None]:
    """A verb that serves, until the block ends; it must listen within a minute and stop when it is told to."""
    address = ("127.0.0.1", SERVERS[words[0]])
    with socket.socket() as one:
        assert one.connect_ex(address), f"port {address[1]} is in use"
    server = subprocess.Popen([*K3, *words])
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with socket.socket() as one:
                if not one.connect_ex(address):
                    break
            assert server.poll() is None, words
            time.sleep(0.2)
        yield
    finally:
        server.terminate()
        assert server.wait(60) in (0, -15), words


@pytest.mark.slow
def test_the_commands_of_the_readme_that_serve_or_check_run_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert k3("tiny", "k3-nvfp4", "--scheme", "nvfp4-mixed").code == 0
    lines = [shlex.split(line)[1:] for line in commands(ROOT / "README.md")]
    rest = [words for words in lines if words[0] in SLOW]
    with ExitStack() as stack:
        for words in rest:
            if words[0] in SERVERS:
                stack.enter_context(serving(words))
            else:
                ran = subprocess.run([*K3, *words], capture_output=True, text=True, timeout=600)
                assert ran.returncode == 0, f"{words}: {ran.stdout}{ran.stderr}"
    assert {words[0] for words in rest} == set(SLOW)
