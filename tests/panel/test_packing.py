"""What an exported site packs comes out as it was."""

import json
import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3stack.panel.about import CONCURRENCIES, CONTEXTS
from k3stack.panel.answer import answer
from k3stack.panel.compact import cell, compact, pooled
from k3stack.panel.dimensions import start
from k3stack.panel.pool import Pool
from k3stack.panel.rows import selection
from k3stack.panel.shard import Shard, shard
from k3stack.panel.template import MARKERS, Template
from k3stack.recipe.choice import Choice
from k3stack.recipe.render import Form
from k3stack.values import dump
from tests.panel.states import follow

PLAIN = st.one_of(st.integers(-9, 9), st.sampled_from(["a", "a b", "c d", "", 1.0, True, None]))
VALUES = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("xy"), inner), max_leaves=6
)


@given(st.integers(1, 4), st.integers(1, 4), st.data())
def test_every_cell_comes_back(rows: int, columns: int, data: st.DataObject) -> None:
    few = data.draw(st.lists(VALUES, min_size=1, max_size=4))
    grid = [[data.draw(st.sampled_from(few)) for _ in range(columns)] for _ in range(rows)]
    packed = compact(grid)
    pool = Pool()
    written = json.loads(json.dumps(pooled(packed, pool.add)))
    values = [json.loads(one) for one in pool.values]
    for row in range(rows):
        for column in range(columns):
            for got in (cell(packed, row, column), cell(written, row, column, values)):
                assert json.dumps(got) == json.dumps(grid[row][column])


def test_axes_are_found() -> None:
    assert compact([[1, 1], [1, 1]]) == {"k": 1}
    assert compact([[1, 1], [2, 2]]) == {"c": [1, 2]}
    assert compact([[1, 2], [1, 2]]) == {"n": [1, 2]}
    assert compact([[1, 2], [3, 4]]) == {"s": [[1, 3], [0, 1]]}
    assert compact([["a 1", "a 2"], ["a 1", "a 2"]]) == {"n": ["a 1", "a 2"]}
    assert compact([["a 1", "a 2"], ["b 1", "b 2"]]) == {"w": [{"c": ["a", "b"]}, {"n": ["1", "2"]}]}
    assert compact([[[1], [1.0]]]) == {"l": [{"n": [1, 1.0]}]} and compact([[[True], [1]]]) != {"k": [True]}
    assert compact([[[], [1]], [[], [1]]]) == {"v": [{"n": [0, 1]}, [{"k": []}, {"k": [1]}]]}


@given(st.lists(st.lists(st.integers(0, 40), max_size=60), max_size=8))
def test_pieces_join_to_the_sequence(sequences: list[list[int]]) -> None:
    pool = Pool()
    packed = [pool.chunked(sequence) for sequence in sequences]
    values = [json.loads(one) for one in pool.values]
    assert [[number for piece in pieces for number in values[piece]] for pieces in packed] == sequences


def read(made: Shard) -> dict[str, Any]:
    return {"pool": [json.loads(one) for one in made.pool], "states": [json.loads(one) for one in made.states]}


def unpacked(value: dict[str, Any], state: list[Any], row: int, column: int, form: Form) -> dict[str, Any]:
    """What the page's script does, in a few lines: for these tests only."""
    pool = value["pool"]
    planned = dict(cell(state[2], row, column, pool))
    fits, ratio = planned.pop("fits"), planned.pop("ratio")
    kind = ("l" if CONTEXTS[row] > 196_608 else "s") + ("" if ratio is None else "r")
    number, command = pool[state[4][kind]]
    text = pool[number]
    stops = {"c": row, "n": column}
    holes = [ratio if axis == "r" else values[stops[axis]] for axis, values in pool[text["holes"]]]

    def fill(words: str) -> str:
        return "".join(str(holes[ord(one) - 0xE000]) if 0xE000 <= ord(one) < 0xE100 else one for one in words)

    packed = text["written"][form.value]
    lines = None
    if fits and not isinstance(packed, str):
        numbers = [line for piece in packed for line in pool[piece]]
        lines = [
            [[fill(words), None if reason < 0 else pool[reason]] for words, reason in pool[line]] for line in numbers
        ]
    rest = json.loads(fill(json.dumps(pool[text["rest"]], ensure_ascii=False)))
    return {**rest, **planned, "lines": lines, "command": fill(pool[command]) + form.value, "figures": pool[state[3]]}


def lines_of(written: dict[str, Any] | None) -> Any:
    """A command's lines with the reasons themselves instead of their numbers."""
    if written is None or written["refused"]:
        return None
    reasons = written["reasons"]
    return [[[words, None if at < 0 else reasons[at]] for words, at in line] for line in written["lines"]]


@pytest.mark.parametrize(
    "choice",
    [
        follow(),
        follow(("engine", "sglang"), ("speculation", "dspark")),
        follow(("serving", "prefill-decode"), ("speculation", "dspark")),
    ],
    ids=["vllm", "sglang", "split"],
)
def test_a_shard_holds_the_answers(choice: Choice) -> None:
    value = read(shard([choice], set()))
    assert len(value["states"]) == 1
    dice = random.Random(7)
    for form in (*Form, *Form):
        row, column = dice.randrange(len(CONTEXTS)), dice.randrange(len(CONCURRENCIES))
        want = json.loads(json.dumps(dump(answer(choice.at(CONTEXTS[row], CONCURRENCIES[column]), form))))
        got = unpacked(value, value["states"][0], row, column, form)
        assert got["lines"] == lines_of(want["written"])
        for name in ("verdict", "memory", "unknown", "command", "image", "environment", "notes", "client", "figures"):
            assert got[name] == want[name], name


def test_what_the_site_does_not_hold_cannot_be_taken() -> None:
    value = read(shard([start()], {selection(start()), selection(follow(("hardware", "b200")))}))
    pool = value["pool"]
    hardware = next(pool[row] for row in value["states"][0][1] if pool[row][0] == "hardware")
    reasons = {pool[shown][0]: pool[refused]["rule"] for shown, _, _, _, refused in hardware[1] if refused >= 0}
    assert "b200" not in reasons and reasons["h200"] == "not-in-site" and reasons["h100"] == "vllm-no-h100"
    assert all(to == -1 for _, _, to, _, refused in hardware[1] if refused >= 0)


def test_markers_leave_every_slider_number_open() -> None:
    choice = follow(("goal", "high-throughput"))
    cut = [Template(choice, markers, True, False) for markers in MARKERS]
    texts = [one.cut(f"--max-model-len {one.choice.workload.context} --port 8000") for one in cut]
    assert texts[0] == texts[1] and "8000" in texts[0]
    values = {hole.values for hole in cut[0].holes}
    assert CONTEXTS in values and tuple(math.ceil(count / 16) for count in CONCURRENCIES) in values
