"""The paste box: the doctor of copied commands, as `k3 recipe --from` runs it."""

from __future__ import annotations

from dataclasses import dataclass

from k3stack.errors import UsageError
from k3stack.hardware.table import Gpu
from k3stack.panel.sources import address
from k3stack.recipe.choice import Parsers
from k3stack.recipe.doctor import diagnose

__all__ = ["MAX_COMMAND_BYTES", "Checked", "diagnosis"]

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
class Checked:
    """What the doctor says of a command.

    Attributes:
        assumed: what the command does not say and was taken for granted.
        checked_by: whose parser read it.
    """

    engine: str
    version: str
    model: str
    good: bool
    checked_by: str
    assumed: tuple[str, ...]
    faults: tuple[Fault, ...]


def diagnosis(text: str, gpu: Gpu | None, parsers: Parsers = Parsers.KIMI_K3) -> Checked:
    """What is wrong with a copied command for these GPUs, where parsers are left out on purpose or not.

    Raises:
        UsageError: there is no command in the text.
    """
    if not text.strip():
        raise UsageError("there is no command", where="command", hint="Paste one that starts vLLM or SGLang.")
    found = diagnose(text, gpu, None, parsers)
    faults = tuple(
        Fault(one.weight.value, one.what, one.why, one.fix, one.rule, one.source, address(one.source))
        for one in found.findings
    )
    return Checked(found.engine, found.version, found.model, found.good, found.checked_by, found.assumed, faults)
