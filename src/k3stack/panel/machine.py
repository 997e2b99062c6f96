"""What this machine has, for the page's button "Use this machine"."""

from __future__ import annotations

from dataclasses import dataclass

from k3stack.hardware.machine import look, plannable

__all__ = ["Found", "found"]


@dataclass(frozen=True, slots=True)
class Found:
    """The kind of GPU to choose and how many there are; empty and 0 when there is none that we know.

    Attributes:
        memory_bytes: of one GPU, as its driver reports it.
        missing: what could not be looked at, and why.
    """

    hardware: str
    name: str
    count: int
    memory_bytes: int
    driver: str
    missing: tuple[str, ...]


def found() -> Found:
    """Look at this machine's GPUs."""
    machine = look(measure=False)
    usable = plannable(machine)
    if usable is None:
        return Found("", "", 0, 0, machine.driver or "", machine.missing)
    kind, count = usable
    return Found(kind.id, kind.name, count, kind.memory_bytes, machine.driver or "", machine.missing)
