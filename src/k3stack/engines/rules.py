"""Rules: what an engine needs to be told, when, and why; each with its source and date. Data in data/*.yaml.

A rule speaks about a selection (`when` has no `flags`) or about a finished command (it has). The first kind sets and
unsets things or refuses the selection. The second kind is a check, for commands that we build and for copied ones.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from datetime import date
from enum import Enum
from functools import cached_property, lru_cache
from importlib.resources import files
from typing import Any

import yaml
from packaging.specifiers import SpecifierSet
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from k3stack.errors import InputError, NotKnownError
from k3stack.values import first_fault

__all__ = ["CARD_VERSION", "Rule", "applying", "checks", "holds", "refusals", "rules"]

CARD_VERSION = "0.1.dev19262"
"""What vLLM calls itself in the image `vllm/vllm-openai:kimi-k3` (model card, 2026-08-14): older than every release."""

_COMPARE = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq}
_COMPARISON = re.compile(r"(<=|>=|==|<|>)\s*(\d+)")


class Kind(Enum):
    """What rules are for."""

    SHAPES = "shapes"
    REFUSES = "refuses"
    CHECKS = "checks"


class Rule(BaseModel):
    """One rule; see data/vllm.yaml for how they are written.

    Attributes:
        when: conditions on the selection; all must hold.
        unless: conditions; the rule does not apply when all of these hold.
        flags: conditions on the finished command, by canonical flag; makes the rule a check.
        set: flags to set; objects are laid over what earlier rules set, other values replace it.
        unset: flags to remove.
        digest: the image's digest, where one is known.
        digests: versions to digests of the images that other rules name.
        refuse: the selection (or the combination of flags) is not allowed; `why` says so.
        unpublished: refused because nobody has shown that it works, not because it cannot.
        starts: refused although the engine starts with it: what it then answers is wrong.
        needs: flags, with their values or `set`, that must be there when the check applies.
        needed: a copied command without what this rule sets is wrong for K3, not just different.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    when: dict[str, Any] = Field(default_factory=dict)
    unless: dict[str, Any] = Field(default_factory=dict)
    flags: dict[str, Any] = Field(default_factory=dict)
    set: dict[str, Any] = Field(default_factory=dict)
    unset: tuple[str, ...] = ()
    env: dict[str, str] = Field(default_factory=dict)
    unset_env: tuple[str, ...] = ()
    image: str | None = None
    digest: str | None = None
    digests: dict[str, str] = Field(default_factory=dict)
    patches: tuple[str, ...] = ()
    note: str | None = None
    refuse: bool = False
    unpublished: bool = False
    starts: bool = False
    needs: dict[str, Any] = Field(default_factory=dict)
    needed: bool = False
    fix: str = ""
    why: str
    source: str
    date: date

    @property
    def is_check(self) -> bool:
        """Whether it speaks about a finished command."""
        return bool(self.flags or self.needs)

    @cached_property
    def kind(self) -> Kind:
        """What it is for."""
        if self.is_check:
            return Kind.CHECKS
        return Kind.REFUSES if self.refuse else Kind.SHAPES

    def applies(self, facts: Mapping[str, Any]) -> bool:
        """Whether it speaks about this selection. A condition on something that is not known does not hold."""
        for name, ask in self._when:  # a plain loop: the page asks a thousand times for each answer
            if not ask(facts.get(name)):
                return False
        return not self._unless or not all(ask(facts.get(name)) for name, ask in self._unless)

    @cached_property
    def _when(self) -> tuple[_Condition, ...]:
        return tuple(_condition(*one) for one in self.when.items())

    @cached_property
    def _unless(self) -> tuple[_Condition, ...]:
        return tuple(_condition(*one) for one in self.unless.items())


_Condition = tuple[str, Callable[[Any], bool]]
"""The fact that a condition is about, and what it says of the fact's value."""


def _condition(key: str, wanted: Any) -> _Condition:
    name = {"without": "feature", "versions": "version"}.get(key, key)

    @lru_cache(maxsize=256)  # facts take few values, and rules are asked about them hundreds of times
    def ask(value: Any) -> bool:
        return holds(key, wanted, {} if value is None else {name: value})

    return name, ask


def holds(key: str, wanted: Any, facts: Mapping[str, Any]) -> bool:
    """Whether one condition holds.

    `versions` takes a specifier (">=0.29.0,<0.33"), a number a comparison ("<16"), `without` names of features that
    must be off; everything else one value or a list of allowed ones.

    Raises:
        InputError: a condition on numbers is no comparison.
    """
    if key == "without":
        return not set(_list(wanted)) & set(facts.get("feature", ()))
    if key == "versions":
        return "version" in facts and SpecifierSet(wanted, prereleases=True).contains(facts["version"])
    if key not in facts or facts[key] is None:
        return False
    value = facts[key]
    if isinstance(value, set | frozenset | tuple | list):
        return bool(set(_list(wanted)) & set(value))
    if isinstance(value, int) and isinstance(wanted, str):
        found = _COMPARISON.fullmatch(wanted)
        if found is None:
            raise InputError(f"{wanted!r} is no comparison", where=key, hint="Write for example '<16'.")
        return bool(_COMPARE[found[1]](value, int(found[2])))
    return value in _list(wanted)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    engine: str
    rules: list[Rule]


@lru_cache
def rules(engine: str) -> tuple[Rule, ...]:
    """All rules of an engine, in file order.

    Raises:
        NotKnownError: no rules for this engine.
        InputError: the file does not follow the schema; names the field.
    """
    file = files("k3stack.engines").joinpath(f"data/{engine}.yaml")
    if not file.is_file():
        raise NotKnownError(f"there are no rules for {engine!r}", where="--engine", hint="Known: vllm, sglang.")
    try:
        return tuple(_File.model_validate(yaml.safe_load(file.read_text())).rules)
    except ValidationError as error:
        field, what = first_fault(error)
        raise InputError(what, where=f"{engine}.yaml: {field}") from error


def applying(engine: str, facts: Mapping[str, Any]) -> tuple[Rule, ...]:
    """The rules that shape a command for these facts, in file order."""
    return _about(engine, Kind.SHAPES, facts)


def refusals(engine: str, facts: Mapping[str, Any]) -> tuple[Rule, ...]:
    """The rules that do not allow this selection."""
    return _about(engine, Kind.REFUSES, facts)


def checks(engine: str, facts: Mapping[str, Any]) -> tuple[Rule, ...]:
    """The checks of a finished command that concern these facts."""
    return _about(engine, Kind.CHECKS, facts)


def _about(engine: str, kind: Kind, facts: Mapping[str, Any]) -> tuple[Rule, ...]:
    return tuple(rule for rule in _of_kind(engine, kind) if rule.applies(facts))


@lru_cache(maxsize=16)
def _of_kind(engine: str, kind: Kind) -> tuple[Rule, ...]:
    return tuple(rule for rule in rules(engine) if rule.kind is kind)
