"""Our SGLang commands through SGLang's own validation for K3, and its refusals against our rules."""

import json
from pathlib import Path
from typing import Any

import pytest

from k3stack.engines.check import broken_rules
from k3stack.engines.reading import read
from k3stack.engines.releases import release
from k3stack.hardware.table import gpu
from k3stack.recipe.asking import engine_words
from k3stack.recipe.deployment import Role
from k3stack.spec.declare import declare
from k3stack.spec.published import kimi_k3, kimi_k3_config
from k3stack.spec.schemes import Scheme
from tests.engines.test_commands import sample
from tests.engines.venvs import engine_python, resident

pytestmark = pytest.mark.engines

VERSION = "0.5.23"


@pytest.fixture(scope="module")
def configs(tmp_path_factory: pytest.TempPathFactory) -> dict[Scheme, Path]:
    return config_folders(tmp_path_factory.mktemp("k3"))


def config_folders(home: Path) -> dict[Scheme, Path]:
    """Folders with config.json of K3 in each scheme, for an engine that only wants to look at it."""
    found = {}
    for scheme in (Scheme.MXFP4, Scheme.NVFP4_MIXED):
        folder = home / scheme.value
        folder.mkdir()
        config = declare(kimi_k3_config(), kimi_k3().with_scheme(scheme))
        config.pop("auto_map", None)
        (folder / "config.json").write_text(json.dumps(config))
        found[scheme] = folder
    return found


def resolved(cases: list[dict[str, object]]) -> list[dict[str, Any]]:
    """What SGLang says about commands: the error, or the kernels it settled on."""
    asked = resident(engine_python("sglang", VERSION), "resolve_sglang.py", {}, "any GPU")
    answers: list[dict[str, Any]] = asked.ask(cases, timeout_s=900)
    return answers


def sm(hardware: str) -> int:
    """The capability of a GPU as SGLang writes it; what has none of NVIDIA's passes for a B300."""
    architecture = gpu(hardware).architecture
    return int(architecture.removeprefix("sm")) if architecture.startswith("sm") else 103


def case(role: Role, capability: int, folder: Path, draft: Path) -> dict[str, object]:
    words = engine_words(role)
    words[words.index("--model-path") + 1] = str(folder)
    if "--speculative-draft-model-path" in words:
        words[words.index("--speculative-draft-model-path") + 1] = str(draft)
    return {"sm": capability, "words": [*words, "--device", "cuda"], "variables": {}}


def test_commands_of_every_rule_pass_sglangs_validation(configs: dict[Scheme, Path]) -> None:
    answers = validated(configs)
    assert len(answers) >= 60
    bad = {answer["error"]: words for words, answer in answers if answer["error"]}
    print(f"{len(answers)} commands, {len(bad)} refused")
    assert not bad, bad


def validated(configs: dict[Scheme, Path]) -> list[tuple[object, dict[str, Any]]]:
    """The words of every command of the sample, and SGLang's answer."""
    cases = []
    for made in sample("sglang", VERSION):
        architecture = sm(made.gpu)
        nvfp4 = "NVFP4" in made.roles[0].command.model
        folder = configs[Scheme.NVFP4_MIXED if nvfp4 else Scheme.MXFP4]
        cases += [
            case(role, architecture, folder, configs[Scheme.MXFP4]) for role in made.roles if role.name != "router"
        ]
    return [(one["words"], answer) for one, answer in zip(cases, resolved(cases), strict=True)]


BASE = "--trust-remote-code --tp-size 8 --max-running-requests 32"
DSPARK = "--speculative-algorithm DSPARK --speculative-dspark-block-size 7 --speculative-draft-model-path DRAFT"

WRONG = [
    ("sglang-check-dspark-stages", f"{BASE} --pp-size 2 {DSPARK}"),
    ("sglang-check-dcp-decode", f"{BASE} --dcp-size 8 --decode-attention-backend flashmla"),
    ("sglang-check-dcp-attention", f"{BASE} --dcp-size 8 --attention-backend flashmla"),
    ("sglang-check-comm", f"{BASE} --dcp-comm-backend a2a"),
    ("sglang-check-dspark-dp", f"{BASE} --attn-dp-size 2 {DSPARK}"),
    ("sglang-check-hicache-prefix", f"{BASE} --enable-hierarchical-cache --disable-radix-cache"),
]


def test_what_sglang_refuses_breaks_a_rule(configs: dict[Scheme, Path]) -> None:
    folder = str(configs[Scheme.MXFP4])
    given = [words.replace("DRAFT", folder).split() for _, words in WRONG]
    for (rule, _), words in zip(WRONG, given, strict=True):
        values = read(release("sglang", VERSION), words).values()
        assert rule in {broken.rule.id for broken in broken_rules("sglang", {"version": VERSION}, values, {})}
    answers = resolved(
        [{"sm": 103, "words": ["--model-path", folder, *words, "--device", "cuda"], "variables": {}} for words in given]
    )
    assert all(answer["error"] for answer in answers), answers
