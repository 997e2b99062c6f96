"""Several commands of one text: each by itself, and what they have wrong together."""

import json
from pathlib import Path
from typing import Any

import pytest

from k3stack.engines.pairs import group_rules, pair_rules
from k3stack.engines.releases import release, versions
from k3stack.errors import NotKnownError
from k3stack.hardware.table import gpu
from k3stack.recipe.build import build
from k3stack.recipe.choice import Choice, Serving
from k3stack.recipe.doctor import diagnose
from k3stack.recipe.examine import Examination, examine
from k3stack.recipe.fit import fit
from k3stack.recipe.render import Form, render
from k3stack.recipe.wanted import Wanted, fitting
from k3stack.values import dump, load
from tests.cli.run import k3
from tests.panel.states import some

NIXL = '--kv-transfer-config \'{"kv_connector":"NixlConnector","kv_role":"kv_%s"}\''
PREFILL = f"vllm serve moonshotai/Kimi-K3 -tp 8 --port 8001 {NIXL % 'producer'}"
DECODE = f"vllm serve moonshotai/Kimi-K3 -tp 8 --port 8002 {NIXL % 'consumer'}"
BOTH = f"vllm serve m {NIXL % 'both'}"
ROUTER = "vllm-router --vllm-pd-disaggregation --prefill http://a:8001 --decode http://b:8002"
SGLANG = "sglang serve --model-path moonshotai/Kimi-K3 --tp-size 8"
PREFILL_SIDE = f"{SGLANG} --disaggregation-mode prefill --disaggregation-transfer-backend nixl"
DECODE_SIDE = f"{SGLANG} --disaggregation-mode decode --disaggregation-transfer-backend nixl --port 30100"
ROUTER_SIDE = "python3 -m sglang_router.launch_router --pd-disaggregation"
ROUTES = f"{ROUTER_SIDE} --prefill http://a:30000 8998 --decode http://b:30100"


def together(*commands: str) -> dict[str, str]:
    return {one.rule: one.what for one in examine("\n".join(commands)).together}


def roles(text: str) -> list[str]:
    return [one.name for one in examine(text).roles]


# --- what we write ----------------------------------------------------------------------------------------------------


SPREADS: tuple[dict[str, Any], ...] = ({}, {"tp": 8, "dcp": 8}, {"tp": 16, "dcp": 16})


def disaggregated() -> list[Choice]:
    """Prefill and decode of every engine and GPU that there is one for."""
    found = []
    for engine in ("vllm", "sglang"):
        for kind in ("b200", "b300", "gb200", "gb300"):
            for more in SPREADS:
                try:
                    made = fitting(Wanted(gpu(kind), engine, serving=Serving.DISAGGREGATED, **more))
                except NotKnownError:
                    continue
                found += [made.choice] if made.yes else []
    return found


def expected(choice: Choice, form: Form) -> list[str]:
    """The kinds of process that a text of this form starts; those of several nodes may stand there twice."""
    names = [role.name for role in build(choice).roles]
    twice = form in (Form.COMPOSE, Form.KUBERNETES)
    several = {role.name for role in build(choice).roles if role.nodes > 1}
    return [name for name in names for _ in range(2 if twice and name in several else 1)]


@pytest.mark.parametrize("form", list(Form))
def test_every_role_that_we_write_is_read_back_without_fault(form: Form) -> None:
    read = pairs = 0
    for choice in [*some()[::2], *disaggregated()]:
        found = fit(choice, changes=False)
        if not found.yes:
            continue
        try:
            text = render(build(found.choice), form)
        except NotKnownError:
            continue  # this form cannot be had on this hardware
        seen = examine(text, choice.gpu, choice.version, choice.parsers)
        assert seen.good, [seen.together, *(one.diagnosis.findings for one in seen.roles)]
        names = [one.name.partition(" ")[0] for one in seen.roles]
        assert names == expected(found.choice, form)
        assert not any(one.rule == "no-router" for one in seen.together)
        read, pairs = read + 1, pairs + ("decode" in names)
    assert read > 15 and pairs > 8


