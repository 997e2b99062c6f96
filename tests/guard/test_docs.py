"""docs/guard.md stays true: its options exist, its example runs, its words are the code's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import openai
from typer.testing import CliRunner

from k3stack.cli.main import app
from k3stack.guard.metrics import Metrics
from tests.guard.scripted import ScriptedUpstream
from tests.guard.test_proxy import ask

PAGE = (Path(__file__).parents[2] / "docs/guard.md").read_text()


def test_every_option_exists() -> None:
    help_text = CliRunner().invoke(app, ["guard", "--help"]).output
    options = set(re.findall(r"`(--[a-z-]+)", PAGE)) - {"--tool-call-parser", "--reasoning-parser"}
    for line in re.findall(r"^    k3 guard (.+)$", PAGE, re.MULTILINE):
        options |= set(re.findall(r"--[a-z-]+", line))
    assert len(options) >= 12
    for option in options:
        assert option in help_text, option


def test_the_example_runs(upstream: ScriptedUpstream) -> None:
    (example,) = re.findall(r"```python\n(.+?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {}
    exec(example.replace("127.0.0.1:8000", f"127.0.0.1:{upstream.port}"), names)
    client = names["client"]
    assert isinstance(client, openai.OpenAI)
    with client:
        upstream.attempts.clear()
        assert ask(client, "bad_schema", True).verdict == "resampled"


def test_every_metric_exists() -> None:
    text = Metrics().text().decode()
    for name in set(re.findall(r"k3_guard_[a-z_]+", PAGE)):
        assert name in text, name
