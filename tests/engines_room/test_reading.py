"""Reading words as the parsers do. tests/engines compares the same cases with the real parsers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3stack.engines.reading import Fault, merged, read
from k3stack.engines.releases import release
from tests.engines_room.cases import CASES

VLLM = release("vllm", "0.33.0")
SGLANG = release("sglang", "0.5.23")


@pytest.mark.parametrize(("engine", "words", "taken"), CASES)
def test_what_stops_the_parser_stops_us(engine: str, words: str, taken: bool) -> None:
    import shlex

    found = read(VLLM if engine == "vllm" else SGLANG, shlex.split(words))
    assert (not any(problem.stops for problem in found.problems)) == taken, found.problems


def test_spellings_become_one_name() -> None:
    words = "m -tp 8 --max_model_len 1k --no-enable-prefix-caching --port=8000".split()
    assert read(VLLM, words).values() == {
        "tensor-parallel-size": "8",
        "max-model-len": "1k",
        "enable-prefix-caching": False,
        "port": "8000",
    }


def test_json_is_a_value_and_parts_are_laid_over_it() -> None:
    words = ["--attention-config", '{"backend":"FLASHMLA"}', "--attention-config.flash_attn_version", "3"]
    assert read(VLLM, words).values()["attention-config"] == {"backend": "FLASHMLA", "flash_attn_version": 3}


def test_names_that_vllm_takes_in_small_letters_are_read_as_the_snapshot_has_them() -> None:
    words = [
        "--attention-config",
        '{"mla_prefill_backend":"flashinfer","backend":"auto"}',
        "--attention-backend",
        "flashmla",
    ]
    values = read(VLLM, words).values()
    assert values["attention-config"] == {"mla_prefill_backend": "FLASHINFER", "backend": "auto"}
    assert values["attention-backend"] == "FLASHMLA"
    assert not read(VLLM, words).problems
    assert read(VLLM, ["--attention-config.mla_prefill_backend", "flashinfer"]).values() == {
        "attention-config": {"mla_prefill_backend": "FLASHINFER"}
    }


def test_a_near_miss_is_named() -> None:
    (problem,) = read(VLLM, ["--tensor-paralel-size", "8"]).problems
    assert problem.fault is Fault.UNKNOWN and "--tensor-parallel-size" in problem.fix


def test_an_unknown_json_key_is_a_wrong_value() -> None:
    (problem,) = read(VLLM, ["--attention-config", '{"mla_prefil_backend":"X"}']).problems
    assert problem.stops and "mla_prefill_backend" in problem.what


def test_an_abbreviation_works_and_is_mentioned() -> None:
    (problem,) = read(SGLANG, ["--tp", "8"]).problems
    assert problem.fault is Fault.ABBREVIATED and not problem.stops


def test_twice_is_mentioned_unless_the_flag_collects() -> None:
    (problem,) = read(SGLANG, "--tp-size 8 --tp-size 16".split()).problems
    assert problem.fault is Fault.REPEATED
    router = release("vllm-router", "0.1.17")
    assert not read(router, "--decode http://a:1 --decode http://b:2".split()).problems


def test_deprecated_flags_name_their_heirs() -> None:
    (problem,) = read(SGLANG, ["--enable-dp-attention"]).problems
    assert problem.fault is Fault.DEPRECATED and "attn-dp-size" in problem.fix


def test_places_that_are_filled_later_are_not_wrong() -> None:
    words = ["--nnodes", "2", "--node-rank", "$RANK", "--port", "<port>", "--tp-size", "{{TP}}"]
    assert not any(problem.stops for problem in read(SGLANG, words).problems)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
OBJECT = st.dictionaries(st.sampled_from("abc"), JSON, max_size=3)


def leaves(value: object, path: str = "") -> dict[str, object]:
    if not isinstance(value, dict) or not value:
        return {path: value}
    return {where: one for key in value for where, one in leaves(value[key], f"{path}.{key}").items()}


@given(OBJECT, OBJECT)
def test_merging_keeps_what_the_later_does_not_name(first: dict[str, object], second: dict[str, object]) -> None:
    both = merged(first, second)
    assert merged(first, first) == first and merged(both, second) == both
    assert set(both) == set(first) | set(second)
    kept, later = leaves(both), leaves(second)
    assert all(kept[where] == one for where, one in later.items() if one != {})


@given(st.lists(st.text(max_size=12), max_size=8))
def test_any_words_are_read(words: list[str]) -> None:
    read(VLLM, words)
    read(SGLANG, words)
