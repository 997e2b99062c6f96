"""The doctor: real commands of public deployers, and what it says about parts of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3stack.errors import InputError, K3Error, NotKnownError, UsageError
from k3stack.hardware.table import gpu
from k3stack.recipe.build import build
from k3stack.recipe.copied import take_apart
from k3stack.recipe.doctor import Diagnosis, Weight, diagnose
from k3stack.recipe.fit import fit
from k3stack.recipe.render import Form, render
from k3stack.recipe.translate import translate
from k3stack.values import dump, load
from tests.cli.run import k3
from tests.panel.states import some
from tests.recipe.commands import PUBLIC, Public


def examine(public: Public) -> Diagnosis:
    flat = public.command.replace("\\\n", " ").replace("\n", " ")
    return diagnose(flat, gpu(public.hardware) if public.hardware else None, public.version)


@pytest.mark.parametrize("public", PUBLIC, ids=lambda public: public.name)
def test_public_commands(public: Public) -> None:
    diagnosis = examine(public)
    found = {finding.rule for finding in diagnosis.findings}
    bad = [finding for finding in diagnosis.findings if finding.weight is not Weight.ADVICE]
    assert public.rules <= found
    assert diagnosis.good == public.good, bad
    for finding in diagnosis.findings:
        assert finding.what and finding.why.endswith(".") and finding.fix and finding.source


@pytest.mark.parametrize("form", [Form.DOCKER, Form.SHELL])
def test_what_we_write_is_read_back_without_fault(form: Form) -> None:
    read = 0
    for choice in some():
        found = fit(choice)
        if not found.yes:
            continue
        try:
            text = render(build(found.choice), form)
        except NotKnownError:
            continue  # this form cannot be had on this hardware
        diagnosis = diagnose(text, choice.gpu, choice.version, choice.parsers)
        assert diagnosis.good and diagnosis.engine == choice.engine, diagnosis.findings
        read += 1
    assert read > 20


def test_there_are_enough_of_both_kinds() -> None:
    assert len(PUBLIC) >= 15
    assert sum(public.good for public in PUBLIC) >= 5 and sum(not public.good for public in PUBLIC) >= 8


@pytest.mark.parametrize("public", [one for one in PUBLIC if one.good], ids=lambda public: public.name)
def test_a_good_command_that_loses_its_parser_is_bad(public: Public) -> None:
    broken = Public(**{**public.__dict__, "command": public.command.replace("--reasoning-parser kimi_k3", "")})
    assert not examine(broken).good


def test_a_diagnosis_survives_json() -> None:
    diagnosis = examine(PUBLIC[0])
    assert load(Diagnosis, dump(diagnosis)) == diagnosis


def test_the_version_comes_from_the_image() -> None:
    assert examine(PUBLIC[0]).version == "kimi-k3"
    assert examine(PUBLIC[1]).version == "0.33.0"
    unsaid = diagnose("vllm serve moonshotai/Kimi-K3")
    assert unsaid.version == "0.33.0" and len(unsaid.assumed) == 2


def test_a_token_is_found_and_never_repeated() -> None:
    token = "hf_" + "a1B2" * 8
    diagnosis = diagnose(f"docker run -e HF_TOKEN={token} --ipc=host vllm/vllm-openai:v0.33.0 moonshotai/Kimi-K3")
    assert any(finding.rule == "secret" for finding in diagnosis.findings)
    assert token not in str(dump(diagnosis))


def test_json_in_parts_is_one_setting() -> None:
    parts = (
        "--attention-config.mla_prefill_backend TRTLLM_RAGGED --attention-config.use_prefill_query_quantization=true"
    )
    whole = diagnose(f"vllm serve m {parts}").settings["attention-config"]
    assert whole == {"mla_prefill_backend": "TRTLLM_RAGGED", "use_prefill_query_quantization": True}


@pytest.mark.parametrize(
    ("words", "engine", "rest"),
    [
        ("python3 -m sglang.launch_server --model-path m --tp 8", "sglang", ("--model-path", "m", "--tp", "8")),
        ("sudo docker run --rm lmsysorg/sglang:v0.5.23 sglang serve --tp 8", "sglang", ("--tp", "8")),
        ("docker run --entrypoint vllm vllm/vllm-openai:v0.33.0 serve m", "vllm", ("m",)),
        ("docker run vllm/vllm-openai bash -c 'export A=1; vllm serve m -tp 8'", "vllm", ("m", "-tp", "8")),
        ("export A=1\nexport B=2\nvllm serve m", "vllm", ("m",)),
        ("# a comment\n$ vllm serve m && echo ready", "vllm", ("m",)),
    ],
)
def test_commands_are_taken_apart(words: str, engine: str, rest: tuple[str, ...]) -> None:
    copied = take_apart(words)
    assert (copied.engine, copied.words) == (engine, rest)


@pytest.mark.parametrize("text", ["", "echo hello", "docker run ubuntu", "vllm serve 'open", "docker run --rm"])
def test_what_is_no_command_is_an_error(text: str) -> None:
    with pytest.raises(InputError):
        take_apart(text)


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        diagnose(text)
    except K3Error:
        return


@given(
    st.lists(
        st.sampled_from("--tp-size --dcp-size 8 {} --attention-config -tp --moe- =1 '' --port x".split()), max_size=8
    )
)
def test_any_words_are_diagnosed(words: list[str]) -> None:
    for engine in ("vllm", "sglang"):
        try:
            diagnose(f"{engine} serve m " + " ".join(words), gpu("b300"))
        except InputError:
            return


def test_translation_there_and_what_is_lost() -> None:
    command = (
        "vllm serve moonshotai/Kimi-K3 -tp 8 -dcp 8 --kv-cache-dtype fp8 --max-model-len 65536 --max-num-seqs 16 "
        "--served-model-name k3 --seed 7 --kv-offloading-size 64"
    )
    found = translate(diagnose(command, gpu("b300")), gpu("b300"))
    made = found.deployment.roles[0].command
    assert found.deployment.engine == "sglang"
    assert (made.flag("tp-size"), made.flag("dcp-size")) == (8, 8)
    assert (made.flag("context-length"), made.flag("max-running-requests")) == (65_536, 16)
    assert made.flag("kv-cache-dtype") == "fp8_e4m3"
    assert made.flag("served-model-name") == "k3" and made.flag("random-seed") == "7"
    assert found.untranslated == ("--kv-offloading-size 64",)


def test_translation_back() -> None:
    command = "sglang serve --model-path nvidia/Kimi-K3-NVFP4 --tp-size 8 --context-length 32768 --hicache-ratio 2"
    found = translate(diagnose(command, gpu("b300")), gpu("b300"))
    made = found.deployment.roles[0].command
    assert made.flag("quantization") == "modelopt_mixed" and made.flag("max-model-len") == 32_768
    assert found.untranslated == ("--hicache-ratio 2",)


def test_a_translation_needs_the_hardware_and_a_known_checkpoint() -> None:
    with pytest.raises(UsageError, match="hardware"):
        translate(diagnose("vllm serve moonshotai/Kimi-K3"), None)
    with pytest.raises(UsageError, match="stored"):
        translate(diagnose("vllm serve /models/K3", gpu("b300")), gpu("b300"))


def test_the_verb_says_no_with_reasons() -> None:
    ran = k3("recipe", "--from", "sglang serve --model-path moonshotai/Kimi-K3 --speculative-algorithm DSPARK")
    assert ran.code == 1
    assert "48" in ran.out and "sglang-check-speculative-cap" in ran.out


ONE = "vllm serve moonshotai/Kimi-K3 --trust-remote-code --tensor-parallel-size 8"
SPREAD = "vllm serve moonshotai/Kimi-K3 --trust-remote-code --data-parallel-size 16 --enable-expert-parallel"
REPLICAS = f"{ONE} --data-parallel-size 4 --data-parallel-size-local 1 --enable-expert-parallel"


@pytest.mark.parametrize(
    ("hardware", "command", "rule"),
    [
        ("b300", f"{ONE} --data-parallel-hybrid-lb", "vllm-check-hybrid-alone"),
        ("b300", f"{SPREAD} --data-parallel-hybrid-lb", "vllm-check-hybrid-local"),
        (
            "b300",
            f"{SPREAD} --data-parallel-size-local 8 --headless --data-parallel-hybrid-lb",
            "vllm-check-hybrid-headless",
        ),
        ("gb300", REPLICAS, "vllm-check-replica-nodes"),
    ],
)
def test_balancing_and_replicas_that_vllm_does_not_start_with(hardware: str, command: str, rule: str) -> None:
    """What the modes of prefill and decode pools on vLLM's recipes page come to (2026-08-21)."""
    assert rule in {finding.rule for finding in diagnose(command, gpu(hardware)).findings}