def test_pairs_of_ours_disagree_about_nothing() -> None:
    """`build` would refuse them; so that the rules are asked here at all."""
    assert len(disaggregated()) >= 12
    for choice in disaggregated():
        assert choice.engine != "vllm" or choice.prefill is None or choice.prefill.dcp == choice.layout.dcp


# --- which role is which ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (f"{PREFILL}\n{DECODE}\n{ROUTER}", ["prefill", "decode", "router"]),
        (f"{SGLANG} --nnodes 2 --node-rank 0\n{SGLANG} --nnodes 2 --node-rank 1", ["server node 0", "server node 1"]),
        (f"{SGLANG} --nnodes 2 --node-rank $RANK", ["server"]),
        ("vllm serve m -dp 16 --data-parallel-start-rank 8 --headless", ["server from replica 8"]),
        ("vllm serve m --headless", ["server worker"]),
        (f"prefill() {{ {BOTH}; }}\ndecode() {{ {BOTH}; }}", ["prefill", "decode"]),
        (BOTH, ["server"]),
        (BOTH.replace("vllm serve", "python3 -m dynamo.vllm --disaggregation-mode decode --model"), ["decode"]),
        ("rank=${2:-${SLURM_PROCID:-0}}\nsglang serve --nnodes 2 --node-rank ${rank}", ["server"]),
    ],
)  # fmt: skip
def test_roles_are_named_by_what_they_say(text: str, names: list[str]) -> None:
    assert roles(text) == names


def test_each_has_its_own_findings_and_the_worst_counts() -> None:
    seen = examine(f"{PREFILL} --bogus 1\n{DECODE}\n{ROUTER}", gpu("b300"))
    prefill, decode, router = (one.diagnosis for one in seen.roles)
    assert "unknown flag" in {one.rule for one in prefill.findings}
    assert "unknown flag" not in {one.rule for one in decode.findings}
    assert not prefill.good and router.good and not seen.good


def test_a_router_is_read_by_its_own_parser() -> None:
    seen = examine(f"{PREFILL}\n{DECODE}\n{ROUTER} --polcy x")
    assert [one.rule for one in seen.roles[2].diagnosis.findings] == ["unknown flag"]


def test_the_lines_are_those_of_the_text() -> None:
    text = f"# one\n\nexport A=1\n{PREFILL} \\\n  --seed 1\n\n{DECODE}\ncat <<E > x.sh\nexport B=1\n{ROUTER}\nE\n"
    assert [one.line for one in examine(text).roles] == [4, 7, 10]


DYNAMO = """
kind: ConfigMap
data:
  prefill.yaml: |-
    model-path: moonshotai/Kimi-K3
    trust-remote-code: true
    disaggregation-mode: prefill
    disaggregation-transfer-backend: mooncake
    tp-size: 8
    page-size: 64
    enable-hierarchical-cache: true
  decode.yaml: |-
    model-path: moonshotai/Kimi-K3
    trust-remote-code: true
    disaggregation-mode: decode
    disaggregation-transfer-backend: mooncake
    tp-size: 8
    dcp-size: 8
    page-size: 32
---
kind: DynamoGraphDeployment
metadata: {name: k3}
spec:
  components:
  - name: Frontend
    podTemplate: {spec: {containers: [{name: main, image: d, command: [python3, -m, dynamo.frontend], args: []}]}}
  - name: Prefill
    podTemplate:
      spec:
        containers:
        - &worker
          name: main
          image: registry/dynamo:1.4.0-sglang-runtime
          command: [python3, -m, dynamo.sglang]
          args: [--config, /etc/sglang/prefill.yaml, --dyn-reasoning-parser, kimi_k3]
  - name: Decode
    podTemplate:
      spec:
        containers:
        - {<<: *worker, args: [--config, /etc/sglang/decode.yaml, --dyn-tool-call-parser, kimi_k3, --page-size, "16"]}
"""


