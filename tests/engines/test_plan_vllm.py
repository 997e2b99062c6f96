"""Our block arithmetic against vLLM's own functions, run in vLLM's environment.

Set K3_ENGINES to the folder that holds the environment `vllm-0.33.0`. To make it:

    uv venv $K3_ENGINES/vllm-0.33.0 --python 3.11
    uv pip install --python $K3_ENGINES/vllm-0.33.0/bin/python vllm==0.33.0 "cuda-python>=13,<14"
"""

import json
import os
import subprocess
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from k3stack.plan import KvDtype, Layout, Workload
from k3stack.plan.releases import release
from tests.plan.common import blocks_for

pytestmark = pytest.mark.engines

VERSION = "0.33.0"
ENGINES = Path(os.environ.get("K3_ENGINES", Path(__file__).resolve().parents[2] / ".engines"))
PYTHON = ENGINES / f"vllm-{VERSION}" / "bin" / "python"
PROBE = Path(__file__).with_name("plan_vllm_probe.py")
NAMES = {KvDtype.BF16: "auto", KvDtype.FP8: "fp8", KvDtype.FP8_DS_MLA: "fp8_ds_mla"}

LAYOUTS = [
    Layout(tp=tp, pp=pp)
    for tp, pp in ((1, 1), (2, 1), (2, 2), (3, 1), (4, 2), (8, 1), (8, 2), (8, 4), (16, 1), (32, 1))
]
LAYOUTS += [Layout(tp=8, dcp=8), Layout(tp=16, dcp=4, pp=2)]
WORKLOADS = [
    Workload(context, 1, kv_dtype, prefix_caching, speculative_tokens=draft, replay_ssm=replay)
    for context, kv_dtype, prefix_caching, (draft, replay) in product(
        (2_048, 196_608, 1_048_576), KvDtype, (False, True), ((0, False), (7, False), (7, True))
    )
]
MEMORY = 24_987_654_321


@pytest.fixture(scope="module")
def answers() -> list[tuple[Layout, Workload, dict[str, Any]]]:
    if not PYTHON.exists():
        pytest.skip(f"no vLLM {VERSION} at {PYTHON}; {(__doc__ or '').strip()}")
    cases = list(product(LAYOUTS, WORKLOADS))
    asked = [
        {
            "tp": layout.tp, "pp": layout.pp, "dcp": layout.dcp, "context": work.context, "memory": MEMORY,
            "cache_dtype": NAMES[work.kv_dtype], "prefix_caching": work.prefix_caching,
            "draft": work.speculative_tokens, "replay": work.replay_ssm,
        }
        for layout, work in cases
    ]  # fmt: skip
    done = subprocess.run(
        [PYTHON, PROBE], input=json.dumps(asked), capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert len(told) == len(cases)
    return [(layout, work, answer) for (layout, work), answer in zip(cases, told, strict=True)]


def test_every_number_equals_vllms(answers: list[tuple[Layout, Workload, dict[str, Any]]]) -> None:
    for layout, work, told in answers:
        blocks = blocks_for(layout, work, release("vllm", VERSION))
        count = blocks.count((MEMORY,) * layout.pp)
        ours = {
            "block_tokens": blocks.tokens,
            "page_bytes": blocks.page_bytes,
            "pages": list(blocks.pages),
            "blocks": count,
            "printed_tokens": blocks.printed_tokens(count, work.context),
            "concurrency": blocks.concurrency(count, work.context),
        }
        assert ours == told, (layout, work)
