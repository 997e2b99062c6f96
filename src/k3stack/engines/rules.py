"""Rules: what an engine needs to be told, when, and why; each with its source and date. Data in data/*.yaml."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import date
from functools import lru_cache
from importlib.resources import files
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field

from k3stack.errors import NotKnownError

__all__ = ["Rule", "applying", "rules"]


class Rule(BaseModel):
    """One rule; see data/vllm.yaml for the meaning of each field."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    when: dict[str, list[Any]]
    set: dict[str, Any] = Field(default_factory=dict)
    env: dict[str, str] = Field(default_factory=dict)
    image: str | None = None
    patches: tuple[str, ...] = ()
    why: str
    source: str
    date: date

    def applies(self, facts: Mapping[str, Any]) -> bool:
        """Whether every condition holds for these facts."""
        return all(facts[key] in allowed for key, allowed in self.when.items())


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    engine: str
    rules: list[Rule]


@lru_cache
def rules(engine: str) -> tuple[Rule, ...]:
    """All rules of an engine.

    Raises:
        NotKnownError: no rules for this engine.
    """
    file = files("k3stack.engines").joinpath(f"data/{engine}.yaml")
    if not file.is_file():
        raise NotKnownError(f"there are no rules for {engine!r}", where="--engine", hint="Known: vllm.")
    return tuple(_File.model_validate(yaml.safe_load(file.read_text())).rules)


def applying(engine: str, facts: Mapping[str, Any]) -> Iterator[Rule]:
    """The rules that hold for these facts, in file order."""
    return (rule for rule in rules(engine) if rule.applies(facts))
