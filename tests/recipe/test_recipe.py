"""The recipe: the validated NVFP4 command, a reason for everything, and refusals."""

import re
import shlex
import subprocess

import pytest

from k3stack.engines.releases import versions
from k3stack.engines.rules import rules
from k3stack.errors import K3Error, NotKnownError
from k3stack.hardware.table import gpu
from k3stack.plan import KvDtype, Layout, Plan, Workload, make_plan
from k3stack.recipe.build import build
from k3stack.recipe.choice import CARD, from_plan
from k3stack.recipe.deployment import Deployment
from k3stack.recipe.render.docker import render as docker_run
from k3stack.spec.published import kimi_k3
from k3stack.values import dump, load

MODEL_CARD = """
--served-model-name kimi-k3-nvfp4 --host 0.0.0.0 --port 8000 --trust-remote-code --quantization modelopt_mixed
--load-format fastsafetensors --tensor-parallel-size 8 --moe-backend flashinfer_trtllm --gpu-memory-utilization 0.90
--max-model-len 196608 --max-num-batched-tokens 8192 --max-num-seqs 32 --kv-cache-dtype fp8
--attention-config {"mla_prefill_backend":"TRTLLM_RAGGED","use_prefill_query_quantization":true}
--attention-backend FLASHINFER_MLA --enable-prefix-caching --enable-chunked-prefill --max-cudagraph-capture-size 32
--enable-auto-tool-choice --tool-call-parser kimi_k3 --reasoning-parser kimi_k3
"""
MODEL_CARD_ENVIRONMENT = {
    "KIMI_K3_FIX_MM_PROMPT_UPDATES": "1",
    "KIMI_K3_NVFP4_SITU_G1_SCALE": "1",
    "KIMI_K3_FP8_PB": "1",
    "VLLM_USE_DEEP_GEMM": "0",
    "VLLM_USE_V2_MODEL_RUNNER": "1",
    "VLLM_USE_RUST_FRONTEND": "0",
}


def plan_for(hardware: str, scheme: str = "nvfp4-mixed", workload: Workload | None = None, tp: int = 8) -> Plan:
    model = "nvidia/Kimi-K3-NVFP4"
    return make_plan(kimi_k3().with_scheme(scheme), model, gpu(hardware), Layout(tp=tp), workload or Workload())


def flags_of(text: str) -> dict[str, str | None]:
    words = [word for line in text.splitlines() for word in line.split()]
    found: dict[str, str | None] = {}
    for word in words:
        if word.startswith("--"):
            found[word] = None
            last = word
        else:
            found[last] = word
    return found


def test_the_validated_command_is_the_model_cards() -> None:
    deployment = build(plan_for("b300"))
    command = deployment.roles[0].command
    ours = {f"--{flag.name}": (flag.words()[1] if len(flag.words()) > 1 else None) for flag in command.flags}
    assert ours == flags_of(MODEL_CARD)
    environment = {variable.name: variable.value for variable in command.environment}
    assert environment == MODEL_CARD_ENVIRONMENT | {"VLLM_ENGINE_READY_TIMEOUT_S": "3600"}
    assert deployment.image == "vllm/vllm-openai:kimi-k3"


def test_every_setting_has_a_reason_with_source_and_date() -> None:
    deployment = build(plan_for("b300"))
    known = {rule.id for rule in rules("vllm")} | {"served-name"}
    command = deployment.roles[0].command
    reasons = [flag.reason for flag in command.flags] + [variable.reason for variable in command.environment]
    for reason in [deployment.image_reason, *reasons]:
        assert reason.rule in known
        assert reason.why.endswith(".") and reason.source and reason.date


def test_the_script_is_valid_shell_and_docker_gets_the_words() -> None:
    script = docker_run(build(plan_for("b300")))
    stub = 'docker() { printf "%s\\n" "$@"; }\n' + script
    ran = subprocess.run(
        ["sh", "-c", stub], env={"K3_PATCH_DIR": "/p q", "HOME": "/h"}, capture_output=True, text=True, check=True
    )
    words = ran.stdout.splitlines()
    assert words[0] == "run"
    assert "/p q:/k3-patches:ro" in words and "/h/.cache/huggingface:/root/.cache/huggingface" in words
    assert '{"mla_prefill_backend":"TRTLLM_RAGGED","use_prefill_query_quantization":true}' in words
    assert words[words.index(build(plan_for("b300")).pinned_image) + 1] == "nvidia/Kimi-K3-NVFP4"


def test_the_script_never_holds_a_token_and_listens_on_loopback() -> None:
    words = shlex.split(docker_run(build(plan_for("b300"))), comments=True)
    assert words[words.index("HF_TOKEN") - 1] == "--env"
    assert not any(word.startswith("HF_TOKEN=") for word in words)
    assert words[words.index("--publish") + 1] == "127.0.0.1:8000:8000"


def test_the_plan_sets_the_sizes() -> None:
    workload = Workload(context=65_536, concurrency=8, kv_dtype=KvDtype.BF16, prefix_caching=False, utilization=0.85)
    command = build(plan_for("gb300", workload=workload)).roles[0].command
    assert command.flag("max-model-len") == 65_536
    assert command.flag("max-num-seqs") == command.flag("max-cudagraph-capture-size") == 8
    assert command.flag("kv-cache-dtype") == "auto"
    assert command.flag("gpu-memory-utilization") == "0.85"
    assert command.flag("enable-prefix-caching") is False
    assert command.flag("attention-config") is None


def test_a_derived_command_says_that_it_is() -> None:
    assert not any("derived" in note for note in build(plan_for("b300")).notes)
    assert any("derived" in note for note in build(plan_for("gb300")).notes)


def test_a_deployment_survives_json() -> None:
    deployment = build(plan_for("b300"))
    assert load(Deployment, dump(deployment)) == deployment


def test_what_does_not_fit_has_no_recipe() -> None:
    with pytest.raises(K3Error, match="does not fit"):
        build(plan_for("h200"))


@pytest.mark.parametrize(("hardware", "scheme", "tp"), [("b300", "mxfp4", 8)])
def test_what_is_not_covered_says_what_is(hardware: str, scheme: str, tp: int) -> None:
    with pytest.raises(NotKnownError) as caught:
        build(plan_for(hardware, scheme, tp=tp))
    assert caught.value.hint


def test_images_are_pinned_where_a_digest_was_recorded_and_float_where_none_was() -> None:
    card = build(plan_for("b300"))
    assert card.pinned_image.startswith("vllm/vllm-openai@sha256:e90e2603b278") and "kimi-k3" in str(card.notes)
    assert card.pinned_image in docker_run(card)
    newest = build(from_plan(plan_for("b300"), "0.33.0"))
    assert newest.digest is None and newest.pinned_image == "vllm/vllm-openai:v0.33.0"
    assert any("floating tag" in note for note in newest.notes) and not any("floating" in note for note in card.notes)
    older = build(from_plan(plan_for("b300"), "0.31.0"))
    assert older.pinned_image.startswith("vllm/vllm-openai@sha256:c1c9f6fd5c10")


def test_every_digest_is_one_and_belongs_to_a_known_release() -> None:
    for engine in ("vllm", "sglang"):
        for rule in rules(engine):
            for version, digest in rule.digests.items():
                assert version in (*versions(engine), CARD)
                assert re.fullmatch(r"sha256:[0-9a-f]{64}", digest)
