"""The parts that checks are made of: strict JSON, schemas, texts, percentiles, pictures."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3stack.verify.picture import COLOURS, data_address, png
from k3stack.verify.statistics import median, percentile
from k3stack.verify.strict import call_fault, schema_fault, strict_json
from k3stack.verify.texts import copy_text, document
from k3stack.verify.toolbox import BOOK, STRICT_SCHEMAS, TOOLS, WEATHER, cases, has_free_text, submit_tool
from tests.verify.brain import colour_name, read_png, sample


@pytest.mark.parametrize(
    "text", ['{"a": NaN}', '{"a": Infinity}', '{"a": 1, "a": 2}', '{"a": 1', "", "{'a': 1}", "[" * 100_000]
)
def test_json_that_readers_disagree_about_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        strict_json(text)


def test_other_json_is_read() -> None:
    assert strict_json('{"a": [1, 2.5, null, "é"], "b": {"a": true}}') == {"a": [1, 2.5, None, "é"], "b": {"a": True}}


@pytest.mark.parametrize(
    ("name", "arguments", "fault"),
    [
        ("get_weather", '{"city": "Paris"}', ""),
        ("get_wether", '{"city": "Paris"}', "not declared"),
        ("get_weather", '{"city": "Paris"', "no JSON"),
        ("get_weather", "{}", "required"),
        ("get_weather", '{"city": 3}', "not of type"),
        ("get_weather", '{"city": "Paris", "days": 3}', "breaks its schema|break its schema"),
        ("book_table", '{"restaurant": "Luna", "people": 0}', "minimum"),
    ],
)
def test_what_is_wrong_with_a_call_is_said(name: str, arguments: str, fault: str) -> None:
    found = call_fault(name, arguments, [WEATHER, BOOK])
    assert bool(found) == bool(fault)
    assert any(one in found for one in fault.split("|"))


def test_every_strict_schema_has_a_value_and_refuses_another() -> None:
    for name, schema in STRICT_SCHEMAS.items():
        wrapped = submit_tool(schema)["function"]["parameters"]
        assert schema_fault({"value": sample(schema)}, wrapped) == "", name
        assert schema_fault({}, wrapped) and schema_fault({"value": None}, wrapped), name


def test_free_text_is_seen_at_any_depth() -> None:
    free = {name for name, schema in STRICT_SCHEMAS.items() if has_free_text(schema)}
    assert free == {"string", "object"}


@given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.floats(0.1, 100))
def test_a_percentile_is_a_value_that_occurred(values: list[float], percent: float) -> None:
    found = percentile(values, percent)
    assert found in values
    assert sum(value <= found for value in values) >= percent / 100 * len(values) - 1e-9
    assert percentile(values, 100) == max(values)


def test_the_percentile_of_nothing_is_no_number() -> None:
    assert math.isnan(median([])) and median([3.0, 1.0, 2.0]) == 2.0


@given(st.integers(0, 2**32), st.integers(5, 300))
def test_a_register_has_one_code_for_each_name(seed: int, records: int) -> None:
    register = document(Random(seed), records)
    names = [name for name, _ in register.records]
    assert len(names) == len(set(names)) == records
    name, code = register.at(0.5)
    changed = register.changed(name, "XXX-0000")
    assert changed.text != register.text and changed.text.replace("XXX-0000", code) == register.text
    assert register.ask(name).startswith(register.text)


def test_a_text_to_copy_has_letters_of_several_bytes() -> None:
    text = copy_text(Random(1), 40)
    assert len(text.split()) >= 40 and len(text.encode()) > len(text) + 8


def test_pictures_are_of_their_colour() -> None:
    for name, colour in COLOURS.items():
        assert read_png(data_address(png(colour, 28))) == (28, colour)
        assert colour_name(colour) == name


def test_a_quarter_of_the_cases_needs_no_tool() -> None:
    made = cases(Random(0), 32)
    assert sum(not one.tool for one in made) == 8
    assert {one.tool for one in made} - {""} <= {tool["function"]["name"] for tool in TOOLS}
