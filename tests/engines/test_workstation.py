"""What we offer on RTX PRO 6000 and DGX Spark, which no vendor's recipe names, against the engines' own code.

Nobody has published a run of a release there, so the engines are the only witnesses: what we offer must be what they
take, and what we refuse for a reason in their code must be what they cannot do.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from k3stack.engines.releases import versions
from k3stack.hardware.table import gpu
from k3stack.plan.layout import KvDtype, Layout, Workload
from k3stack.recipe.asking import engine_variables, engine_words
from k3stack.recipe.build import build
from k3stack.recipe.choice import CARD, Choice, Feature, refused
from k3stack.recipe.deployment import Role
from k3stack.spec.schemes import Scheme
from tests.engines.test_validation import case, configs, sm
from tests.engines.test_validation import resolved as by_sglang
from tests.engines.test_validation_vllm import folders
from tests.engines.validate_vllm import Folders
from tests.engines.validate_vllm import resolved as by_vllm
from tests.engines.venvs import answer_of, engine_python

pytestmark = pytest.mark.engines

__all__ = ["configs", "folders"]  # fixtures

HARDWARE = ["rtx-pro-6000", "dgx-spark"]
SHARED_MEMORY_BYTES = 101_376
"""What a block may have on compute capability 12 (github.com/vllm-project/vllm/issues/53748, read on both GPUs)."""

LAYOUTS = [
    Layout(tp=8, pp=2),
    Layout(tp=8, pp=3),
    Layout(tp=8, pp=4),
    Layout(tp=16),
    Layout(tp=16, ep=True),
    Layout(tp=16, pp=2),
    Layout(tp=32),
    Layout(tp=32, ep=True),
]
FEATURES = [(), (Feature.DSPARK,), (Feature.TEXT_ONLY,), (Feature.HICACHE,), (Feature.DSPARK, Feature.HICACHE)]


def offered(engine: str, version: str, hardware: str, layouts: list[Layout] = LAYOUTS) -> list[Role]:
    """Every different command that we write for this GPU and release; the first rank's."""
    found: dict[tuple[str, ...], Role] = {}
    for layout in layouts:
        for scheme in Scheme:
            for features in FEATURES:
                for kv in KvDtype:
                    work = Workload(kv_dtype=kv, context=32_768)
                    choice = Choice(engine, version, gpu(hardware), scheme, layout, work, features=features)
                    if not refused(choice):
                        role = build(choice).roles[0]
                        found.setdefault(tuple(role.command.words()), role)
    return list(found.values())


@pytest.mark.parametrize("hardware", HARDWARE)
def test_vllm_takes_what_we_offer(folders: Folders, hardware: str) -> None:
    roles = offered("vllm", "0.33.0", hardware)
    asked = [(engine_words(role, 0), engine_variables(role, 0)) for role in roles]
    answers = by_vllm(folders, hardware, asked, layers=True)
    assert_taken(roles, answers)
    assert len(roles) >= 20
    print(f"vLLM takes {len(roles)} commands for {hardware}")
    for role, answer in zip(roles, answers, strict=True):
        assert_kernels(role, answer["found"])


def assert_taken(roles: list[Role], answers: list[dict[str, Any]]) -> None:
    """The engine holds nothing against any of the commands."""
    pairs = zip(roles, answers, strict=True)
    bad = {answer["error"]: role.command.words() for role, answer in pairs if answer["error"]}
    assert not bad, bad


def assert_kernels(role: Role, found: dict[str, Any]) -> None:
    """Every kind of layer finds a kernel that runs on compute capability 12."""
    command = role.command
    nvfp4 = "NVFP4" in command.model
    assert (found["decode"], found["prefill"]) == ("TRITON_MLA", "FlashAttnPrefillBackend")
    assert found["experts"] == ("VLLM_CUTLASS" if nvfp4 else "MARLIN")
    assert found["kda_prefill"] == "flashkda" and found["kda_verify"] == "native"
    draft, heads = command.flag("speculative-config"), 96 // command.flag("tensor-parallel-size")
    assert found["kda_decode"] == ("native" if heads >= 12 and not draft else "triton")
    assert found["pictures"] == "FLASH_ATTN"
    assert found.get("draft_kernel") == ("FLASH_ATTN" if draft else None)
    linear = "CutlassFp8BlockScaledMMKernel" if command.model == "nvidia/Kimi-K3-NVFP4" else None
    assert found.get("linear") == linear


@pytest.mark.parametrize("version", [one for one in versions("vllm") if one != "0.33.0"])
def test_older_releases_of_vllm_take_what_we_offer(folders: Folders, version: str) -> None:
    roles = offered("vllm", version, "rtx-pro-6000", [Layout(tp=8, pp=3), Layout(tp=32), Layout(tp=32, ep=True)])
    asked = [(engine_words(role, 0), engine_variables(role, 0)) for role in roles]
    answers = by_vllm(folders, "rtx-pro-6000", asked, version)
    assert_taken(roles, answers)
    assert len(roles) >= 10
    assert {answer["found"]["decode"] for answer in answers} == {"TRITON_MLA"}


