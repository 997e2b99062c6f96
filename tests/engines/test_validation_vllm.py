"""Our vLLM commands through all of vLLM's validation for K3 that needs no GPU, and its refusals against our rules."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest

from k3stack.engines.check import broken_rules
from k3stack.engines.reading import read
from k3stack.engines.releases import release
from k3stack.hardware.table import gpu
from k3stack.plan.layout import Layout
from k3stack.recipe.asking import engine_variables, engine_words
from k3stack.recipe.build import build
from k3stack.recipe.choice import Choice, Serving, refused
from k3stack.recipe.deployment import Deployment, Role
from k3stack.recipe.wanted import Wanted, fitting
from tests.engines.test_commands import sample
from tests.engines.validate_vllm import DRAFT, FOLDERS, NOT_HERE, VERSION, Folders, resolved

pytestmark = pytest.mark.engines


@dataclass(frozen=True)
class Case:
    """One rank's command, where it came from, and what it is to run on."""

    made: Deployment
    role: Role
    rank: int

    @property
    def sm(self) -> str:
        return gpu(self.made.gpu).architecture


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return Folders(tmp_path_factory.mktemp("k3"))


@pytest.fixture(scope="module")
def answered(folders: Folders) -> list[tuple[Case, dict[str, Any]]]:
    return validated(folders)


def validated(folders: Folders) -> list[tuple[Case, dict[str, Any]]]:
    """Every command of the sample, each rank that differs, with vLLM's answer."""
    cases = [
        Case(made, role, rank)
        for made in sample("vllm", VERSION)
        for role in made.roles
        if role.name != "router"
        for rank in range(min(role.nodes, 2))
    ]
    here = [case for case in cases if case.made.vendor not in NOT_HERE]
    print()
    for vendor, count in Counter(case.made.vendor for case in cases if case.made.vendor in NOT_HERE).items():
        print(f"not through full validation: {count} for {vendor}: {NOT_HERE[vendor]}")
    found: list[tuple[Case, dict[str, Any]]] = []
    for hardware in sorted({case.made.gpu for case in here}, key=lambda name: gpu(name).architecture):
        group = [case for case in here if case.made.gpu == hardware]
        asked = [(engine_words(case.role, case.rank), engine_variables(case.role, case.rank)) for case in group]
        found += zip(group, resolved(folders, hardware, asked), strict=True)
    print(f"{len(found)} commands went through vLLM {VERSION}'s full validation")
    return found


def test_commands_of_every_rule_pass_vllms_validation(answered: list[tuple[Case, dict[str, Any]]]) -> None:
    bad = {answer["error"]: case.role.command.words() for case, answer in answered if answer["error"]}
    assert not bad, bad
    assert len(answered) >= 60


def test_vllm_understands_what_the_command_means(answered: list[tuple[Case, dict[str, Any]]]) -> None:
    """What vLLM makes of a command is what the choice wanted; kernels included."""
    for case, answer in answered:
        command, found = case.role.command, answer["found"]
        context = (case.made.gpu, case.role.name, case.rank, command.words())
        assert found["architecture"] == "KimiK3ForConditionalGeneration"
        assert found["prefix_caching"] is command.flag("enable-prefix-caching"), context
        assert found["multimodal"] is not bool(command.flag("language-model-only")), context
        assert found["context"] == command.flag("max-model-len"), context
        assert found["graphs"] == command.flag("max-cudagraph-capture-size"), context
        draft = command.flag("speculative-config") or {}
        assert found["draft"] == draft.get("num_speculative_tokens", 0), context
        assert found["v2_runner"], context
        assert_replicas(case, found)
        assert_kernels(case, found)


def assert_replicas(case: Case, found: dict[str, Any]) -> None:
    """Which replicas this rank's door reaches."""
    assert found["dp"] == (case.role.command.flag("data-parallel-size") or 1)
    if case.role.doors == 1:
        assert not found["hybrid_lb"] and not found["external_lb"]
    else:
        assert found["hybrid_lb"] or found["external_lb"]
    assert found["rank"] == (case.role.local_replicas * case.rank if found["dp"] > 1 else 0)


