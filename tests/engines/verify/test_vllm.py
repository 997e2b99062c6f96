"""`k3 check` on a real vLLM with a random Llama: no K3, but an API, a scheduler and a cache that must pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from k3stack.verify import Level, Status, Target, Weights, run_checks
from tests.engines.guard.vllm_cpu import serving_vllm

pytestmark = pytest.mark.engines

# What does not depend on K3's template, parsers and vision.
MECHANICS = (
    "models", "usage", "prefix-cache", "max-tokens", "overflow", "logprobs", "malformed", "isolation",
    "slow-clients", "injection", "speed",
)  # fmt: skip


def test_the_mechanics_of_a_real_vllm_pass(tmp_path: Path) -> None:
    with (tmp_path / "vllm.log").open("w") as log, serving_vllm(tmp_path / "llama", log) as port:
        report = run_checks(Target(f"http://127.0.0.1:{port}", weights=Weights.RANDOM), Level.FULL)
    found = {one: report.result(one).summary for one in MECHANICS if report.result(one).status is not Status.PASS}
    assert found == {}
    # On a quick machine the longest answer that this small context allows ends before a cancellation can be told.
    cancel = report.result("cancel")
    assert cancel.status is Status.PASS or "by itself" in cancel.summary, cancel.summary
    assert report.counts[Status.ERROR] == 0
    for check_id in ("needles-8", "needles-32", "prefix-fresh"):
        assert report.result(check_id).status is not Status.FAIL, report.result(check_id).summary
    # A Llama has neither K3's reasoning nor its parser, and is found out.
    assert report.result("reasoning").status is Status.FAIL
    assert "vllm" in report.server
