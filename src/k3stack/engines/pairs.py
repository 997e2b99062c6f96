"""What the commands of one endpoint must have in common: rules about two of them, and about all. Data in pairs.yaml."""

from __future__ import annotations

from datetime import date
from functools import lru_cache
from importlib.resources import files
from typing import Any, Literal

import yaml
from packaging.specifiers import SpecifierSet
from pydantic import BaseModel, ConfigDict, Field

__all__ = ["GroupRule", "PairRule", "group_rule", "group_rules", "pair_rules"]

Must = Literal["equal", "divide", "decode-equal-or-one", "equal-or-prefill-one"]


class GroupRule(BaseModel):
    """A fault that several commands have together; `advice`: it runs and is not wrong."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    advice: bool = False
    why: str
    fix: str
    source: str
    date: date


class PairRule(GroupRule):
    """Something that prefill and decode must agree about; data/pairs.yaml says how it is written."""

    engine: str
    of: str
    must: Must
    standard: str | None = None
    same: dict[str, str] = Field(default_factory=dict)
    decode: dict[str, Any] = Field(default_factory=dict)
    versions: str = ""

    @property
    def flag(self) -> str:
        """The flag that it is about; empty where it is about something that several say."""
        return "" if self.of in ("tp", "pp", "dcp", "version", "model") else self.of.partition(".")[0]

    def concerns(self, version: str) -> bool:
        """Whether it holds for a release."""
        return not self.versions or SpecifierSet(self.versions, prereleases=True).contains(version)


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    pairs: list[PairRule]
    groups: list[GroupRule]


@lru_cache(maxsize=1)
def _file() -> _File:
    return _File.model_validate(yaml.safe_load(files("k3stack.engines").joinpath("data/pairs.yaml").read_text()))


@lru_cache
def pair_rules(engine: str) -> tuple[PairRule, ...]:
    """The rules about prefill and decode of an engine, in file order."""
    return tuple(rule for rule in _file().pairs if rule.engine == engine)


def group_rules() -> tuple[GroupRule, ...]:
    """The rules about several commands, in file order."""
    return tuple(_file().groups)


@lru_cache
def group_rule(name: str) -> GroupRule:
    """The rule of this name about several commands."""
    return next(rule for rule in group_rules() if rule.id == name)