def test_a_deployment_whose_settings_lie_in_a_config_map() -> None:
    seen = examine(DYNAMO)
    assert [(one.name, one.place) for one in seen.roles] == [
        ("prefill", "k3/Prefill/main"),
        ("decode", "k3/Decode/main"),
    ]
    prefill, decode = (one.diagnosis.settings for one in seen.roles)
    assert prefill["enable-hierarchical-cache"] is True and decode["page-size"] == "16"
    assert {one.rule for one in seen.together} == {"sglang-pair-page"}
    for one in seen.roles:
        assert not any(finding.rule == "unknown flag" for finding in one.diagnosis.findings)
        assert any("Dynamo" in text for text in one.diagnosis.assumed)
        assert not any("was not read" in text for text in one.diagnosis.assumed)


def test_what_dynamo_does_itself_is_not_called_missing() -> None:
    words = "--model moonshotai/Kimi-K3 --trust-remote-code --nnodes 4 -tp 8 -pp 4 --dyn-tool-call-parser kimi_k3"
    found = examine(f"VLLM_ENGINE_READY_TIMEOUT_S=7200 python3 -m dynamo.vllm {words}", gpu("h200")).only
    assert found is not None and found.good
    assert not examine(f"vllm serve {words.partition(' ')[2]}", gpu("h200")).good


# --- pairs ------------------------------------------------------------------------------------------------------------

DRAFT = "--speculative-config.model RedHatAI/Kimi-K3-speculator.dspark --speculative-config.method dspark"

VLLM_PAIRS = [
    ("--kv-cache-dtype fp8", "", "vllm-pair-cache"),
    ("--kv-cache-dtype fp8", "--kv-cache-dtype fp8_e4m3", "vllm-pair-cache"),
    ("--attention-backend FLASHINFER_MLA", "--attention-backend TOKENSPEED_MLA", "vllm-pair-attention"),
    ("--disable-hybrid-kv-cache-manager", "", "vllm-pair-manager"),
    (DRAFT, "", "vllm-pair-draft"),
    ("", "-dcp 8", "vllm-pair-dcp"),
    ("-tp 6", "", "vllm-pair-tp"),
    ("--served-model-name a", "--served-model-name b", "vllm-pair-name"),
    ("--revision abc", "", "vllm-pair-revision"),
    ("--max-model-len 8192", "--max-model-len 4096", "vllm-pair-context"),
    ("--mamba-ssm-cache-dtype bfloat16", "--mamba-ssm-cache-dtype float32", "vllm-pair-state"),
    ("--kv-transfer-config.kv_connector NixlPushConnector", "", "vllm-pair-connector"),
]
SGLANG_PAIRS = [
    ("--kv-cache-dtype fp8_e4m3", "", "sglang-pair-cache"),
    ("--page-size 64", "--page-size 32", "sglang-pair-page"),
    ("--disaggregation-transfer-backend mooncake", "", "sglang-pair-transfer"),
    ("--pp-size 2", "--pp-size 4", "sglang-pair-stages"),
    ("--dcp-size 8", "", "sglang-pair-dcp"),
    ("--tp-size 6", "", "sglang-pair-tp"),
    ("--model-path other/Model", "", "sglang-pair-model"),
    ("", "--dcp-size 8 --speculative-algorithm DSPARK", "sglang-pair-draft"),
    ("--mamba-ssm-dtype bfloat16", "--mamba-ssm-dtype float32", "sglang-pair-state"),
    ("--disaggregation-decode-allocation-policy prefill_complete", "", "sglang-pair-policy"),
    ("--context-length 8192", "--context-length 4096", "sglang-pair-context"),
    ("--revision abc", "", "sglang-pair-revision"),
]


@pytest.mark.parametrize(("prefill", "decode", "rule"), VLLM_PAIRS)
def test_what_vllm_refuses_of_two_sides(prefill: str, decode: str, rule: str) -> None:
    assert set(together(f"{PREFILL} {prefill}", f"{DECODE} {decode}", ROUTER)) == {rule}
    assert not together(f"{PREFILL} {prefill}", f"{DECODE} {prefill}", ROUTER)


@pytest.mark.parametrize(("prefill", "decode", "rule"), SGLANG_PAIRS)
def test_what_sglang_refuses_of_two_sides(prefill: str, decode: str, rule: str) -> None:
    assert set(together(f"{PREFILL_SIDE} {prefill}", f"{DECODE_SIDE} {decode}", ROUTES)) == {rule}


