"""docs/reference.md stays true: its options exist, its example runs, its files are there and small."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from k3stack.cli.main import app
from tests.reference.conftest import Served

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reference.md").read_text()


def test_every_option_exists() -> None:
    text = "".join(CliRunner().invoke(app, [verb, "--help"]).output for verb in ("serve", "parity", "tiny", "convert"))
    options = set(re.findall(r"(--[a-z][a-z-]+)", PAGE))
    assert len(options) >= 12
    for option in options - {"--transformers"}:
        assert option in text, option


def test_the_example_runs(served: Served) -> None:
    (example,) = re.findall(r"```python\n(.+?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {}
    exec(example.replace("http://127.0.0.1:8000", served.url), names)
    call = names["answer"].choices[0].message.tool_calls[0]
    assert call.function.name == "get_weather" and "city" in json.loads(call.function.arguments)


def test_every_path_answers(served: Served) -> None:
    listed = re.search(r"There are (.+)", served.http.get("/x").json()["error"]["message"])
    assert listed is not None
    for path in re.findall(r"`(?:GET|POST) (/[a-z0-9/_]+)", PAGE):
        assert path in listed[1], path


def test_the_five_files_are_there_and_no_file_is_long() -> None:
    room = ROOT / "src/k3stack/reference"
    reading = PAGE[PAGE.index("## From a request") :]
    for name in re.findall(r"^\d\. `(.+?)`", reading, re.MULTILINE):
        assert (room / name).is_file(), name
    for path in room.rglob("*.py"):
        assert len(path.read_text().splitlines()) <= 400, path
