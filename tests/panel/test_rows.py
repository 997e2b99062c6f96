"""The rows: every value either leads to an allowed choice and says what moves, or says why not."""

import pytest

from k3stack.engines.rules import rules
from k3stack.hardware.table import gpus
from k3stack.panel.answer import answer
from k3stack.panel.dimensions import DIMENSIONS, start, value, values, with_value
from k3stack.panel.follow import change
from k3stack.panel.rows import rows, selection
from k3stack.panel.walk import Coverage, covered
from k3stack.recipe.choice import refused
from k3stack.recipe.link import from_query
from k3stack.recipe.render import Form
from tests.panel.states import follow, some

MAY_MOVE = {"layout", "version", "kv", "utilization", "batched_tokens"}


@pytest.mark.parametrize("number", range(0, 60, 3))
def test_every_value_can_be_taken_or_says_why_not(number: int) -> None:
    choice = some()[number]
    for dimension in DIMENSIONS:
        for word in values(choice, dimension):
            changed = change(choice, dimension, word)
            if changed.choice is None:
                assert changed.refusal is not None and not changed.moves
                assert changed.refusal.reason.why.endswith(".") and changed.refusal.fix
                assert changed.refusal in refused(with_value(choice, dimension, word))
            else:
                assert not refused(changed.choice)
                assert value(changed.choice, dimension) == word


@pytest.mark.parametrize("number", range(0, 60, 3))
def test_whatever_moves_is_said(number: int) -> None:
    choice = some()[number]
    for dimension in DIMENSIONS:
        for word in values(choice, dimension):
            changed = change(choice, dimension, word)
            if changed.choice is None:
                continue
            before, after = choice.workload, changed.choice.workload
            differing = {name for name in DIMENSIONS if value(choice, name) != value(changed.choice, name)}
            differing |= {
                name for name in ("utilization", "batched_tokens") if getattr(before, name) != getattr(after, name)
            }
            assert {move.dimension for move in changed.moves} == differing - {dimension} <= MAY_MOVE
            assert (before.context, before.concurrency) == (after.context, after.concurrency)


def test_taking_what_is_chosen_changes_nothing() -> None:
    for choice in some()[:10]:
        for dimension in DIMENSIONS:
            assert with_value(choice, dimension, value(choice, dimension)) == choice


def test_hopper_moves_the_published_layout_and_its_settings_along() -> None:
    changed = change(start(), "hardware", "h200")
    moved = {move.dimension: (move.before, move.after) for move in changed.moves}
    assert moved["layout"] == ("tp8,pp1,dp1,dcp1", "tp16,pp1,dp1,dcp1")
    assert moved["kv"] == ("fp8", "bf16") and moved["utilization"] == ("0.9", "0.97")
    assert change(follow(("hardware", "h200")), "hardware", "b300").choice == start()


def test_a_layout_of_ones_own_stays_where_it_is_allowed() -> None:
    own = follow(("layout", "tp16,pp1,dp1,dcp1"), ("goal", "high-throughput"))
    assert value(own, "layout") == "tp16,pp1,dp1,dcp1"


def test_nvfp4_on_sglang_needs_blackwell_and_says_what_instead() -> None:
    refusal = change(follow(("engine", "sglang"), ("scheme", "nvfp4-mixed")), "hardware", "h200").refusal
    assert refusal is not None
    assert "Blackwell" in refusal.reason.why and "TRT-LLM" in refusal.reason.why and "mxfp4" in refusal.fix
    assert change(follow(("scheme", "nvfp4-mixed")), "hardware", "h200").choice is not None


def test_parsers_are_a_choice_and_k2s_are_refused() -> None:
    raw = follow(("parsers", "raw"))
    assert not answer(raw, Form.DOCKER).parsers and answer(start(), Form.DOCKER).parsers
    assert answer(follow(("serving", "prefill-decode")), Form.DOCKER).parsers
    refusal = change(start(), "parsers", "kimi_k2").refusal
    assert refusal is not None and "kimi_k3" in refusal.fix
    assert not covered(raw, Coverage()) and covered(start(), Coverage())


def test_a_release_follows_with_its_reason() -> None:
    changed = change(follow(("scheme", "nvfp4-mixed"), ("version", "0.27.1")), "hardware", "h200")
    move = next(move for move in changed.moves if move.dimension == "version")
    assert move.after == "0.33.0" and "Hopper" in move.why


def test_many_refusing_rules_are_met_by_clicks() -> None:
    met = {option.refused.rule for one in some() for row in rows(one) for option in row.options if option.refused}
    known = {rule.id for engine in ("vllm", "sglang") for rule in rules(engine) if rule.refuse}
    assert met - {"checkpoint-scheme", "whole-nodes", "no-prefill"} <= known
    assert len(met) > 20, met


def test_rows_show_all_hardware_and_releases() -> None:
    shown = {row.dimension: [option.value for option in row.options] for row in rows(start())}
    assert list(shown) == list(DIMENSIONS) and shown["hardware"] == list(gpus())
    assert shown["version"][0] == start().version and shown["version"][-1] == "kimi-k3"
    for row in rows(start()):
        assert [option.chosen for option in row.options].count(True) == 1


def test_a_selection_is_the_choice_without_the_sliders() -> None:
    for choice in some():
        text = f"{selection(choice)}&context={choice.workload.context}&concurrency={choice.workload.concurrency}"
        assert from_query(text) == choice