def assert_kernels(case: Case, found: dict[str, Any]) -> None:
    """The kernels that were named are those that vLLM takes."""
    command, sm = case.role.command, case.sm
    workstation = sm in ("sm120", "sm121")
    usual = "TRITON_MLA" if workstation else "FLASHINFER_MLA"
    assert found["decode"] == (command.flag("attention-backend") or usual)
    named = (command.flag("attention-config") or {}).get("mla_prefill_backend")
    assert found["prefill"] == ("TrtllmRaggedPrefillBackend" if named else "FlashAttnPrefillBackend")
    nvfp4 = "NVFP4" in command.model
    if command.flag("moe-backend") == "deep_gemm_mega_moe":
        assert found["experts"] == "deep_gemm_mega_moe"
    elif workstation:
        assert found["experts"] == ("VLLM_CUTLASS" if nvfp4 else "MARLIN")
    elif sm == "sm90":
        assert found["experts"] == ("HUMMING" if nvfp4 else "MARLIN")
    else:
        assert found["experts"].startswith("FLASHINFER_TRTLLM")


BASE = "moonshotai/Kimi-K3 --trust-remote-code --tensor-parallel-size 8"
NVFP4 = BASE.replace("moonshotai/Kimi-K3", "nvidia/Kimi-K3-NVFP4")
SPECULATIVE = '--speculative-config {"model":"' + DRAFT + '","num_speculative_tokens":8,"method":"dspark"}'
NODES = f"{BASE.replace('size 8', 'size 16')} --nnodes 2 --master-addr 10.0.0.1"
SPREAD = f"{BASE.replace('size 8', 'size 1')} --data-parallel-size 8 --enable-expert-parallel"
NIXL = '--kv-transfer-config {"kv_connector":"NixlConnector","kv_role":"kv_both"}'

