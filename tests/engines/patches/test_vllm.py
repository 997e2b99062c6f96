"""The patches on real vLLM releases, on the CPU: what each needs, that it is repaired exactly, how it fails."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from k3stack.patches.export import export
from k3stack.patches.knowledge import RELEASES, known_span
from k3stack.patches.registry import all_patches
from tests.engines.venvs import engine_python

pytestmark = pytest.mark.engines

ROOT = Path(__file__).parents[3]
INSIDE = Path(__file__).with_name("inside.py")
QUICK = ("0.28.0", "0.33.0")
CHOSEN = os.environ.get("K3_VLLM_RELEASES", "").split()
TESTED = [release for release in RELEASES if release != "0.27.0" and (not CHOSEN or release in CHOSEN)]
"""0.27.0 differs from 0.27.1 in nothing that a patch touches; its wheel is not installed."""

EVERY = [
    pytest.param(r, marks=[pytest.mark.xdist_group(r), *([] if r in QUICK else [pytest.mark.slow])]) for r in TESTED
]
MODEL = "import vllm.models.kimi_k3.nvidia.model"
DEGREES = ["1", "2", "4", "8", "16"]

newest = pytest.mark.skipif("0.33.0" not in TESTED, reason="K3_VLLM_RELEASES leaves 0.33.0 out")
oldest = pytest.mark.skipif("0.28.0" not in TESTED, reason="K3_VLLM_RELEASES leaves 0.28.0 out")


def clean_environment(**extra: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("K3_", "KIMI_", "VLLM_"))}
    return kept | {"VLLM_LOGGING_LEVEL": "INFO", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "2"} | extra


def in_engine(release: str, code: str, *folders: Path, **extra: str) -> subprocess.CompletedProcess[str]:
    environ = clean_environment(PYTHONPATH=os.pathsep.join(map(str, folders)), **extra)
    command = [str(engine_python("vllm", release)), "-c", code]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=300)


@functools.cache
def seen_inside(release: str) -> dict[str, Any]:
    """What `inside.py` saw: one process per release, because importing vLLM is most of its time."""
    sections = ["situ", "states"]
    if release in QUICK:
        sections += ["pb_wo"] if release == "0.28.0" else ["gate", "faults"]
    done = subprocess.run(
        [str(engine_python("vllm", release)), str(INSIDE), *sections],
        env=clean_environment(PYTHONPATH=str(ROOT / "src")),
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("release", EVERY)
def test_states_are_what_the_tables_say(release: str) -> None:
    seen = seen_inside(release)["states"]
    assert seen["vllm"].startswith(release)
    assert seen["once"] == [True, False, True]
    expected = {str(patch.number): span.state.value for patch in all_patches() if (span := known_span(patch, release))}
    assert seen["states"] == expected, seen["why"]


@pytest.mark.parametrize("release", EVERY)
def test_the_page_has_the_same_matrix(release: str) -> None:
    """docs/patches.md: | release | 1 | 2 | ... |, one row per release."""
    page = (ROOT / "docs" / "patches.md").read_text()
    rows = re.findall(rf"^\| {re.escape(release)} \|(.*)\|$", page, flags=re.MULTILINE)
    assert len(rows) == 1
    cells = [cell.strip().replace("**", "") for cell in rows[0].split("|")]
    assert dict(zip("123456", cells, strict=True)) == seen_inside(release)["states"]["states"]


@newest
def test_unpatched_gate_rows_have_the_wrong_scale() -> None:
    before = seen_inside("0.33.0")["gate"]["before"]
    assert before == {tp: ["g_proj", 12288 // int(tp), 6144 // int(tp), True] for tp in DEGREES}


@newest
def test_patched_gate_rows_are_the_checkpoints() -> None:
    seen = seen_inside("0.33.0")["gate"]
    assert {key.split("/")[0] for key in seen["after"]} == set(DEGREES)
    assert len(seen["after_small"]) == 1 + 2 + 4 + 8
    assert all(wrong == {} for wrong in (seen["after"] | seen["after_small"]).values())
    assert seen["plain_layer_untouched"]
    assert len(seen["undone"]["g_proj"]) == 256


@oldest
def test_unpatched_fp8_pb_wo_does_not_load() -> None:
    seen = seen_inside("0.28.0")["pb_wo"]
    assert "built without block scales" in seen["before"]
    assert seen["undone"] == seen["before"]


@oldest
def test_patched_fp8_pb_wo_is_the_checkpoints() -> None:
    after = seen_inside("0.28.0")["pb_wo"]["after"]
    assert len(after) == 19
    assert all(wrong == {} for wrong in after.values()), after


@oldest
@pytest.mark.parametrize(
    ("part", "proof"),
    [
        ("ModelOptMixedPrecisionConfig.get_quant_method", "built without block scales"),
        ("ModelOptFp8PbWoLinearMethod.process_weights_after_loading", "post-load hook does not run"),
        ("ModelOptFp8PbWoLinearMethod.create_weights", "live_rows"),
        ("ModelOptFp8PbWoLinearMethod.apply", "columns instead of"),
        ("_KimiGDNMergedColumnParallelLinear.weight_loader_v2", "exceeds dimension size"),
        ("quant_utils.get_and_maybe_dequant_weights", "absorbed kv_b_proj is not the checkpoint's"),
    ],
)
def test_the_proof_notices_each_part_that_is_missing(part: str, proof: str) -> None:
    said = seen_inside("0.28.0")["pb_wo"]["parts"]
    (found,) = [text for name, text in said.items() if name.endswith(part)]
    assert proof in found


@oldest
def test_situ_scale_before_and_after() -> None:
    seen = seen_inside("0.28.0")["situ"]
    assert min(seen["before"]) > 0.9
    assert max(seen["after"]) < 1e-6


@newest
def test_situ_scale_is_right_upstream() -> None:
    assert max(seen_inside("0.33.0")["situ"]["before"]) < 1e-6


@newest
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("symbol renamed", "vllm.model_executor.layers.linear has no KimiK3MergedQKVGateLinear"),
        ("signature changed", "no longer takes the parameter 'q_lora_rank'"),
        ("module missing", "cannot be imported"),
        ("exception inside one part", "ZeroDivisionError: in a later part"),
        ("patch without effect", "its proof failed"),
        ("no table of fused projections", "has no packed_modules_mapping"),
    ],
)
def test_faults_end_in_a_state_with_a_reason(fault: str, reason: str) -> None:
    seen = seen_inside("0.33.0")["faults"][fault]
    assert seen["state"] == "cannot-apply"
    assert reason in seen["why"]
    assert seen["engine_as_before"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    export(tmp_path / "patches")
    return tmp_path / "patches"


LOAD_PLUGINS = f"from vllm.plugins import load_general_plugins; load_general_plugins(); {MODEL}"


@newest
def test_vllm_finds_the_entry_point_of_the_folder(folder: Path) -> None:
    (folder / "sitecustomize.py").unlink()
    done = in_engine("0.33.0", LOAD_PLUGINS, folder)
    assert "6=applied" in done.stdout + done.stderr, done.stderr[-2000:]


@newest
def test_an_allow_list_hides_the_entry_point_alone(folder: Path) -> None:
    (folder / "sitecustomize.py").unlink()
    done = in_engine("0.33.0", LOAD_PLUGINS, folder, VLLM_PLUGINS="other")
    assert done.returncode == 0
    assert "Kimi-K3 runtime patch" not in done.stdout + done.stderr


@newest
def test_the_start_file_needs_no_entry_point_and_reaches_spawned_workers(folder: Path, tmp_path: Path) -> None:
    script = tmp_path / "server.py"
    script.write_text(
        "import multiprocessing\n"
        f"def work():\n    {MODEL}\n"
        "    print('states', [o.state.value for o in vllm.__k3_patches__], flush=True)\n"
        "if __name__ == '__main__':\n"
        "    worker = multiprocessing.get_context('spawn').Process(target=work, name='VllmWorker-1')\n"
        "    worker.start(); worker.join(); print(worker.exitcode)\n"
    )
    code = f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')"
    done = in_engine("0.33.0", code, folder, VLLM_PLUGINS="other")
    assert "process=VllmWorker-1" in done.stdout + done.stderr, done.stderr[-2000:]
    assert "states ['applied', 'not-needed', 'not-needed', 'not-needed', 'not-needed', 'applied']" in done.stdout


@newest
def test_strict_mode_stops_a_server_whose_patch_cannot_apply(folder: Path) -> None:
    code = (
        "import vllm.model_executor.layers.linear as linear\n"
        "gate = linear.KimiK3MergedQKVGateLinear\n"
        "original = gate.__init__\n"
        "gate.__init__ = lambda self, *args, **kwargs: original(self, *args, **kwargs)\n"
        f"try:\n    {MODEL}\nexcept Exception:\n    print('went on')\n"
    )
    done = in_engine("0.33.0", code, folder, K3_PATCHES="strict")
    assert done.returncode == 1
    assert "patch 6 (MLA gate block scales) cannot apply" in done.stdout + done.stderr
    assert "K3_PATCHES=strict and a patch cannot apply" in done.stderr
    assert "went on" not in done.stdout


@newest
def test_k3_patches_probe_on_an_engine_elsewhere() -> None:
    python = engine_python("vllm", "0.33.0")
    k3 = Path(sys.executable).with_name("k3")
    command = [str(k3), "patches", "probe", "--python", str(python), "--json"]
    done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    value = json.loads(done.stdout)
    assert value["origin"] == "measured"
    assert {row["number"]: row["state"] for row in value["rows"]}[6] == "applied"
