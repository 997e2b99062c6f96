"""Texts that people copy, in the shapes in which they come: which engines are found in them, and with what."""

import contextlib
import time

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from k3stack.errors import InputError, K3Error
from k3stack.hardware.table import gpu
from k3stack.recipe.copied import Copied, take_all_apart
from k3stack.recipe.doctor import diagnose
from k3stack.recipe.examine import examine

MODEL = "moonshotai/Kimi-K3"


def words(copied: Copied) -> str:
    return " ".join(copied.words)


ONE = [
    # what stands in front
    ("uv run --with vllm==0.33.0 vllm serve m -tp 8  # eight GPUs", "vllm", "m -tp 8"),
    ("uvx --from vllm vllm serve m -tp 8", "vllm", "m -tp 8"),
    ("conda run -n k3 --no-capture-output vllm serve m --max_model_len=9", "vllm", "m --max_model_len=9"),
    ("A=1 nohup numactl --cpunodebind=0 sglang serve --tp 8 > out.log 2>&1 &", "sglang", "--tp 8"),
    ("sudo -E env A=1 timeout 3600 /opt/bin/vllm serve m", "vllm", "m"),
    ("python3 -u -m sglang.launch_server --model-path m --port ${PORT:-30000} 2>&1 | tee log", "sglang", None),
    ("python -m vllm.entrypoints.openai.api_server --model m", "vllm", "--model m"),
    ("python -m vllm.entrypoints.cli.main serve m", "vllm", "m"),
    ("(base) root@node-0:/workspace# vllm serve m", "vllm", "m"),
    ("$ vllm serve m", "vllm", "m"),
    ("ssh node1 'cd /srv && nohup vllm serve m -tp 8 > log 2>&1 &'", "vllm", "m -tp 8"),
    ("tmux new-session -d -s k3 'A=1 vllm serve m'", "vllm", "m"),
    ("kubectl exec -it pod-0 -- bash -c \"vllm serve m\"", "vllm", "m"),
    ("docker exec -d k3 vllm serve m", "vllm", "m"),
    ("docker compose exec k3 sglang serve --tp 8", "sglang", "--tp 8"),
    ("apptainer exec --nv docker://vllm/vllm-openai:v0.32.0 vllm serve m", "vllm", "m"),
    ("srun --container-image=docker://lmsysorg/sglang:v0.5.23 bash -c 'sglang serve --tp 8'", "sglang", "--tp 8"),
    ("ray job submit -- vllm serve m -tp 16", "vllm", "m -tp 16"),
    # containers
    ("docker run -itd -p80:80 -eA=1 --gpus device=0 vllm/vllm-openai:v0.33.0 --model m", "vllm", "--model m"),
    ("docker run --entrypoint python3 lmsysorg/sglang:v0.5.23 -m sglang.launch_server --tp 8", "sglang", "--tp 8"),
    ("docker run --entrypoint bash vllm/vllm-openai:v0.33.0 -c 'vllm serve m'", "vllm", "m"),
    ("docker run prom/prometheus\ndocker run lmsysorg/sglang:v0.5.23 sglang serve --tp 8", "sglang", "--tp 8"),
    ('FROM vllm/vllm-openai:v0.33.0\nENV A=1\nENTRYPOINT ["vllm", "serve"]\nCMD ["m", "-tp", "8"]', "vllm", "m -tp 8"),
    # the shell
    ("vllm serve m \\\r\n  -tp 8 \\\r\n  --seed 1\r\n", "vllm", "m -tp 8 --seed 1"),
    ("docker run `\n  vllm/vllm-openai:v0.33.0 `\n  --model m", "vllm", "--model m"),
    ('ARGS=(-tp 8)\nARGS+=(--seed "1 2")\nvllm serve m "${ARGS[@]}"', "vllm", "m -tp 8 --seed 1 2"),
    ('C=(\n vllm serve m # eager\n -tp 8\n "${N[@]}"\n)\n"${P[@]}" "${C[@]}" > >(tee x) 2>&1 &', "vllm", "m -tp 8"),
    ("$LAUNCHER vllm serve m", "vllm", "m"),
    ("J=$(cat <<E\n{} # don't\nE\n)\nprintf '%q ' x\nvllm serve m", "vllm", "m"),
    ('if [[ "$A" =~ ^(x|y)$ ]]; then echo; fi\n(( N > 3 )) && vllm serve m', "vllm", "m"),
    ("python3 - <<'P'\nprint(\"it's\")\nP\nvllm serve m", "vllm", "m"),
    ('A="-tp 8"\nA="$A --seed 1"\nvllm serve m $A', "vllm", "m -tp 8 --seed 1"),
    ('A="-tp 8"\neval "vllm serve m $A"', "vllm", "m -tp 8"),
    ('CMD="vllm serve m -tp 8"\nexec $CMD', "vllm", "m -tp 8"),
    ("M=${M:-a/b}\nvllm serve ${M} -tp ${TP:=8} --seed $SEED", "vllm", "a/b -tp 8 --seed ${SEED}"),
    ("vllm serve <model> -tp <N> --port {{PORT}} > x", "vllm", "<model> -tp <N> --port {{PORT}}"),
    ("cat <<'EOF' > run.sh\nvllm serve m -tp 8\nEOF\nsh run.sh", "vllm", "m -tp 8"),
    ("vllm bench serve --model m\nvllm serve m\ncurl http://localhost:8000/v1/models", "vllm", "m"),
    ("serve() {\n  vllm serve m \"$@\"\n}\nserve", "vllm", "m"),
    ("for i in 0 1; do vllm serve m --port $((8000 + i)) & done", "vllm", "m --port $((8000 + i))"),
    # other files
    ("[Service]\nEnvironment=\"A=1\"\nExecStart=/opt/vllm serve m -tp 8\nRestart=always", "vllm", "m -tp 8"),
    ("[program:k3]\ncommand = /opt/vllm serve m", "vllm", "m"),
    ("serve:\n\t@vllm serve m -tp 8", "vllm", "m -tp 8"),
    ('["vllm", "serve", "m", "-tp", "8"]', "vllm", "m -tp 8"),
    ("Don't panic, run\n\n```bash\nvllm serve m\n```\n\nand it's done.", "vllm", "m"),
    # text programs
    ("vllm serve m \u2014tensor-parallel-size 8 \u2013seed 1", "vllm", "m --tensor-parallel-size 8 --seed 1"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "engine", "rest"), ONE, ids=range(len(ONE)))
