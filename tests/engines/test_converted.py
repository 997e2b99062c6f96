"""What we convert loads in the engines: vLLM's real K3 class takes every tensor, SGLang's config parser every name."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from k3stack.checkpoint.convert.run import Conversion
from k3stack.checkpoint.tiny import TinyShape, write_tiny
from k3stack.spec import Scheme
from tests.checkpoint.edit import spread_scales
from tests.engines.venvs import engine_python

pytestmark = pytest.mark.engines
SCRIPTS = Path(__file__).parent / "scripts"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("converted") / "mxfp4"
    write_tiny(folder, Scheme.MXFP4, shape=TinyShape(experts=4))
    spread_scales(folder, seed=4)
    return folder


def run(python: Path, script: str, *arguments: str) -> Any:
    environment = {**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_PLUGINS": "", "HF_HUB_OFFLINE": "1"}
    ran = subprocess.run(
        [python, SCRIPTS / script, *arguments], env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    return json.loads(ran.stdout.splitlines()[-1])


@pytest.mark.parametrize("scheme", [Scheme.NVFP4_MIXED, Scheme.NVFP4_EXPERTS])
def test_vllm_loads_every_tensor(source: Path, tmp_path: Path, scheme: Scheme) -> None:
    target = tmp_path / "out"
    Conversion(source, target, scheme).run()
    found = run(engine_python("vllm", "0.33.0"), "load_in_vllm.py", str(target), str(tmp_path / "rendezvous"))
    assert found["class"] == "KimiK3ForConditionalGeneration"
    assert found["parameters"] > 140
    assert found["missing"] == found["unexpected"] == found["untouched"] == []
    assert found["expert_arrived"]


def test_sglang_resolves_every_module(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "out"
    Conversion(source, target, Scheme.NVFP4_MIXED).run()
    expected = {
        "model.layers.1.mlp.experts": "NVFP4",
        "language_model.model.layers.2.block_sparse_moe.experts": "NVFP4",
        "model.layers.0.self_attn.fused_qkvg_proj": "FP8_PB_WO",
        "model.layers.3.self_attn.fused_qkv_a_proj_with_mqa": "FP8_PB_WO",
        "model.layers.3.self_attn.kv_b_proj": "FP8_PB_WO",
        "model.layers.0.mlp.gate_up_proj": None,
        "model.layers.1.mlp.shared_experts.gate_up_proj": None,
        "lm_head": None,
    }
    found = run(engine_python("sglang", "0.5.23"), "parse_in_sglang.py", str(target), *expected)
    assert found["method"] == "modelopt_mixed"
    assert found["config.json"] == found["hf_quant_config.json"] == expected
