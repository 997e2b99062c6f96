from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3stack.patches.edits import Edits, find, require_parameters
from k3stack.patches.patch import CannotApplyError


class Base:
    inherited = 1

    @staticmethod
    def fixed() -> int:
        return 1


class Child(Base):
    own = 2


def state(owner: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(owner).items() if not name.startswith("__")}


def test_undo_restores_own_attributes_and_removes_what_was_inherited() -> None:
    before = state(Child)
    edits = Edits()
    assert edits.replace(Child, "own", 3) == 2
    edits.replace(Child, "inherited", 4)
    edits.add(Child, "new", 5)
    assert (Child.own, Child.inherited, vars(Child)["new"]) == (3, 4, 5)
    edits.undo()
    assert state(Child) == before
    assert Child.inherited == 1


def test_undo_restores_a_static_method_as_such() -> None:
    edits = Edits()
    edits.replace(Base, "fixed", lambda: 2)
    edits.undo()
    assert isinstance(vars(Base)["fixed"], staticmethod)


def test_a_missing_attribute_cannot_be_replaced() -> None:
    with pytest.raises(CannotApplyError, match="Child has no gone"):
        Edits().replace(Child, "gone", 1)


@given(st.lists(st.tuples(st.sampled_from(["own", "inherited", "a", "b"]), st.integers()), max_size=20))
def test_any_run_of_edits_can_be_undone(steps: list[tuple[str, int]]) -> None:
    before = state(Child)
    edits = Edits()
    for name, value in steps:
        edits.add(Child, name, value)
    edits.undo()
    assert state(Child) == before


def test_copies_made_by_from_import_are_replaced_and_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    def original() -> str:
        return "old"

    home, copy, other = ModuleType("home"), ModuleType("copy"), ModuleType("other")
    home.__dict__["f"] = copy.__dict__["f"] = original
    other.__dict__["f"] = lambda: "mine"
    for module in (home, copy, other):
        monkeypatch.setitem(sys.modules, f"k3_test_{module.__name__}", module)
    edits = Edits()
    edits.replace_function("k3_test_home", "f", lambda old: lambda: old() + " wrapped")
    assert [module.__dict__["f"]() for module in (home, copy, other)] == ["old wrapped", "old wrapped", "mine"]
    edits.undo()
    assert home.__dict__["f"] is original
    assert copy.__dict__["f"] is original


def test_find_names_what_is_missing() -> None:
    with pytest.raises(CannotApplyError, match="module no_such_engine cannot be imported"):
        find("no_such_engine")
    with pytest.raises(CannotApplyError, match=r"json has no JSONDecoder\.gone"):
        find("json", "JSONDecoder.gone")


def test_a_changed_signature_is_named() -> None:
    def function(a: int, *, b: int) -> None: ...

    require_parameters(function, "a", "b")
    with pytest.raises(CannotApplyError, match="no longer takes the parameter 'c'"):
        require_parameters(function, "c")