def test_a_command_is_found_in_every_shape(text: str, engine: str, rest: str | None) -> None:
    found = take_all_apart(text)
    assert [one.engine for one in found] == [engine]
    if rest is not None:
        assert words(found[0]) == rest


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ("A=1 B='x y' vllm serve m", {"A": "1", "B": "x y"}),
        ("export A=1 B=2\nC=3\nvllm serve m", {"A": "1", "B": "2"}),
        ("set -a\nA=1\nset +a\nvllm serve m", {"A": "1"}),
        ("export A=1\nunset A\nvllm serve m", {}),
        ("env A=1 vllm serve m", {"A": "1"}),
        ("export A=1\ndocker run -e A -e B=2 -e C vllm/vllm-openai:v0.33.0 m", {"A": "1", "B": "2"}),
        ("srun --export=ALL,A=1 vllm serve m", {"A": "1"}),
        ("A=0\nif x; then export A=1; vllm serve m; fi", {"A": "1"}),
        ("export A=1\n(export A=2)\nvllm serve m", {"A": "1"}),
    ],
)
def test_the_environment_is_what_the_engine_gets(text: str, given: dict[str, str]) -> None:
    assert take_all_apart(text)[0].environment == given


def test_branches_start_from_what_held_before_the_first() -> None:
    text = """
    export A=0
    case "$1" in
      prefill) export A=1; vllm serve p ;;
      decode | other) vllm serve d ;;
    esac
    if [ "$R" = 0 ]; then export B=1; vllm serve x; else vllm serve y; fi
    """
    found = {words(one): (one.place, one.environment) for one in take_all_apart(text)}
    assert found == {
        "p": ("prefill", {"A": "1"}),
        "d": ("decode|other", {"A": "0"}),
        "x": ("", {"A": "0", "B": "1"}),
        "y": ("", {"A": "0"}),
    }


