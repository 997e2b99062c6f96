"""What our rules about prefill and decode say, against the code of the engines that refuses the pairs."""

import pytest

from k3stack.engines.pairs import pair_rules
from k3stack.recipe.pairing import Said, disagreements
from tests.engines.venvs import answer_of

pytestmark = pytest.mark.engines

SIZES = [(one, other) for one in (1, 2, 4, 8, 16) for other in (1, 2, 4, 8, 12, 16)]

# How a factor of vLLM's hash is called in a command.
FACTORS = {
    "cache_dtype": ("kv-cache-dtype", "auto", "fp8"),
    "backend": ("attention-backend", "A", "B"),
    "manager_off": ("disable-hybrid-kv-cache-manager", False, True),
}


def told(engine: str, prefill: dict[str, object], decode: dict[str, object], version: str = "0.33.0") -> set[str]:
    sides = (Said(values, "m", version, True) for values in (prefill, decode))
    return {one.rule.id for one in disagreements(engine, *sides)}


@pytest.mark.parametrize("version", ["0.30.0", "0.33.0"])
def test_vllm_refuses_the_pairs_that_we_name(version: str) -> None:
    hashes = [[{name: values[1]}, {name: values[2]}] for name, values in FACTORS.items()]
    more = [("model", "m", "n"), ("version", "1", "2"), ("mode", "pull", "push"), ("draft", None, "d")]
    hashes += [[{name: one}, {name: other}] for name, one, other in more]
    asked = {"hash": [*hashes, [{}, {}]], "tp": SIZES, "dcp": SIZES}
    found = answer_of("vllm", version, "pairs_in_vllm.py", asked, 300)
    assert found["hash"] == [False] * len(hashes) + [True]
    for flag, one, other in FACTORS.values():
        assert len(told("vllm", {flag: one}, {flag: other}, version)) == 1
    for name, flag in (("tp", "tensor-parallel-size"), ("dcp", "decode-context-parallel-size")):
        for (here, there), yes in zip(SIZES, found[name], strict=True):
            tp = {} if name == "tp" else {"tensor-parallel-size": "48"}
            said = told("vllm", {**tp, flag: str(here)}, {**tp, flag: str(there)}, version)
            assert (f"vllm-pair-{name}" not in said) is yes, (name, here, there)


def test_sglang_refuses_the_pairs_that_we_name() -> None:
    infos = [[{"page": 64}, {"page": 32}], [{"cache": "auto"}, {"cache": "fp8_e4m3"}], [{}, {}]]
    found = answer_of("sglang", "0.5.23", "pairs_in_sglang.py", {"info": infos, "dcp": SIZES, "pp": SIZES}, 300)
    assert found["info"] == [False, False, True]
    for name, flag in (("dcp", "dcp-size"), ("pp", "pp-size")):
        rule = {"dcp": "sglang-pair-dcp", "pp": "sglang-pair-stages"}[name]
        for (here, there), yes in zip(SIZES, found[name], strict=True):
            tp = {"tp-size": "48"}
            said = told("sglang", {**tp, flag: str(here)}, {**tp, flag: str(there)})
            assert (rule not in said) is yes, (name, here, there)
    assert {rule.id for rule in pair_rules("sglang")} >= {"sglang-pair-dcp", "sglang-pair-stages"}
