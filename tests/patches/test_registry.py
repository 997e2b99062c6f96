from __future__ import annotations

from typing import Any, ClassVar

import pytest

from k3stack.patches.edits import Edits
from k3stack.patches.patch import Finding, Patch, State
from k3stack.patches.registry import all_patches, settle, stops_the_server
from k3stack.patches.switches import Mode, Switch, mode, switch


class Engine:
    """Stands for the engine's code: broken until both parts are mended."""

    def __init__(self) -> None:
        self.first, self.second = "broken", "broken"


class TwoParts(Patch):
    number: ClassVar[int] = 1
    switch: ClassVar[str] = "KIMI_TEST"
    title: ClassVar[str] = "two parts"
    line: ClassVar[str] = "Kimi-K3 runtime patch: mended both"
    knowledge: ClassVar[tuple[Any, ...]] = ()

    def __init__(self, engine: Engine, fault: str = "") -> None:
        self.engine, self.fault = engine, fault

    def needed(self) -> Finding:
        if self.fault == "probe":
            raise AttributeError("no such symbol")
        whole = (self.engine.first, self.engine.second) == ("mended", "mended")
        return Finding(not whole, "it works" if whole else "it is broken")

    def apply(self, edits: Edits) -> None:
        edits.replace(self.engine, "first", "mended")
        if self.fault == "symbol":
            edits.replace(self.engine, "third", "mended")
        if self.fault == "exception":
            raise ZeroDivisionError("in the second part")
        if self.fault != "useless":
            edits.replace(self.engine, "second", "mended")


class Optional(TwoParts):
    optional: ClassVar[bool] = True


def test_a_needed_patch_is_applied_and_proved() -> None:
    engine = Engine()
    (outcome,) = settle([TwoParts(engine)], {})
    assert (outcome.state, outcome.line) == (State.APPLIED, TwoParts.line)
    assert engine.second == "mended"


def test_what_works_is_left_alone() -> None:
    engine = Engine()
    engine.first = engine.second = "mended"
    (outcome,) = settle([TwoParts(engine)], {"KIMI_TEST": "1"})
    assert (outcome.state, outcome.why) == (State.NOT_NEEDED, "it works")


def test_applying_twice_finds_nothing_to_do() -> None:
    engine = Engine()
    settle([TwoParts(engine)], {})
    (outcome,) = settle([TwoParts(engine)], {})
    assert outcome.state is State.NOT_NEEDED


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("probe", "its probe failed: AttributeError: no such symbol"),
        ("symbol", "has no third"),
        ("exception", "ZeroDivisionError: in the second part"),
        ("useless", "its proof failed: it is broken"),
    ],
)
def test_a_patch_that_fails_leaves_nothing_behind(fault: str, why: str) -> None:
    engine, other = Engine(), Engine()
    outcomes = settle([TwoParts(engine, fault), TwoParts(other)], {})
    assert [outcome.state for outcome in outcomes] == [State.CANNOT, State.APPLIED]
    assert why in outcomes[0].why
    assert (engine.first, engine.second) == ("broken", "broken")
    assert stops_the_server(outcomes, {"K3_PATCHES": "strict"})
    assert not stops_the_server(outcomes, {})


def test_switches() -> None:
    assert settle([TwoParts(Engine())], {"KIMI_TEST": "0"})[0].state is State.DISABLED
    assert settle([TwoParts(Engine())], {"K3_PATCHES": "off"})[0].state is State.DISABLED
    assert settle([Optional(Engine())], {})[0].state is State.NOT_NEEDED
    assert settle([Optional(Engine())], {"KIMI_TEST": "1"})[0].state is State.APPLIED


def test_a_disabled_patch_never_stops_a_strict_server() -> None:
    environ = {"K3_PATCHES": "strict", "KIMI_TEST": "0"}
    assert not stops_the_server(settle([TwoParts(Engine(), "probe")], environ), environ)


@pytest.mark.parametrize(
    ("word", "meaning"),
    [("", Mode.AUTO), ("auto", Mode.AUTO), ("STRICT", Mode.STRICT), ("off", Mode.OFF), ("0", Mode.OFF)],
)
def test_modes(word: str, meaning: Mode) -> None:
    assert mode({"K3_PATCHES": word}) is meaning


def test_words_that_mean_nothing_are_errors() -> None:
    assert switch({"X": "1"}, "X") is Switch.ON
    with pytest.raises(ValueError, match="X=maybe is none of 0, 1, auto"):
        switch({"X": "maybe"}, "X")
    with pytest.raises(ValueError, match="K3_PATCHES=hard is none of auto, strict, off"):
        mode({"K3_PATCHES": "hard"})


def test_every_patch_fills_in_its_shape() -> None:
    patches = all_patches()
    assert [patch.number for patch in patches] == [1, 2, 3, 4, 5, 6]
    assert len({patch.switch for patch in patches}) == 6
    for patch in patches:
        assert patch.line.startswith("Kimi-K3 runtime patch: ")
        assert patch.title
        assert patch.retires
        assert patch.knowledge


def test_on_a_machine_without_the_engine_each_says_what_is_missing() -> None:
    for outcome in settle(all_patches(), {}):
        assert outcome.state is State.CANNOT
        assert "cannot be imported" in outcome.why or "No module named" in outcome.why


def test_lines_are_nvidias_where_nvidia_has_one() -> None:
    lines = {patch.number: patch.line for patch in all_patches()}
    assert lines[2] == "Kimi-K3 runtime patch: deferred image placeholder expansion to vLLM"
    assert lines[4] == ("Kimi-K3 runtime patch: removed the duplicate SiTU g1_alphas fold from TRTLLM NVFP4 g1_scale_c")
    assert lines[5] == (
        "Kimi-K3 runtime patch: enabled mixed FP8_PB_WO dispatch, FP8 kv_b_proj input restoration, and 128-row "
        "padding for fused KDA/MLA projections"
    )
