"""The measurement beside vLLM's recipes page: what is enumerated, how it is put into our words, who says what.

The page's own code is not here. A few functions with its names stand in, so that our driver's own choices are checked.
"""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from benchmarks.recipes_site_commands import DRIVER, Command, asked_of, filled, ours, rendered, site_data, theirs
from benchmarks.recipes_site_judges import Verdict, short

from k3stack.errors import InputError, UnavailableError
from k3stack.plan.layout import Layout
from k3stack.recipe.choice import Feature, Parsers
from k3stack.spec.schemes import Scheme

STAND_IN = """
export const MAX_NODES = 16;
export const isHardwareSupported = (recipe, id) => id !== "refused";
export const variantRunsOnHardware = (profile, variant) => !variant.only || variant.only === profile.kind;
export const effectiveCompatibleStrategies = () => ["one", "many", "wide", "pd_cluster", "denied"];
export const nodesForStrategy = (recipe, name) => ({ wide: 4, dep: 4 })[name] || 1;
export const isHardwareScalable = (profile) => profile.scalable !== false;
export const fitsSingleNode = (profile, variant) => variant.vram_minimum_gb <= profile.vram_gb;
export const isStrategyReachable = () => true;
export const isStrategySupportedOnHardware = (recipe, name) => name !== "denied";
export const isFeatureAllowedForStrategy = (feature, name) => !feature.strategies || feature.strategies.includes(name);
export const pdPoolModes = () => ["tep", "dep"];
export function resolveCommand(r, variant, strategy, hw, features, s, t, advanced, nodes, pools) {
  const one = (...more) => ["vllm", "serve", variant, strategy, String(nodes), ...features, ...more];
  if (pools) {
    const role = (name) => ({ argv: one(name, String(pools[name].rank || 0)), env: { A: 1 } });
    return { prefill: role("prefill"), decode: role("decode") };
  }
  const said = nodes > 1 ? { headArgv: one("head"), workerArgv: one("worker") } : { argv: one() };
  return { ...said, env: { A: "$HEAD_IP" } };
}
"""
DATA = {
    "recipe": {
        "meta": {"hardware": {"asked": "verified"}},
        "variants": {"default": {"vram_minimum_gb": 1000}, "fp4": {"vram_minimum_gb": 600, "only": "new"}},
        "features": {"draft": {}, "dcp": {"strategies": ["one"]}},
        "strategy_overrides": {"pd_cluster": {"prefill": {"parallelism": "tep"}, "decode": {"parallelism": "dep"}}},
    },
    "strategies": {
        "one": {"deploy_type": "single_node"},
        "many": {"deploy_type": "multi_node"},
        "wide": {"deploy_type": "multi_node"},
        "denied": {"deploy_type": "multi_node"},
        "pd_cluster": {"deploy_type": "pd_cluster"},
    },
    "taxonomy": {
        "hardware_profiles": {
            "small": {"gpu_count": 8, "vram_gb": 800, "kind": "new"},
            "asked": {"gpu_count": 8, "vram_gb": 2000, "restricted": True},
            "hidden": {"gpu_count": 8, "vram_gb": 2000, "restricted": True},
            "refused": {"gpu_count": 8, "vram_gb": 2000},
        }
    },
}