COMPOSE = """
x-common: &common
  image: vllm/vllm-openai:${TAG:-v0.33.0}
  network_mode: host
  ipc: host
  environment: &env
    A: 1
    HF_TOKEN:
services:
  prefill:
    <<: *common
    command:
      - m
      - --port
      - 8001
      - --seed=$$x
  decode:
    <<: *common
    environment: [A=2, "B=${B:-3}"]
    command: >
      m --port 8002
      --json '{"a": 1}'
  grafana:
    image: grafana/grafana
"""


def test_a_compose_file_with_anchors() -> None:
    prefill, decode = take_all_apart(COMPOSE)
    assert (prefill.place, words(prefill), prefill.environment) == ("prefill", "m --port 8001 --seed=$x", {"A": "1"})
    assert decode.words == ("m", "--port", "8002", "--json", '{"a": 1}')
    assert decode.environment == {"A": "2", "B": "3"} and decode.image == "vllm/vllm-openai:v0.33.0"
    assert prefill.host == decode.host == "compose" and decode.shares_ports
    assert decode.docker and decode.docker.host_ipc and not decode.docker.shared_memory


POD = """
apiVersion: v1
kind: Pod
metadata: {name: k3}
spec:
  containers:
  - name: engine
    image: vllm/vllm-openai:v0.31.0
    command: [/bin/bash, -c]
    args:
    - |
      set -e
      vllm serve m --tensor-parallel-size $(TP) \\
        --seed 1
    env:
    - {name: TP, value: "8"}
    - name: HF_TOKEN
      valueFrom: {secretKeyRef: {name: hf, key: token}}
"""


def test_a_pod_with_a_script_and_variables() -> None:
    (found,) = take_all_apart(POD)
    assert words(found) == "m --tensor-parallel-size 8 --seed 1"
    assert (found.place, found.image, found.environment) == ("k3/engine", "vllm/vllm-openai:v0.31.0", {"TP": "8"})


def test_the_same_pod_as_json() -> None:
    import json

    document = yaml.safe_load(POD)
    assert words(take_all_apart(json.dumps(document))[0]) == words(take_all_apart(POD)[0])


def test_a_task_with_variables_and_an_image() -> None:
    text = "resources: {image_id: 'docker:vllm/vllm-openai:v0.33.0'}\nenvs: {M: m}\nrun: |\n  vllm serve $M -tp 8\n"
    (found,) = take_all_apart(text)
    assert (words(found), found.image) == ("m -tp 8", "vllm/vllm-openai:v0.33.0")


def rules(text: str) -> set[str]:
    found = examine(text)
    return {one.rule for role in found.roles for one in role.diagnosis.findings} | {one.rule for one in found.together}


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve m\n  --trust-remote-code",
        "vllm serve m \\\n\n  --trust-remote-code",
        "docker run vllm/vllm-openai:v0.33.0 m \\\n  # eight\n  --trust-remote-code",
    ],
)
def test_a_command_that_is_cut_off_is_read_whole_and_told(text: str) -> None:
    assert "cut-command" in rules(text) and "vllm-remote-code" not in rules(text)
    assert "cut-command" not in rules(text.replace("\n\n", "\n").replace("# eight\n", "").replace("m\n", "m \\\n"))


def test_sizes_that_are_not_known_are_not_held_against_a_command() -> None:
    for size in ("$TP", "<N>", "{{TP}}"):
        found = examine(f"vllm serve {MODEL} --tensor-parallel-size {size}", gpu("b300")).only
        assert found is not None and not any("floor" in one.rule or "heads" in one.rule for one in found.findings)
    assert "vllm-floor-8" in {one.rule for one in diagnose(f"vllm serve {MODEL} -tp 4", gpu("b300")).findings}


def test_variables_of_the_script_itself_are_not_the_engines() -> None:
    text = f"VLLM_PORT=8001\nVLLM_ARGS='--seed 1'\nVLLM_LIST=(--seed 1)\nvllm serve {MODEL} --port $VLLM_PORT"
    assert "not-exported" not in rules(text)


