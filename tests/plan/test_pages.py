"""docs/plan.md and docs/long-context.md: their commands run, their numbers are those of the code."""

import shlex
from pathlib import Path

import pytest

from k3stack.plan import Layout, Workload
from k3stack.plan.effects import effects
from k3stack.plan.reserves import fit
from tests.cli.run import k3
from tests.paths import ROOT
from tests.plan.common import plan_for
from tests.plan.test_logs import VLLM_LOG
from tests.test_docs import commands

DOCS = ROOT / "docs"


@pytest.mark.parametrize("page", ["plan.md", "long-context.md"])
def test_commands_run(page: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    usage = (
        "98.00 GiB for consumed memory (weights + non-torch), 1.00 GiB for peak activation, and 1.00 GiB for CUDAGraph"
    )
    (tmp_path / "server.log").write_text(VLLM_LOG + f"Actual usage is {usage} memory.\n")
    lines = commands(DOCS / page)
    assert lines
    for line in lines:
        ran = k3(*shlex.split(line)[1:])
        assert ran.code == 0, f"{line}: {ran.err}"


def test_the_table_of_switches_is_current() -> None:
    page = (DOCS / "long-context.md").read_text()
    plan = plan_for("b300", Layout(tp=8), Workload(1_048_576, 8))
    found = effects(plan)
    rows = [("as planned", plan.capacity), *((effect.switch, effect.after) for effect in found)]
    for switch, capacity in rows:
        assert capacity is not None
        row = f"| {switch} | {capacity.kv_tokens:,} | {capacity.longest_context:,} | {capacity.full_requests} |"
        assert row in page
    chunks = {effect.switch: effect.after for effect in found}["chunks of 32,768 tokens instead of 8,192"]
    assert chunks is not None
    lost = plan.capacity.kv_tokens - chunks.kv_tokens
    assert f"{round(lost, -3):,} tokens of cache" in page
    assert f"{fit().token_bytes / 2**20:.2f} MiB per token" in page
