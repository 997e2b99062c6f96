"""The paste box: the doctor of copied commands, as `k3 recipe --from` runs it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from k3stack.errors import UsageError
from k3stack.hardware.table import Gpu
from k3stack.panel.sources import address
from k3stack.recipe.choice import Parsers
from k3stack.recipe.doctor import Diagnosis, Finding
from k3stack.recipe.examine import examine

__all__ = ["MAX_COMMAND_BYTES", "Checked", "CheckedRole", "Fault", "diagnosis"]

MAX_COMMAND_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class Fault:
    """One finding. `weight`: stops, wrong or advice."""

    weight: str
    what: str
    why: str
    fix: str
    rule: str
    source: str
    url: str


@dataclass(frozen=True, slots=True)
class _Told:
    """What is said of a command.

    Attributes:
        assumed: what it does not say and was taken for granted.
        checked_by: whose parser read it; empty for several commands.
    """

    engine: str
    version: str
    model: str
    good: bool
    checked_by: str
    assumed: tuple[str, ...]
    faults: tuple[Fault, ...]


@dataclass(frozen=True, slots=True)
class CheckedRole(_Told):
    """What the doctor says of one command of several; what was assumed for all of them is said once.

    Attributes:
        name: its role, and which node: prefill, decode node 1.
        place: where it stands; `line` from 1, 0 where that is not known.
    """

    name: str
    place: str
    line: int


@dataclass(frozen=True, slots=True)
class Checked(_Told):
    """What the doctor says of a command, or of several; then the faults are those that they have together.

    Attributes:
        roles: each command of several; empty where one is there.
    """

    roles: tuple[CheckedRole, ...] = ()


def diagnosis(text: str, gpu: Gpu | None, parsers: Parsers = Parsers.KIMI_K3) -> Checked:
    """What is wrong with what was copied for these GPUs, where parsers are left out on purpose or not.

    Raises:
        UsageError: there is no command in the text.
    """
    if not text.strip():
        raise UsageError("there is no command", where="command", hint="Paste one that starts vLLM or SGLang.")
    found = examine(text, gpu, None, parsers)
    one = found.only
    if one is not None:
        return Checked(*_about(one, one.assumed))
    first = found.roles[0].diagnosis
    roles = tuple(
        CheckedRole(*_about(role.diagnosis, found.assumed_by(role)), role.name, role.stands_in, role.line)
        for role in found.roles
    )
    return Checked(
        first.engine, first.version, first.model, found.good, "", found.assumed, _faults(found.together), roles
    )


def _about(
    one: Diagnosis, assumed: tuple[str, ...]
) -> tuple[str, str, str, bool, str, tuple[str, ...], tuple[Fault, ...]]:
    return one.engine, one.version, one.model, one.good, one.checked_by, assumed, _faults(one.findings)


def _faults(findings: Iterable[Finding]) -> tuple[Fault, ...]:
    return tuple(
        Fault(one.weight.value, one.what, one.why, one.fix, one.rule, one.source, address(one.source))
        for one in findings
    )
