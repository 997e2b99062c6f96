"""Our pool arithmetic against SGLang's own functions, run in SGLang's environment.

Set K3_ENGINES to the folder that holds the environment `sglang-0.5.23`. To make it:

    uv venv $K3_ENGINES/sglang-0.5.23 --python 3.11
    uv pip install --python $K3_ENGINES/sglang-0.5.23/bin/python sglang==0.5.23
"""

import json
import os
import subprocess
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from k3stack.plan import KvDtype, Layout, Workload
from k3stack.plan.sglang import PAGE_TOKENS, sglang_pools
from k3stack.plan.stages import stages
from tests.plan.common import K3

pytestmark = pytest.mark.engines

VERSION = "0.5.23"
ENGINES = Path(os.environ.get("K3_ENGINES", Path(__file__).resolve().parents[2] / ".engines"))
PYTHON = ENGINES / f"sglang-{VERSION}" / "bin" / "python"
PROBE = Path(__file__).with_name("plan_sglang_probe.py")

LAYOUTS = [(1, 1, 0), (8, 1, 0), (8, 2, 0), (8, 2, 1), (16, 1, 0), (1, 8, 3)]  # tp, pp, stage
SETTINGS = list(
    product(
        LAYOUTS,
        (12_345_678_901, 33_419_657_083),
        (0.058, 0.372, 0.9, 5.13),
        (3, 4, 5),
        (KvDtype.BF16, KvDtype.FP8),
        ((0, False), (7, True)),
    )
)


@pytest.fixture(scope="module")
def answers() -> list[dict[str, Any]]:
    if not PYTHON.exists():
        pytest.skip(f"no SGLang {VERSION} at {PYTHON}; {(__doc__ or '').strip()}")
    asked = [
        {
            "tp": tp, "pp": pp, "stage": stage, "memory": memory, "ratio": ratio, "slots": slots, "requests": 4096,
            "element_bytes": kv_dtype.size_bytes, "draft": draft, "replay": replay,
        }
        for (tp, pp, stage), memory, ratio, slots, kv_dtype, (draft, replay) in SETTINGS
    ]  # fmt: skip
    done = subprocess.run(
        [PYTHON, PROBE], input=json.dumps(asked), capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    assert len(told) == len(SETTINGS)
    return told


def test_slots_requests_and_tokens_equal_sglangs(answers: list[dict[str, Any]]) -> None:
    """Token counts may differ by one page: SGLang carries gibibytes as floats from pool to pool."""
    for setting, told in zip(SETTINGS, answers, strict=True):
        (tp, pp, stage), memory, ratio, slots, kv_dtype, (draft, replay) = setting
        layout = Layout(tp=tp, pp=pp)
        work = Workload(1_024, 4_096, kv_dtype, speculative_tokens=draft, replay_ssm=replay, state_slots=slots)
        found = stages(len(K3.layers), pp, "sglang")
        pools = sglang_pools(K3, layout, work, found, found[stage])
        assert pools.slots_in(memory, ratio) == told["slots"], setting
        assert pools.requests_in(memory, ratio) == told["requests"], setting
        if told["slots"] and not draft:  # the probe's cell has no draft layers
            assert abs(pools.tokens_in(memory, ratio) - told["tokens"]) <= PAGE_TOKENS, setting
