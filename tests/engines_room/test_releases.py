"""Snapshots: packing loses nothing, releases differ as their parsers do, unknown ones are errors."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3stack.engines.difference import difference
from k3stack.engines.releases import _unpack, engines, from_data, latest, pack, release, versions
from k3stack.engines.relevance import named_by_rules, only_relevant
from k3stack.engines.rules import rules
from k3stack.errors import NotKnownError
from tests.cli.run import k3


def test_every_release_of_the_issue_is_there() -> None:
    assert versions("vllm") == ("0.27.1", "0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0")
    assert versions("sglang") == ("0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23")
    assert set(engines()) == {"vllm", "sglang", "vllm-router", "sglang-router"}
    assert latest("vllm") == "0.33.0"


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_every_release_knows_the_flags_of_k3(engine: str) -> None:
    for version in versions(engine):
        taken = release(engine, version)
        assert len(taken.flags) > 250 and len(taken.variables) > 300
        assert taken.flag("--tool-call-parser") and taken.flag("--reasoning-parser")


def test_aliases_and_negations_lead_to_one_flag() -> None:
    vllm = release("vllm", "0.33.0")
    for name in ("-tp", "--tensor-parallel-size", "tensor-parallel-size"):
        found = vllm.flag(name)
        assert found is not None and found.name == "tensor-parallel-size"
    for name in ("--no-enable-prefix-caching", "--disable-prefix-caching"):
        assert vllm.spellings[name][0].name == "enable-prefix-caching" and not vllm.spellings[name][1]
    sglang = release("sglang", "0.5.23")
    assert sglang.flag("--model") == sglang.flag("--model-path")


def test_json_keys_and_their_choices_are_known() -> None:
    config = release("vllm", "0.33.0").flags["attention-config"]
    assert config.kind == "json" and "TRTLLM_RAGGED" in config.fields["mla_prefill_backend"]
    assert "dspark" in release("vllm", "0.33.0").flags["speculative-config"].fields["method"]


def test_what_changed_for_k3() -> None:
    found = only_relevant(difference(release("sglang", "0.5.19"), release("sglang", "0.5.23")))
    assert "attn-dp-size" in found.new_flags
    deprecated = [change for change in found.changes if change.flag == "enable-dp-attention"]
    assert any(change.what == "deprecated" for change in deprecated)
    everything = difference(release("sglang", "0.5.19"), release("sglang", "0.5.20"))
    assert "cuda-graph-max-bs" in everything.gone_flags
    same = difference(release("vllm", "0.33.0"), release("vllm", "0.33.0"))
    assert not (same.new_flags or same.gone_flags or same.changes or same.new_variables or same.gone_variables)


FLAG = st.fixed_dictionaries(
    {"kind": st.sampled_from(["int", "str", "flag", "json"])},
    optional={"aliases": st.lists(st.sampled_from(["-a", "-b"]), unique=True), "default": st.integers()},
)
SNAPSHOT = st.fixed_dictionaries(
    {
        "flags": st.dictionaries(st.sampled_from("abcdefg"), FLAG),
        "variables": st.lists(st.sampled_from("UVWXYZ"), unique=True).map(sorted),
        "abbreviations": st.booleans(),
    }
)


@given(st.lists(SNAPSHOT, min_size=1, max_size=5))
def test_packing_loses_nothing(snapshots: list[dict[str, Any]]) -> None:
    named = [{"engine": "e", "version": f"0.{number}.0", **copy.deepcopy(one)} for number, one in enumerate(snapshots)]
    unpacked = _unpack(pack(reversed(named)))
    assert list(unpacked.values()) == named
    assert all(from_data(one).version == one["version"] for one in unpacked.values())


@pytest.mark.parametrize(("engine", "version"), [("vllm", "9.9.9"), ("nothing", "1.0")])
def test_what_is_not_there_says_what_is(engine: str, version: str) -> None:
    with pytest.raises(NotKnownError) as caught:
        release(engine, version)
    assert caught.value.hint


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_rules_name_real_flags_and_variables(engine: str) -> None:
    """Each flag of a rule is one of some release, and each variable of the engine is read by one."""
    flags, variables = named_by_rules(engine)
    known = [release(engine, version) for version in versions(engine)]
    for name in flags:
        assert any(name in one.flags for one in known), name
    for name in variables:
        if name.startswith(("VLLM_", "SGLANG_")):
            assert any(name in one.variables for one in known), name


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_rules_are_whole(engine: str) -> None:
    seen = set()
    for rule in rules(engine):
        assert rule.id.startswith(engine) and rule.id not in seen
        seen.add(rule.id)
        assert rule.why.endswith(".") and rule.source and rule.date.year == 2026
        assert not rule.refuse or rule.fix
        does = (rule.set, rule.unset, rule.env, rule.image, rule.digests, rule.patches, rule.needs, rule.note)
        assert rule.refuse or any(does)
        assert not rule.set or not rule.is_check


def test_the_verb_lists_compares_and_shows() -> None:
    assert "0.33.0" in k3("engines", "list").out
    ran = k3("engines", "diff", "sglang", "0.5.19", "0.5.23")
    assert ran.code == 0 and "attn-dp-size" in ran.out
    assert "cuda-graph-max-bs" in k3("engines", "diff", "sglang", "0.5.19", "0.5.20", "--all").out
    assert "--tensor-parallel-size" in k3("engines", "flag", "vllm", "0.33.0", "tp").out
    assert "TRTLLM_RAGGED" not in k3("engines", "flag", "vllm", "0.33.0", "tool-call").out