@pytest.mark.parametrize(
    ("hardware", "command"),
    [
        ("b300", f"{SPREAD} --data-parallel-size-local 8 --data-parallel-start-rank 8 --data-parallel-hybrid-lb"),
        ("b300", f"{ONE} --data-parallel-size $REPLICAS --data-parallel-size-local 1 --data-parallel-hybrid-lb"),
        ("b300", REPLICAS),
        ("gb300", f"{REPLICAS} --nnodes 8 --node-rank 0 --master-addr 10.0.0.1"),
    ],
)
def test_balancing_and_replicas_that_vllm_starts_with(hardware: str, command: str) -> None:
    found = diagnose(command, gpu(hardware)).findings
    assert not {finding.rule for finding in found if "hybrid" in finding.rule or "replica" in finding.rule} - {
        "vllm-replicas-in-node"
    }
    assert all(finding.weight is Weight.ADVICE for finding in found if finding.rule == "vllm-replicas-in-node")


def test_a_kernel_named_in_small_letters_is_no_fault() -> None:
    """As vLLM's recipes page has it for Blackwell, and vLLM takes it; a rule about the kernel still finds it."""
    config = """--attention-config '{"mla_prefill_backend":"%s"}'"""
    assert not {"wrong value"} & {
        finding.rule for finding in diagnose(f"{ONE} {config % 'flashinfer'}", gpu("b300")).findings
    }
    found = {finding.rule for finding in diagnose(f"{ONE} {config % 'trtllm_ragged'}", gpu("h200")).findings}
    assert "vllm-check-blackwell-prefill" in found
    found = {finding.rule for finding in diagnose(f"{ONE} --attention-backend tokenspeed_mla", gpu("h200")).findings}
    assert "vllm-check-blackwell-decode" in found


DRAFTED = """--speculative-config '{"model":"a/draft","num_speculative_tokens":8,"method":"dspark"}'"""


@pytest.mark.parametrize(
    ("version", "tokens", "found"), [("0.27.1", 56, True), ("0.32.0", 57, False), ("0.33.0", 56, False)]
)
def test_drafts_that_leave_no_token_of_a_step(version: str, tokens: int, found: bool) -> None:
    """The decode role of vLLM's recipe with a draft: 8 requests and 32 tokens a step on each of 16 replicas."""
    command = f"{SPREAD} --data-parallel-size-local 8 {DRAFTED} --max-num-seqs 8 --max-num-batched-tokens {tokens}"
    rules = {finding.rule for finding in diagnose(command, gpu("b300"), version).findings}
    assert ("vllm-drafts-fill-step" in rules) is found


def test_requests_of_a_step_are_counted_for_each_replica() -> None:
    command = f"{SPREAD} --data-parallel-size-local 8 --max-num-seqs 64 --max-num-batched-tokens 32"
    assert "vllm-check-batched" in {finding.rule for finding in diagnose(command, gpu("b300")).findings}
