"""The known failures: what the log says, why, what to do; each with its source and date. Data in data/failures.yaml."""

from __future__ import annotations

import re
from datetime import date
from functools import lru_cache
from importlib.resources import files
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from k3stack.errors import InputError
from k3stack.values import first_fault

__all__ = ["Failure", "Wording", "failure", "failures", "read_failures"]


class Wording(BaseModel):
    """A phrase as it stands in an engine's source."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    wheel: str
    file: str
    text: str


class Failure(BaseModel):
    """One known failure; see data/failures.yaml for how they are written.

    Attributes:
        patterns: regular expressions; one must match a line.
        around: one of these must match in the lines before it as well; empty for no such condition.
        unless: none of these may match there.
        within: how many lines before that is.
        instead_of: less specific failures that this one replaces.
        symptom: it follows from a failure elsewhere.
        general: it says only of what kind a failure is; left out where another one speaks of the same.
        waits: it is what a rank says that waited for another one in vain.
        ends: no server goes on after it, so it is no error of one request.
        signals: a process that ended by one of these, with no cause in its log, failed in this way.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str = Field(pattern=r"^[a-z0-9-]+$")
    title: str
    engine: Literal["vllm", "sglang", "any"]
    patterns: tuple[str, ...]
    around: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    within: int = 200
    instead_of: tuple[str, ...] = ()
    symptom: bool = False
    general: bool = False
    waits: bool = False
    ends: bool = False
    signals: tuple[int, ...] = ()
    cause: str
    fix: str
    source: str
    wording: tuple[Wording, ...] = ()
    date: date

    @field_validator("patterns", "around", "unless")
    @classmethod
    def _compiles(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in value:
            try:
                re.compile(pattern, re.MULTILINE)
            except re.error as error:
                raise ValueError(f"{pattern!r} is no regular expression: {error}") from error
        return value

    @model_validator(mode="after")
    def _can_be_found(self) -> Failure:
        if not self.patterns and not self.signals:
            raise ValueError("needs patterns or signals: nothing could ever match it")
        return self


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid")

    failures: list[Failure]


@lru_cache(maxsize=1)
def failures() -> tuple[Failure, ...]:
    """All known failures, in the order of the file."""
    return read_failures(files("k3stack.launch").joinpath("data/failures.yaml").read_text(), "failures.yaml")


def read_failures(text: str, where: str) -> tuple[Failure, ...]:
    """Failures from YAML.

    Raises:
        InputError: a field is missing, unknown or wrong, two have one id, or one replaces an unknown one.
    """
    try:
        found = tuple(_Table.model_validate(yaml.safe_load(text)).failures)
    except ValidationError as error:
        field, what = first_fault(error)
        raise InputError(what, where=f"{where}: {field}") from error
    ids = [one.id for one in found]
    for one in found:
        if ids.count(one.id) > 1:
            raise InputError("two failures have this id", where=f"{where}: {one.id}")
        for other in one.instead_of:
            if other not in ids:
                raise InputError(f"replaces {other}, which is not there", where=f"{where}: {one.id}")
    return found


def failure(name: str) -> Failure:
    """The failure with this id."""
    return next(one for one in failures() if one.id == name)
