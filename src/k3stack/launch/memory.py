"""Predicted beside reported memory, as soon as the log of a start has it."""

from __future__ import annotations

from dataclasses import dataclass

from k3stack.errors import K3Error
from k3stack.spec.model import ModelSpec

__all__ = ["Memory", "compare_memory"]


@dataclass(frozen=True, slots=True)
class Memory:
    """One figure of the log beside what we computed.

    Attributes:
        agrees: within the rounding of the log, or 2 %; None where there is nothing to compare.
        why: how it was predicted, and why it differs.
    """

    quantity: str
    unit: str
    predicted: float | None
    reported: float
    agrees: bool | None
    why: str = ""

    def __str__(self) -> str:
        reported = f"{self.quantity} {self.reported:,.2f} {self.unit} reported"
        if self.predicted is None:
            return reported
        verdict = "" if self.agrees is not False else f", differs: {self.why}"
        return f"{reported}, {self.predicted:,.2f} predicted{verdict}"


def compare_memory(log: str, spec: ModelSpec | None, engine: str) -> tuple[Memory, ...]:
    """Every memory figure that the log reports so far; predicted ones for Kimi-K3 only."""
    from k3stack.plan.compare import compare
    from k3stack.plan.logs import parse_log

    if engine not in ("vllm", "sglang"):
        return ()
    try:
        seen = parse_log(log, "log")
        compared = compare(seen, spec) if spec is not None and seen.number("tp") is not None else ()
    except K3Error:
        return ()  # too early: the log does not say enough yet
    if not compared:
        kept = [figure for figure in seen.figures if figure.unit in ("GiB", "tokens", "blocks")]
        return tuple(Memory(one.name, one.unit, None, one.greatest, None) for one in kept)
    return tuple(
        Memory(one.quantity, one.unit, one.predicted, one.reported, one.agrees, one.why)
        for one in compared
        if one.reported is not None
    )
