"""Every form of a deployment, each read by the tool that it is for."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import compose_spec
import pytest
import yaml

from k3stack.errors import NotKnownError
from k3stack.hardware.table import gpu
from k3stack.plan.layout import KvDtype, Workload
from k3stack.recipe.build import build
from k3stack.recipe.choice import Choice, Feature, Goal, Serving, kv_standard, standard_version
from k3stack.recipe.client import client_snippets
from k3stack.recipe.deployment import Deployment
from k3stack.recipe.render import Form, render
from k3stack.recipe.suggest import suggest
from k3stack.spec.schemes import Scheme
from k3stack.values import dump, load

SHELLCHECK = str(Path(sys.executable).with_name("shellcheck"))

NAMED = {
    "one node": ("vllm", "b300", Scheme.NVFP4_MIXED, Serving.UNIFIED, Goal.BALANCED, ()),
    "a release": ("vllm", "b300", Scheme.MXFP4, Serving.UNIFIED, Goal.BALANCED, (Feature.DSPARK,)),
    "two nodes": ("vllm", "b200", Scheme.MXFP4, Serving.UNIFIED, Goal.LOW_LATENCY, ()),
    "experts spread": ("vllm", "gb300", Scheme.MXFP4, Serving.UNIFIED, Goal.HIGH_THROUGHPUT, ()),
    "prefill and decode": ("vllm", "gb300", Scheme.NVFP4_MIXED, Serving.DISAGGREGATED, Goal.BALANCED, ()),
    "AMD": ("vllm", "mi355x", Scheme.MXFP4, Serving.UNIFIED, Goal.BALANCED, (Feature.TEXT_ONLY,)),
    "SGLang": ("sglang", "b300", Scheme.NVFP4_MIXED, Serving.UNIFIED, Goal.BALANCED, (Feature.DSPARK,)),
    "SGLang, four nodes": ("sglang", "h100", Scheme.MXFP4, Serving.UNIFIED, Goal.HIGH_THROUGHPUT, ()),
    "SGLang, roles": ("sglang", "gb200", Scheme.MXFP4, Serving.DISAGGREGATED, Goal.HIGH_THROUGHPUT, (Feature.DSPARK,)),
    "SGLang on AMD": ("sglang", "mi350x", Scheme.MXFP4, Serving.UNIFIED, Goal.BALANCED, ()),
}


def deployment(name: str) -> Deployment:
    engine, hardware, scheme, serving, goal, features = NAMED[name]
    kind = gpu(hardware)
    known = suggest(engine, kind, serving, goal)
    workload = Workload(kv_dtype=kv_standard(engine, kind))
    version = standard_version(engine, kind, scheme)
    return build(Choice(engine, version, kind, scheme, known.layout, workload, goal, serving, known.prefill, features))


def shellcheck(script: str, shell: str) -> None:
    ran = subprocess.run([SHELLCHECK, "-s", shell, "-"], input=script, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize(("form", "shell"), [(Form.SHELL, "sh"), (Form.DOCKER, "sh"), (Form.SLURM, "bash")])
def test_scripts_pass_shellcheck(name: str, form: Form, shell: str) -> None:
    script = render(deployment(name), form)
    shellcheck(script, shell)
    assert "HF_TOKEN=" not in script


@pytest.mark.parametrize("name", [name for name in NAMED if "AMD" not in name])
def test_the_run_of_a_skypilot_task_passes_shellcheck(name: str) -> None:
    task = yaml.safe_load(render(deployment(name), Form.SKYPILOT))
    made = deployment(name)
    assert task["num_nodes"] == sum(role.nodes for role in made.roles if role.name != "router")
    assert task["secrets"] == {"HF_TOKEN": None} and "ports" not in str(task["resources"])
    shellcheck("#!/bin/bash\n" + task["run"], "bash")


def test_skypilot_says_when_it_has_no_name_for_a_gpu() -> None:
    with pytest.raises(NotKnownError, match="mi355x"):
        render(deployment("AMD"), Form.SKYPILOT)


_REQUIRED = {"K3_PATCH_DIR": "/patches"}


def filled(text: str) -> str:
    """Interpolated as docker compose does before it looks: the default, or for a value that is required an address."""

    def value(found: re.Match[str]) -> str:
        return found[2] or _REQUIRED.get(found[1], "10.0.0.1")

    with_defaults = re.sub(r"\$\{(\w+):(?:-([^}]*)|\?[^}]*)\}", value, text)
    return with_defaults.replace("$HOME", "/root")


@pytest.mark.parametrize("name", NAMED)
def test_compose_files_follow_the_specification(name: str) -> None:
    text = render(deployment(name), Form.COMPOSE)
    read = compose_spec.PyCompose.from_yaml(filled(text))
    read.validate()
    services = yaml.safe_load(text)["services"]
    assert set(read.service_names()) == set(services)
    made = deployment(name)
    for role in made.roles:
        assert (f"{role.name}-worker" in services) == (role.nodes > 1)
        service = services[role.name]
        if made.several_nodes:
            assert service["network_mode"] == "host" and "ports" not in service
        else:
            assert service["ports"] == [f"127.0.0.1:{role.port}:{role.port}"]


def test_a_compose_worker_is_headless_and_the_head_is_not() -> None:
    services = yaml.safe_load(render(deployment("two nodes"), Form.COMPOSE))["services"]
    assert "--headless" in services["server-worker"]["command"] and "--headless" not in services["server"]["command"]


def manifests(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(render(deployment(name), Form.KUBERNETES)))


def pods(document: dict[str, Any]) -> list[dict[str, Any]]:
    if document["kind"] == "Deployment":
        return [document["spec"]["template"]]
    template = document["spec"]["leaderWorkerTemplate"]
    return [template[part] for part in ("leaderTemplate", "workerTemplate") if part in template]


@pytest.mark.parametrize("name", NAMED)
def test_manifests_hold_what_serving_k3_needs(name: str) -> None:
    made = deployment(name)
    documents = manifests(name)
    sets = {one["metadata"]["name"]: one for one in documents if one["kind"] == "LeaderWorkerSet"}
    assert set(sets) == {f"k3-{role.name}" for role in made.roles if role.name != "router"}
    for role in made.roles:
        if role.name == "router":
            continue
        template = sets[f"k3-{role.name}"]["spec"]["leaderWorkerTemplate"]
        assert template["size"] == role.nodes and ("leaderTemplate" in template) == (role.nodes > 1)
        leading = template.get("leaderTemplate", template["workerTemplate"])["spec"]
        leader = leading["containers"][0]
        probe = leader["startupProbe"]
        assert probe["periodSeconds"] * probe["failureThreshold"] == 120 * 60
        shared = next(one for one in leading["volumes"] if one["name"] == "shm")
        assert shared["emptyDir"]["medium"] == "Memory"
        limits = leader["resources"]["limits"]
        assert limits["amd.com/gpu" if made.vendor == "amd" else "nvidia.com/gpu"] == str(role.gpus_per_node)
        assert ("rdma/hca" in limits) == (made.several_nodes and not made.rack)
        token = next(one for one in leader["env"] if one["name"] == "HF_TOKEN")
        assert set(token) == {"name", "valueFrom"}
    for document in documents:
        if document["kind"] == "Service":
            assert document["spec"]["type"] == "ClusterIP"


def test_worker_pods_know_rank_and_leader() -> None:
    leader, worker = (pod["spec"]["containers"][0]["command"][2] for pod in pods(manifests("two nodes")[0]))
    for text in (leader, worker):
        assert '--node-rank "$LWS_WORKER_INDEX"' in text and '--master-addr "$LWS_LEADER_ADDRESS"' in text
    assert "--headless" in worker and "--headless" not in leader
    shellcheck("#!/bin/sh\n" + leader.replace("$LWS_", "$HOME_"), "sh")


def test_a_router_reaches_every_decode_door() -> None:
    made = deployment("prefill and decode")
    decode = next(role for role in made.roles if role.name == "decode")
    assert decode.doors == decode.nodes == 4
    text = str(manifests("prefill and decode")[-2])
    assert text.count("--decode") == 4 and "k3-decode-0-3.k3-decode:8002" in text
    assert "--intra-node-data-parallel-size 4" in text


def test_the_routers_name_the_ports_of_the_roles() -> None:
    made = deployment("SGLang, roles")
    ports = {role.name: role.port for role in made.roles}
    assert ports == {"prefill": 30000, "decode": 30100, "router": 8000}
    assert made.endpoint.command.flag("prefill") == ["http://{prefill}:30000", "8998"]
    assert made.roles[0].command.flag("disaggregation-bootstrap-port") == 8998
    vllm = deployment("prefill and decode")
    assert {role.name: role.port for role in vllm.roles} == {"prefill": 8001, "decode": 8002, "router": 8000}
    sides = [role.command.variables()["VLLM_NIXL_SIDE_CHANNEL_PORT"] for role in vllm.roles[:2]]
    assert sides == ["5557", "5558"]


@pytest.mark.parametrize("name", NAMED)
def test_json_is_the_deployment(name: str) -> None:
    made = deployment(name)
    assert load(Deployment, json.loads(json.dumps(dump(made)))) == made


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("form", [Form.SHELL, Form.DOCKER])
def test_a_role_or_rank_that_is_not_there_is_refused(name: str, form: Form) -> None:
    script = render(deployment(name), form)
    for arguments in (["nobody", "0"], *([["server", "99"]] if "nodes" in name else [])):
        ran = subprocess.run(["sh", "-c", script, "sh", *arguments], capture_output=True, text=True, check=False)
        assert ran.returncode == 2 and ran.stderr


def test_missing_addresses_are_asked_for() -> None:
    script = render(deployment("two nodes"), Form.SHELL)
    ran = subprocess.run(
        ["sh", "-c", script, "sh", "server", "1"],
        env={"PATH": "/usr/bin:/bin", "K3_ADDRESS": "10.0.0.2"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode != 0 and "K3_HEAD" in ran.stderr


def test_snippets_fit_the_endpoint() -> None:
    text = client_snippets(deployment("one node"))
    assert "timeout=3600" in text and 'model="kimi-k3-nvfp4"' in text and "127.0.0.1:8000" in text
    assert "image_url" in text and "top_p" in text and "temperature=1.0" in text
    assert "image_url" not in client_snippets(deployment("AMD"))
    compile(text.partition("# curl")[0], "snippet", "exec")
    assert "127.0.0.1:8000/v1" in client_snippets(deployment("SGLang, roles"))


def test_notes_say_who_ran_it() -> None:
    assert not any("derived" in note for note in deployment("one node").notes)
    assert not any("derived" in note for note in deployment("SGLang").notes)
    assert any("published" in note for note in deployment("two nodes").notes)
    odd = Choice(
        "vllm", "0.33.0", gpu("b300"), Scheme.MXFP4, suggest("vllm", gpu("b200"), Serving.UNIFIED, Goal.BALANCED).layout
    )
    assert any("derived" in note for note in build(odd).notes)


def test_a_long_context_with_a_large_cache_says_so() -> None:
    layout = suggest("vllm", gpu("b300"), Serving.UNIFIED, Goal.BALANCED).layout
    choice = Choice(
        "vllm", "0.33.0", gpu("b300"), Scheme.MXFP4, layout, Workload(context=500_000, kv_dtype=KvDtype.BF16)
    )
    assert any("fp8" in note for note in build(choice).notes)