def test_variables_that_stay_in_the_shell_are_told_once() -> None:
    found = examine(f"VLLM_ENGINE_READY_TIMEOUT_S=3600\nvllm serve {MODEL}").only
    assert found is not None
    told = [one for one in found.findings if "VLLM_ENGINE_READY_TIMEOUT_S" in one.what]
    assert [one.rule for one in told] == ["not-exported"]


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("vllm serve m \\ \n --seed 1", "broken-line"),
        ("vllm serve m \u2014seed 1", "typographic"),
        ("vllm serve m --speculative-config \u201c{}\u201d", "typographic"),
    ],
)
def test_what_became_of_characters_on_their_way(text: str, rule: str) -> None:
    assert rule in rules(text)
    assert rule not in rules("# a note \u2014 with a dash\nvllm serve m --seed 1")


def test_quotes_that_a_shell_takes_away() -> None:
    found = examine('vllm serve m --speculative-config {"method":"dspark"}').only
    assert found is not None and any("single quotes" in one.fix for one in found.findings)


def test_settings_in_a_file_are_not_called_missing() -> None:
    found = examine("vllm serve --config k3.yaml").only
    assert found is not None
    assert any("was not read" in text for text in found.assumed)
    assert not any(one.what.startswith("--") for one in found.findings)


@pytest.mark.parametrize(
    "text", ["pip install hf_transfer\nvllm serve m", "vllm serve m --x task-runner-one disk-usage-x"]
)
def test_a_word_is_no_token(text: str) -> None:
    assert "secret" not in rules(text)


NINE = {number: ", ".join([f"*a{number - 1}"] * 9) for number in range(1, 9)}
HOSTILE = [
    "services:\n  a0: &a0 {command: [x]}\n" + "".join(f"  a{n}: &a{n} {{command: [{NINE[n]}]}}\n" for n in NINE),
    "a0: &a0 {}\n" + "\n".join(f"a{n}: &a{n}\n  <<: [{NINE[n]}]\n  k{n}: v" for n in NINE),
    "a: &a [*a]\nb: vllm serve m",
    "[" * 20_000,
    "A=x\n" + "A=$A$A\n" * 60 + "vllm serve $A",
    "vllm serve m " + "${A[@]} " * 5_000,
    "bash -c " + '"' * 3_000,
    "sudo " + "x " * 30_000 + "vllm serve m",
    "vllm serve m " + "$(" * 5_000 + ")" * 5_000,
    "cat <<A <<A <<A\nvllm serve m\nA\n" * 500,
    "vllm serve m --a <" + "<A" * 10_000,
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_a_text_made_to_hold_us_up_does_not(text: str) -> None:
    begin = time.monotonic()
    with contextlib.suppress(K3Error):
        examine(text[:65_536])
    assert time.monotonic() - begin < 5


_BITS = st.sampled_from(
    "vllm sglang serve m docker run -e A=1 vllm/vllm-openai:v0.33.0 bash -c ' \" \\\n ; & && | ( ) { } $A ${A ${A:-b} "
    "$( case esac in if then else fi <<E E > <N> A=( ) [ ] --port 8 services: image: command: - &a *a # : ```".split()
)  # fmt: skip


@given(st.lists(_BITS, max_size=30).map(" ".join))
def test_any_mixture_is_read_or_refused(text: str) -> None:
    try:
        take_all_apart(text)
    except K3Error:
        return


@given(st.lists(st.text(st.characters(exclude_characters="\n\r", exclude_categories=["Cs"]), min_size=1), max_size=6))
def test_quoted_words_come_back_as_they_were(given_words: list[str]) -> None:
    import shlex

    text = shlex.join(["vllm", "serve", "m", *given_words])
    try:
        (found,) = take_all_apart(text)
    except InputError:
        pytest.fail(text)
    assert found.words == ("m", *given_words)


def test_more_commands_than_any_deployment_has_are_refused_at_once() -> None:
    """Twenty thousand services that merge one anchor fit into a page's paste."""
    text = "x: &x {command: vllm serve m}\nservices:\n" + "".join(f"  s{n}:\n    <<: *x\n" for n in range(2_000))
    began = time.monotonic()
    with pytest.raises(InputError, match="at most 256"):
        examine(text)
    assert time.monotonic() - began < 20