@pytest.fixture(scope="module")
def enumerated(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node.js is not here")
    checkout = tmp_path_factory.mktemp("site")
    (checkout / "src" / "lib").mkdir(parents=True)
    (checkout / "package.json").write_text('{"type": "module"}')
    (checkout / "src" / "lib" / "command-synthesis.js").write_text(STAND_IN)
    ran = subprocess.run(
        [node, str(DRIVER), str(checkout)], input=json.dumps(DATA), capture_output=True, text=True, check=True
    )
    found: list[dict[str, Any]] = json.loads(ran.stdout)
    return found


def of(found: list[dict[str, Any]], **wanted: Any) -> list[dict[str, Any]]:
    return [one for one in found if all(one[key] == value for key, value in wanted.items())]


def test_what_cannot_be_clicked_is_not_enumerated(enumerated: list[dict[str, Any]]) -> None:
    assert {one["hardware"] for one in enumerated} == {"small", "asked"}
    assert not of(enumerated, strategy="denied")
    assert {one["variant"] for one in of(enumerated, hardware="asked")} == {"default"}
    assert not of(enumerated, hardware="small", variant="default", strategy="one")  # 1,000 GB do not fit 800
    assert of(enumerated, hardware="small", variant="fp4", strategy="one")


def test_nodes_are_the_pills_and_grow_with_a_strategy(enumerated: list[dict[str, Any]]) -> None:
    assert {one["nodes"] for one in of(enumerated, strategy="many")} == {2, 4}
    assert {one["nodes"] for one in of(enumerated, strategy="wide")} == {4}
    assert {one["nodes"] for one in of(enumerated, strategy="one")} == {1}


def test_features_are_every_set_that_a_strategy_allows(enumerated: list[dict[str, Any]]) -> None:
    sets = [tuple(one["features"]) for one in of(enumerated, hardware="asked", strategy="one")]
    assert sorted(sets) == [(), ("dcp",), ("draft",), ("draft", "dcp")]
    assert {tuple(one["features"]) for one in of(enumerated, strategy="wide")} == {(), ("draft",)}


def test_pools_are_every_pair_of_modes_with_nodes_of_their_own(enumerated: list[dict[str, Any]]) -> None:
    found = of(enumerated, hardware="small", variant="default", strategy="pd_cluster", features=[])
    pairs = {tuple(one["pools"][role]["parallelism"] for role in ("prefill", "decode")): one for one in found}
    assert set(pairs) == {(a, b) for a in ("tep", "dep") for b in ("tep", "dep")}
    assert pairs["tep", "dep"]["pools"]["prefill"]["nodes"] == 2  # 1,000 GB on nodes of 800
    assert pairs["tep", "dep"]["pools"]["decode"]["nodes"] == 4
    assert [pair for pair, one in pairs.items() if one["usual"]] == [("tep", "dep")]
    assert [words[-1] for words in pairs["tep", "dep"]["roles"][1]["ranks"]] == ["0", "1"]


def test_a_role_has_its_first_two_nodes(enumerated: list[dict[str, Any]]) -> None:
    (many,) = of(enumerated, hardware="asked", strategy="many", features=[], nodes=2)
    assert [words[-1] for words in many["roles"][0]["ranks"]] == ["head", "worker"]
    written = rendered(many)
    assert [command.environment for command in written.commands] == [(("A", "10.0.0.1"),)] * 2


CHOICE = {
    "hardware": "b300",
    "variant": "default",
    "strategy": "multi_node_tep",
    "nodes": 2,
    "pools": None,
    "usual": True,
    "features": ["spec_decoding", "text_only"],
    "roles": [
        {
            "role": "server",
            "ranks": [
                [
                    *"vllm serve moonshotai/Kimi-K3 --tensor-parallel-size 16 --enable-expert-parallel".split(),
                    *"--nnodes 2 --node-rank 0 --master-addr $HEAD_IP".split(),
                    *"--language-model-only --speculative-config".split(),
                    '{"model":"RedHatAI/Kimi-K3-speculator.dspark", "num_speculative_tokens":8, "method": "dspark"}',
                ]
            ],
            "environment": [{"NCCL_SOCKET_IFNAME": "$IFACE_NAME", "PYTHONHASHSEED": 0}],
        }
    ],
}


def test_a_choice_of_the_page_in_our_words() -> None:
    written = rendered(CHOICE)
    (command,) = written.commands
    assert command.variables == {"NCCL_SOCKET_IFNAME": "eth0", "PYTHONHASHSEED": "0"}
    assert "10.0.0.1" in command.words and not any("$" in word for word in command.words)
    asked = asked_of(written, "0.33.0")
    assert (asked.hardware, asked.scheme, asked.prefill) == ("b300", Scheme.MXFP4, None)
    assert asked.layout == Layout(tp=16, ep=True)
    assert set(asked.features) == {Feature.DSPARK, Feature.TEXT_ONLY} and asked.parsers is Parsers.RAW
    mine, why = ours(asked, "0.33.0")
    assert mine is not None and why == ""
    assert len(mine.roles["server"]) == 2
    assert "--language-model-only" in mine.roles["server"][0].words


def test_a_choice_that_we_refuse_has_a_reason() -> None:
    two_trays = {**CHOICE, "hardware": "gb200"}
    roles = [dict(CHOICE["roles"][0])]  # type: ignore[index]
    roles[0]["ranks"] = [[word.replace("16", "8") for word in roles[0]["ranks"][0]]]
    assert ours(asked_of(rendered({**two_trays, "roles": roles}), "0.33.0"), "0.33.0") == (
        None,
        "refused: vllm-floor-16",
    )


def test_variables_of_the_page_get_values_of_their_kind() -> None:
    text = "$PREFILL_NODE_1 $PREFILL_NODE_2 $DECODE_DP_RPC_PORT $IFACE_NAME bond0"
    assert filled(text) == "10.0.0.1 10.0.0.2 13345 eth0 bond0"


def test_errors_of_one_kind_are_counted_together() -> None:
    told = "ValidationError: 1 error for VllmConfig\n  Value error, no such pair [type=value_error, x={}]\n    See"
    assert short(told) == "no such pair"
    assert short("ValueError: one line\nmore") == "ValueError: one line"


def test_who_refuses() -> None:
    assert Verdict("no such flag").engine_refuses == "no such flag"
    assert Verdict(None, "too few").engine_refuses == "too few"
    assert not Verdict(None, "").engine_refuses and not Verdict(None).engine_refuses
    assert not Verdict(None).seen and Verdict(None, wrong=("a",)).seen


def test_files_are_read_as_the_page_reads_them(tmp_path: Path) -> None:
    (tmp_path / "strategies").mkdir()
    (tmp_path / "strategies" / "one.yaml").write_text("name: one\nfirst: no\nsecond: true\ndate: 2026-08-21\n")
    (tmp_path / "models" / "moonshotai").mkdir(parents=True)
    (tmp_path / "models" / "moonshotai" / "Kimi-K3.yaml").write_text("a: 1\n")
    (tmp_path / "taxonomy.yaml").write_text("b: 2\n")
    data = site_data(tmp_path)
    assert data["strategies"]["one"] == {"name": "one", "first": "no", "second": True, "date": "2026-08-21"}
    with pytest.raises(UnavailableError, match="cannot be started"):
        theirs(tmp_path, node=str(tmp_path / "no-node"))


def test_a_folder_that_is_no_checkout_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not there"):
        site_data(tmp_path)


def test_a_command_is_pasted_with_its_variables() -> None:
    command = Command("b300", ("m", "--a", '{"b":1}'), (("X", "1 2"),))
    assert command.text == """X='1 2' vllm serve m --a '{"b":1}'"""