WRONG: list[tuple[str, str, str, dict[str, str]]] = [
    ("b300", "vllm-check-dspark-runner", f"{BASE} {SPECULATIVE}", {"VLLM_USE_V2_MODEL_RUNNER": "0"}),
    (
        "b300",
        "vllm-check-text-only-graphs",
        f'{BASE} --language-model-only --compilation-config {{"cudagraph_mm_encoder":true}}',
        {},
    ),
    ("b300", "vllm-check-nvfp4-cache", f"{BASE} --kv-cache-dtype nvfp4", {}),
    ("b300", "vllm-check-packed-cache", f"{BASE} --kv-cache-dtype fp8_ds_mla", {}),
    ("h200", "vllm-check-packed-cache", f"{BASE} --kv-cache-dtype fp8_ds_mla", {}),
    ("b300", "vllm-check-allocator", f"{BASE} {NIXL}", {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
    ("b300", "vllm-check-dbo", f"{BASE} --enable-dbo", {}),
    ("b300", "vllm-check-hybrid-alone", f"{BASE} --data-parallel-hybrid-lb", {}),
    ("h200", "vllm-check-hybrid-alone", f"{NODES} --node-rank 0 --data-parallel-hybrid-lb", {}),
    ("h200", "vllm-check-hybrid-headless", f"{NODES} --node-rank 1 --headless --data-parallel-hybrid-lb", {}),
    ("b300", "vllm-check-hybrid-local", f"{SPREAD} --data-parallel-hybrid-lb", {}),
    ("b300", "vllm-check-nvfp4-moe", f"{NVFP4} --moe-backend triton", {}),
    ("b300", "vllm-check-nvfp4-moe", f"{NVFP4} --moe-backend flashinfer_cutlass", {}),
    ("b300", "vllm-check-nvfp4-moe", f"{NVFP4} --moe-backend deep_gemm", {}),
    ("h200", "vllm-check-blackwell-decode", f"{BASE} --attention-backend TOKENSPEED_MLA --kv-cache-dtype fp8", {}),
    ("h200", "vllm-check-blackwell-decode", f"{BASE} --attention-backend FLASHINFER_MLA", {}),
    ("h200", "vllm-check-blackwell-prefill", f"{BASE} --attention-config.mla_prefill_backend TRTLLM_RAGGED", {}),
    *(
        (kind, rule, words, {})
        for kind in ("rtx-pro-6000", "dgx-spark")
        for rule, words in (
            ("vllm-check-blackwell-decode", f"{BASE} --attention-backend TOKENSPEED_MLA --kv-cache-dtype fp8"),
            ("vllm-check-blackwell-decode", f"{BASE} --attention-backend FLASHINFER_MLA"),
            ("vllm-check-blackwell-decode", f"{BASE} --attention-backend CUTLASS_MLA"),
            ("vllm-check-blackwell-prefill", f"{BASE} --attention-config.mla_prefill_backend TRTLLM_RAGGED"),
            ("vllm-check-workstation-decode", f"{BASE} --attention-backend FLASHMLA"),
            ("vllm-check-workstation-decode", f"{BASE} --attention-backend FLASH_ATTN_MLA"),
            ("vllm-check-workstation-moe", f"{BASE} --moe-backend flashinfer_trtllm"),
            ("vllm-check-workstation-moe", f"{NVFP4} --moe-backend flashinfer_trtllm"),
            ("vllm-check-workstation-moe", f"{NVFP4} --moe-backend flashinfer_cutedsl"),
        )
    ),
]


@pytest.mark.parametrize("hardware", ["b300", "h200", "rtx-pro-6000", "dgx-spark"])
def test_what_vllm_refuses_breaks_a_rule(folders: Folders, hardware: str) -> None:
    rows = [(rule, words.split(), variables) for kind, rule, words, variables in WRONG if kind == hardware]
    kind = gpu(hardware)
    for rule, words, variables in rows:
        scheme = FOLDERS[words[0]].value
        facts = {"version": VERSION, "architecture": kind.architecture, "gpu": kind.id, "scheme": scheme}
        values = read(release("vllm", VERSION), words).values()
        assert rule in {broken.rule.id for broken in broken_rules("vllm", facts, values, variables)}, rule
    answers = resolved(folders, hardware, [(words, variables) for _, words, variables in rows])
    taken = [rule for (rule, _, _), answer in zip(rows, answers, strict=True) if answer["error"] is None]
    assert not taken, taken


def test_a_replica_over_several_nodes_is_taken_only_where_nodes_are_told(folders: Folders) -> None:
    """GB300 trays hold four GPUs: a data-parallel replica of eight does not lie in one."""
    layout = Layout(tp=8, dp=4, ep=True)
    choice = Choice("vllm", VERSION, gpu("gb300"), FOLDERS["moonshotai/Kimi-K3"], layout)
    assert "vllm-replicas-in-node" in {one.reason.rule for one in refused(choice)}
    words = f"{BASE} --data-parallel-size 4 --data-parallel-size-local 1 --enable-expert-parallel"
    nodes = f"{words} --nnodes 8 --node-rank 0 --master-addr 10.0.0.1"
    alone, told = resolved(folders, "gb300", [(words.split(), {}), (nodes.split(), {})])
    assert "World size (8) is larger" in alone["error"] and told["error"] is None


def test_both_sides_with_a_spread_cache_pass_vllms_validation(folders: Folders) -> None:
    """Prefill with the decode-context-parallel size of decode, which no published command has to be copied from."""
    made = build(fitting(Wanted(gpu("b300"), serving=Serving.DISAGGREGATED, tp=8, dcp=8)).choice)
    sides = [role for role in made.roles if role.name != "router"]
    assert {role.command.flag("decode-context-parallel-size") for role in sides} == {8}
    asked = [(engine_words(role), engine_variables(role)) for role in sides]
    assert [answer["error"] for answer in resolved(folders, "b300", asked)] == [None] * 2