@pytest.mark.parametrize(
    ("prefill", "decode"),
    [
        ("--pp-size 4", ""),  # decode may have one
        ("", "--dcp-size 8"),  # and its own spread where prefill has none
        ("--kv-cache-dtype bf16", "--kv-cache-dtype auto"),
        ("--model-path /models/Kimi-K3", ""),
        ("--page-size 64", ""),  # what decode takes by itself is not known
        ("--tp-size 16 --attn-dp-size 2", ""),
        ("--kv-cache-dtype $KV", "--kv-cache-dtype fp8_e4m3"),
        ("--speculative-algorithm DSPARK", ""),
    ],
)
def test_what_sglang_lets_differ(prefill: str, decode: str) -> None:
    assert not together(f"{PREFILL_SIDE} {prefill}", f"{DECODE_SIDE} {decode}", ROUTES)


def test_two_releases_and_two_engines() -> None:
    image = "docker run --network host --ipc host vllm/vllm-openai:v0.%s "
    words = PREFILL.partition("serve ")[2], DECODE.partition("serve ")[2]
    found = together(f"{image % '33.0'}{words[0]}", f"{image % '32.0'}{words[1]}", ROUTER)
    assert set(found) == {"vllm-pair-version"} and "0.33.0" in found["vllm-pair-version"]
    assert "two-engines" in together(PREFILL, DECODE_SIDE, ROUTER)


def test_a_draft_is_compared_by_the_releases_that_do() -> None:
    texts = (f"{PREFILL} {DRAFT}", DECODE, ROUTER)
    for version, told in (("0.33.0", True), ("0.29.0", False)):
        found = {one.rule for one in examine("\n".join(texts), version=version).together}
        assert ("vllm-pair-draft" in found) is told


# --- routers, machines, nodes -----------------------------------------------------------------------------------------


def test_a_pair_without_a_router_is_told_so() -> None:
    found = examine(f"{PREFILL}\n{DECODE}")
    assert {one.rule for one in found.together} == {"no-router"}
    for other in (ROUTER, "python3 tests/toy_proxy_server.py --port 8000", "python3 -m dynamo.frontend"):
        assert "no-router" not in together(PREFILL, DECODE, other)
    assert "no-router" not in together(PREFILL, PREFILL)


def test_a_router_must_name_the_ports_that_are_there() -> None:
    assert not together(PREFILL_SIDE, DECODE_SIDE, ROUTES)
    wrong = together(PREFILL_SIDE, DECODE_SIDE, ROUTES.replace("30100", "30101"))
    assert wrong == {"router-port": "the router's --decode names port 30101 and decode listens on 30100"}
    assert set(together(PREFILL_SIDE, DECODE_SIDE, ROUTES.replace("8998", "8999"))) == {"router-bootstrap"}
    assert set(together(PREFILL_SIDE, DECODE_SIDE, ROUTES.replace(" 8998", ""))) == {"router-bootstrap"}
    assert not together(PREFILL_SIDE, DECODE_SIDE, ROUTES.replace("http://a:30000", "$PREFILL"))


def test_two_of_one_machine() -> None:
    same = together(f"{PREFILL} &", DECODE.replace("8002", "8001"), ROUTER.replace("8002", "8001"))
    assert set(same) == {"same-port", "same-side-channel", "same-gpus"}
    apart = f"CUDA_VISIBLE_DEVICES=0,1 {PREFILL} &\nCUDA_VISIBLE_DEVICES=2,3 VLLM_NIXL_SIDE_CHANNEL_PORT=1 {DECODE} &"
    assert not together(apart, ROUTER)
    assert "same-gpus" in together(apart.replace("2,3", "1,2"), ROUTER)
    assert not together(f"ssh a {PREFILL} &", f"ssh b {DECODE} &", ROUTER)
    assert not together(f"srun {PREFILL} &", f"srun {DECODE} &", ROUTER)
    assert not together('if [ "$1" = p ]; then', f"{PREFILL} &", "else", f"{DECODE} &", "fi", ROUTER)


