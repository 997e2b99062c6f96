"""What a check is, and the list of all of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from k3stack.errors import UsageError
from k3stack.verify.report import Exchange, Figure, Level, Plot, Status

if TYPE_CHECKING:
    from k3stack.verify.session import Session

__all__ = ["Check", "Verdict", "all_checks", "check", "choose", "failed", "not_applicable", "passed", "warned"]

# The order of the report, and in which the checks run: those that need little first, those that look back last.
_FAMILIES = (
    "basic", "streaming", "delivery", "dialogue", "thinking", "tools", "toolsets", "calls", "schemas", "structured",
    "images", "recall", "concurrency", "mixture", "caching", "limits", "chances", "sampling", "cancelling",
    "robustness", "hindsight", "speed", "soak",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a check's own function returns; the runner adds the rest."""

    status: Status
    summary: str
    evidence: tuple[Exchange, ...] = ()
    figures: tuple[Figure, ...] = ()
    plots: tuple[Plot, ...] = ()


Judge = Callable[["Session"], Awaitable[Verdict]]


@dataclass(frozen=True, slots=True)
class Check:
    """One check.

    Attributes:
        id: its name on the command line.
        level: the least level that it belongs to.
        limit_s: seconds after which it is given up.
        judge: does it.
    """

    id: str
    title: str
    proves: str
    failure_means: str
    level: Level
    limit_s: float
    judge: Judge


_checks: dict[str, Check] = {}


def check(
    check_id: str, level: Level, title: str, *, proves: str, failure_means: str, limit_s: float = 180.0
) -> Callable[[Judge], Judge]:
    """Put a function on the list of checks."""

    def register(judge: Judge) -> Judge:
        if check_id in _checks:
            raise ValueError(f"two checks are called {check_id!r}")
        _checks[check_id] = Check(check_id, title, proves, failure_means, level, limit_s, judge)
        return judge

    return register


def all_checks() -> tuple[Check, ...]:
    """Every check, in the order in which they run."""
    for family in _FAMILIES:
        import_module(f"k3stack.verify.checks.{family}")
    return tuple(sorted(_checks.values(), key=lambda one: _FAMILIES.index(one.judge.__module__.rsplit(".", 1)[1])))


def choose(level: Level, only: Iterable[str]) -> tuple[Check, ...]:
    """The checks of a level, or those named, whatever their level.

    Raises:
        UsageError: a name that no check has.
    """
    known = all_checks()
    wanted = tuple(only)
    unknown = sorted(set(wanted) - {one.id for one in known})
    if unknown:
        raise UsageError(
            f"no check is called {', '.join(unknown)}", where="--only", hint=f"Known: {', '.join(c.id for c in known)}"
        )
    if wanted:
        return tuple(one for one in known if one.id in wanted)
    return tuple(one for one in known if level.includes(one.level))


def passed(summary: str, *evidence: Exchange, figures: Iterable[Figure] = (), plots: Iterable[Plot] = ()) -> Verdict:
    """It is as it should be."""
    return Verdict(Status.PASS, summary, evidence, tuple(figures), tuple(plots))


def failed(summary: str, *evidence: Exchange, figures: Iterable[Figure] = (), plots: Iterable[Plot] = ()) -> Verdict:
    """It is not."""
    return Verdict(Status.FAIL, summary, evidence, tuple(figures), tuple(plots))


def warned(summary: str, *evidence: Exchange, figures: Iterable[Figure] = (), plots: Iterable[Plot] = ()) -> Verdict:
    """Right, but worth knowing."""
    return Verdict(Status.WARN, summary, evidence, tuple(figures), tuple(plots))


def not_applicable(reason: str, *evidence: Exchange, figures: Iterable[Figure] = ()) -> Verdict:
    """It cannot be judged here; never a pass."""
    return Verdict(Status.NOT_APPLICABLE, reason, evidence, tuple(figures))
