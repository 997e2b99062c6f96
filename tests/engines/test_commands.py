"""Our commands and our reading of words, against the argument parsers of real engines."""

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from k3stack.engines.installed import ask, take_snapshot
from k3stack.engines.releases import from_data, release
from k3stack.engines.rules import rules
from k3stack.recipe.asking import check, engine_words
from k3stack.recipe.build import build
from k3stack.recipe.choice import Choice, refused
from k3stack.recipe.deployment import Deployment
from k3stack.recipe.render import Form, render
from tests.engines.venvs import ROOT, engine_python
from tests.engines_room.cases import CASES
from tests.recipe.product import product
from tests.recipe.test_render import NAMED, deployment, manifests, pods

pytestmark = pytest.mark.engines

NEWEST = [("vllm", "0.33.0"), ("sglang", "0.5.23")]


def shaped_by(made: Deployment) -> set[str]:
    """The rules that had a say in a deployment's commands."""
    used = {made.image_reason.rule}
    for role in made.roles:
        for flag in role.command.flags:
            used |= {flag.reason.rule, *(reason.rule for reason in flag.also)}
        used |= {variable.reason.rule for variable in role.command.environment}
    return used


def sample(engine: str, version: str) -> list[Deployment]:
    """Deployments of this release in which every rule that can apply to it has its say, and at least sixty."""
    found: list[Deployment] = []
    seen: set[str] = set()
    for number, choice in enumerate(_allowed(engine, version)):
        made = build(choice)
        new = shaped_by(made) - seen
        if new or (number % 29 == 0 and len(found) < 120):
            seen |= new
            found.append(made)
    needed = {rule.id for rule in rules(engine) if _shapes(rule, version)}
    assert needed - seen <= {"vllm-no-prefix-caching"}, needed - seen
    assert len(found) >= 60
    return found


def _allowed(engine: str, version: str) -> Iterator[Choice]:
    return (one for one in product() if (one.engine, one.version) == (engine, version) and not refused(one))


def _shapes(rule: Any, version: str) -> bool:
    from packaging.specifiers import SpecifierSet

    amd_elsewhere = rule.id.startswith("sglang") and "amd" in rule.when.get("vendor", [])
    applies = SpecifierSet(rule.when.get("versions", ""), prereleases=True).contains(version)
    return bool((rule.set or rule.env or rule.image) and not rule.is_check and applies and not amd_elsewhere)


@pytest.mark.parametrize(("engine", "version"), NEWEST)
def test_commands_of_every_rule_are_taken_by_the_real_parser(engine: str, version: str) -> None:
    python = str(engine_python(engine, version))
    made = sample(engine, version)
    roles = [role for one in made for role in one.roles if role.name != "router"]
    answer = ask(engine, [engine_words(role) for role in roles], python)
    bad = [(role.command.words(), error) for role, error in zip(roles, answer.errors, strict=True) if error]
    print(f"{len(made)} deployments, {len(roles)} commands: {answer.by}")
    assert not bad and len(roles) >= 60


@pytest.mark.parametrize(("engine", "version"), NEWEST)
def test_the_snapshot_is_what_the_parser_says_today(engine: str, version: str) -> None:
    taken = from_data(take_snapshot(engine, str(engine_python(engine, version))))
    shipped = release(engine, version)
    assert taken.flags == shipped.flags
    assert taken.variables == shipped.variables


@pytest.mark.parametrize(("engine", "version"), NEWEST)
def test_we_read_words_as_the_parser_does(engine: str, version: str) -> None:
    cases = [(words, taken) for one, words, taken in CASES if one == engine]
    answer = ask(engine, [shlex.split(words) for words, _ in cases], str(engine_python(engine, version)))
    for (words, taken), error in zip(cases, answer.errors, strict=True):
        assert (error is None) == taken, (words, error)


@pytest.mark.parametrize(("engine", "version"), NEWEST)
def test_check_says_that_the_engine_answered(engine: str, version: str) -> None:
    made = sample(engine, version)[0]
    verdict = check(made, python=str(engine_python(engine, version)))
    assert verdict.yes and version in verdict.by


TOOLS = ["kubernetes-validate==1.37.0", "skypilot==0.14.1"]


@pytest.fixture(scope="module")
def tools() -> Path:
    """A Python with the validators that are too heavy for the development environment."""
    from tests.engines import venvs

    folder = venvs.engine_python("skypilot", "0.14.1").parent
    uv = venvs._uv()
    subprocess.run([uv, "pip", "install", "--quiet", "--python", str(folder / "python"), TOOLS[0]], check=True)
    return folder / "python"


def in_tools(tools: Path, code: str, given: object) -> str:
    ran = subprocess.run(
        [str(tools), "-c", code], input=json.dumps(given), capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    return ran.stdout


KUBERNETES = """
import json, sys, kubernetes_validate
for document in json.load(sys.stdin):
    kubernetes_validate.validate(document, "1.37", strict=True)
print("valid")
"""


def as_pod(template: dict[str, Any]) -> dict[str, Any]:
    """A pod template as a pod."""
    metadata = {"name": "p", **template["metadata"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def test_manifests_are_valid_kubernetes(tools: Path) -> None:
    """A LeaderWorkerSet is no kind of Kubernetes itself (tests/recipe/test_lws.py): its pods are checked as pods."""
    documents: list[dict[str, Any]] = []
    for name in NAMED:
        for document in manifests(name):
            if document["kind"] == "LeaderWorkerSet":
                documents += [as_pod(pod) for pod in pods(document)]
            else:
                documents.append(document)
    assert len(documents) > 20 and "valid" in in_tools(tools, KUBERNETES, documents)


SKYPILOT = """
import json, sys, tempfile, os
import sky
for text in json.load(sys.stdin):
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        os.mkdir("k3-patches")
        with open("task.yaml", "w") as file:
            file.write(text)
        task = sky.Task.from_yaml("task.yaml")
        assert task.num_nodes >= 1 and task.run
        os.chdir("/")
print("valid")
"""


def test_tasks_are_valid_skypilot(tools: Path) -> None:
    texts = [render(deployment(name), Form.SKYPILOT) for name in NAMED if "AMD" not in name]
    assert all(yaml.safe_load(text)["name"] == "k3" for text in texts)
    filled = [text.replace("HF_TOKEN: null", "HF_TOKEN: x") for text in texts]
    assert "valid" in in_tools(tools, SKYPILOT, filled)


def test_an_engine_that_is_not_there_is_an_error() -> None:
    from k3stack.errors import UnavailableError

    with pytest.raises(UnavailableError):
        ask("vllm", [["m"]], python=sys.executable)