SERVICES = """
services:
  a: {image: vllm/vllm-openai:v0.33.0, command: [m, --port, "8000"]%s}
  b: {image: vllm/vllm-openai:v0.33.0, command: [m, --port, "8000"]%s}
"""


def test_two_services_of_a_compose_file() -> None:
    host = ", network_mode: host"
    assert "same-port" in together(SERVICES % (host, host))
    assert "same-port" not in together(SERVICES % ("", ""))
    assert "same-port" in together(SERVICES % (', ports: ["80:8000"]', ', ports: ["127.0.0.1:80:8000"]'))
    assert "same-port" not in together(SERVICES % (', ports: ["80:8000"]', ', ports: ["81:8000"]'))
    assert "same-port" not in together(SERVICES % (f"{host}, profiles: [a]", f"{host}, profiles: [b]"))


def test_nodes_of_one_server() -> None:
    node = f"{SGLANG} --nnodes 2 --dist-init-addr a:1 --node-rank"
    assert not together(f"{node} 0", f"{node} 1")
    assert set(together(f"{node} 0", f"{node} 0")) == {"same-rank"}
    assert set(together(f"{node} 0", f"{node} 1 --mem-fraction-static 0.8")) == {"nodes-differ"}
    assert set(together(f"{node} 0", f"{node} 1".replace("a:1", "b:1"))) == {"nodes-differ"}
    more = node.replace("--nnodes 2", "--nnodes 3")
    assert set(together(f"{more} 0", f"{more} 2")) == {"missing-node"}
    two = node.replace("a:1", "b:1")
    assert not together(f"{node} 0", f"{node} 1", f"{two} 0", f"{two} 1")


# --- the rules --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_rules_about_pairs_name_flags_that_there_are(engine: str) -> None:
    flags = release(engine, versions(engine)[-1]).flags
    asked = [rule.id for rule in pair_rules(engine)]
    assert len(asked) == len(set(asked)) >= 12
    for rule in pair_rules(engine):
        assert not rule.flag or rule.flag in flags, rule.id
        assert rule.why.endswith(".") and rule.fix.endswith(".") and rule.source
        if rule.standard and rule.flag and rule.standard not in ("model", "main", "none", "False"):
            assert str(flags[rule.flag].default) == rule.standard, rule.id


def test_every_rule_is_tried_here() -> None:
    text = Path(__file__).read_text()
    told = [rule.id for engine in ("vllm", "sglang") for rule in pair_rules(engine)]
    for name in [*told, *(rule.id for rule in group_rules())]:
        assert name in text or name == "vllm-pair-model", name
    assert "vllm-pair-model" in together(PREFILL, DECODE.replace("moonshotai/", "/models/"), ROUTER)


# --- how it is shown --------------------------------------------------------------------------------------------------


def test_one_command_is_answered_as_before() -> None:
    text = f"{SGLANG} --speculative-algorithm DSPARK"
    ran = k3("recipe", "--from", text, "--hardware", "b300", "--json")
    assert json.loads(ran.out) == dump(diagnose(text, gpu("b300")))


def test_several_commands_as_json() -> None:
    text = f"{PREFILL}\n{DECODE}"
    ran = k3("recipe", "--from", text, "--json")
    assert ran.code == 1
    assert load(Examination, json.loads(ran.out)) == examine(text)


def test_a_file_with_several_commands(tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    file.write_text(f"{PREFILL} -tp 4 -dcp 4 &\n{DECODE}\n{ROUTER}\n")
    ran = k3("recipe", "--from", f"@{file}", "--hardware", "b300")
    assert ran.code == 1
    for said in ("3 commands", "prefill (line 1)", "decode (line 2)", "router (line 3)", "vllm-pair-dcp", "same-gpus"):
        assert said in ran.out, ran.out
    assert ran.out.count("no hardware") == 0


def test_several_commands_are_not_translated() -> None:
    ran = k3("recipe", "--from", f"{PREFILL}\n{DECODE}", "--hardware", "b300", "--translate")
    assert ran.code == 2 and "one is translated at a time" in ran.err