@pytest.mark.parametrize("version", versions("vllm"))
def test_an_fp8_cache_does_not_go_into_these_gpus(folders: Folders, version: str) -> None:
    """vLLM takes the command, and its decode kernel then cannot be launched: we refuse it for that."""
    asked = [
        {"architecture": sm(hardware), "cache": cache} for hardware in HARDWARE for cache in (KvDtype.BF16, KvDtype.FP8)
    ]
    environment = {"LD_LIBRARY_PATH": str(folders.driver), "CUDA_VISIBLE_DEVICES": ""}
    found = answer_of("vllm", version, "triton_mla_memory.py", asked, 600, environment)
    for one, needed in zip(asked, found, strict=True):
        assert (needed > SHARED_MEMORY_BYTES) is (one["cache"] is KvDtype.FP8), (one, needed)
    for hardware in HARDWARE:
        work = Workload(kv_dtype=KvDtype.FP8)
        choice = Choice("vllm", version, gpu(hardware), Scheme.MXFP4, Layout(tp=32, ep=True), work)
        assert [one.reason.rule for one in refused(choice)] == ["vllm-fp8-cache-workstation"]


@pytest.mark.parametrize("hardware", HARDWARE)
def test_sglang_takes_what_we_offer(configs: dict[Scheme, Path], hardware: str) -> None:
    roles = offered("sglang", "0.5.23", hardware)
    folder = configs[Scheme.MXFP4]
    answers = by_sglang([case(role, sm(hardware), folder, folder) for role in roles])
    assert_taken(roles, answers)
    assert len(roles) >= 20
    print(f"SGLang takes {len(roles)} commands for {hardware}")
    for answer in answers:
        assert (answer["found"]["attention"], answer["found"]["experts"]) == ("triton", "marlin")


@pytest.mark.parametrize("hardware", HARDWARE)
def test_sglang_cannot_do_what_we_refuse(configs: dict[Scheme, Path], hardware: str) -> None:
    """Context-parallel decoding; and left to itself it would not compute MXFP4 experts as they are."""
    base = f"--model-path {configs[Scheme.MXFP4]} --trust-remote-code --tp-size 16 --device cuda".split()
    cases: list[dict[str, object]] = [
        {"sm": sm(hardware), "words": [*base, *more], "variables": {}} for more in ([], ["--dcp-size", "16"])
    ]
    alone, spread = by_sglang(cases)
    assert alone["error"] is None and alone["found"]["experts"] == "auto"
    assert "only supported on Blackwell GPUs (SM100)" in spread["error"]
    choice = Choice("sglang", "0.5.23", gpu(hardware), Scheme.MXFP4, Layout(tp=32, dcp=16))
    assert "sglang-dcp-hopper" in {one.reason.rule for one in refused(choice)}


RUNNERS = """
import json, sys
from unittest import mock
from sglang.srt.layers.moe.utils import MoeRunnerBackend
from sglang.srt.layers.quantization.modelopt_quant import ModelOptNvFp4FusedMoEMethod as Method
found = {}
for backend in MoeRunnerBackend:
    method = mock.Mock(_moe_runner_backend=backend)
    method.moe_runner_config.activation = "situ"
    try:
        Method.apply(method, mock.Mock(_mega_moe_nvfp4=False), mock.Mock())
        found[backend.value] = True
    except AssertionError:
        found[backend.value] = False
    except Exception:
        found[backend.value] = True
from flashinfer.jit.trtllm_gen_metainfo import BLACKWELL_CUBIN_ARCHS
print(json.dumps({"runners": found, "binaries": BLACKWELL_CUBIN_ARCHS}), file=sys.stdout)
"""


def test_sglangs_nvfp4_experts_need_a_kernel_for_data_centre_blackwell() -> None:
    ran = subprocess.run(
        [str(engine_python("sglang", "0.5.23")), "-c", RUNNERS],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    answer = json.loads(ran.stdout.splitlines()[-1])
    taken = {name for name, yes in answer["runners"].items() if yes}
    assert taken == {"flashinfer_trtllm", "experimental_sgl_trtllm", "flashinfer_megamoe"}, answer
    assert all(name.startswith("Sm10") for name in answer["binaries"]), answer
    for hardware in HARDWARE:
        choice = Choice("sglang", "0.5.23", gpu(hardware), Scheme.NVFP4_MIXED, Layout(tp=32, ep=True))
        assert "sglang-nvfp4-hardware" in {one.reason.rule for one in refused(choice)}


def test_the_day_0_image_is_offered_with_mxfp4_only() -> None:
    """Its wheel is not to be had, so nothing here says what it takes; NVFP4 needs patches that nobody tried there."""
    for hardware in HARDWARE:
        work = Workload(kv_dtype=KvDtype.BF16)
        for scheme in (Scheme.MXFP4, Scheme.NVFP4_MIXED):
            choice = Choice("vllm", CARD, gpu(hardware), scheme, Layout(tp=32, ep=True), work)
            assert bool(refused(choice)) is (scheme is Scheme.NVFP4_MIXED)
