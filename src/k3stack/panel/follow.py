"""What has to move when one choice is changed: the nearest allowed choice, or the reason why there is none.

Only what serves a choice may move with it: the layout, the release and how the cache is stored. Hardware, engine,
scheme, goal, serving and features are the reader's; where one of them stands in the way, the change is not possible
and says which.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product

from k3stack.engines.rules import rules
from k3stack.panel.dimensions import DIMENSIONS, Pair, pairs, releases, suggestion, value, with_usual, with_value
from k3stack.plan.layout import KvDtype
from k3stack.recipe.choice import KV_STANDARD, Choice, Refusal, refused, standard_version

__all__ = ["Change", "Move", "against", "change", "leads_to"]

_LAYOUT_FACTS = frozenset(
    "gpus nodes tp attention_tp pp dp ep dcp tp_mod_dcp dcp_is_tp strategy inside_nvlink replica_crosses_nodes "
    "pd_stages_differ pd_dcp_differs pd_prefill_dcp pd_tp_divides".split()
)
_MOST_RELEASES = 4
"""How many releases are tried: the standard one and the newest."""


@dataclass(frozen=True, slots=True)
class Move:
    """Something that moved along: the row, its value before and after, and the rule's reason."""

    dimension: str
    before: str
    after: str
    why: str


@dataclass(frozen=True, slots=True)
class Change:
    """What a change of one row would come to.

    Attributes:
        choice: the allowed choice it leads to; None where there is none.
        moves: what else moves.
        refusal: why it is not possible.
    """

    choice: Choice | None
    moves: tuple[Move, ...] = ()
    refusal: Refusal | None = None


@lru_cache(maxsize=200_000)
def against(choice: Choice) -> tuple[Refusal, ...]:
    """Every reason against a choice."""
    return refused(choice)


def change(choice: Choice, dimension: str, word: str) -> Change:
    """What comes of putting one value into one row."""
    wanted, reasons, found = _followed(choice, dimension, word)
    if found is None:
        return Change(None, refusal=_stubborn(wanted, dimension, reasons) or reasons[0])
    return Change(found, tuple(_moves(choice, found, dimension, reasons)))


def leads_to(choice: Choice, dimension: str, word: str) -> Choice | None:
    """The choice of `change` alone."""
    return _followed(choice, dimension, word)[2]


def _followed(choice: Choice, dimension: str, word: str) -> tuple[Choice, tuple[Refusal, ...], Choice | None]:
    """What was wanted, what is against it, and the nearest that is allowed."""
    wanted = with_value(choice, dimension, word)
    reasons = against(wanted)
    found = wanted if not reasons else _nearest(wanted, dimension, reasons)
    if found is not None and dimension != "kv":
        usual = with_usual(choice, found)
        found = found if against(usual) else usual
    return wanted, reasons, found


def _moves(before: Choice, after: Choice, dimension: str, reasons: tuple[Refusal, ...]) -> list[Move]:
    found = []
    for name in DIMENSIONS:
        old, new = value(before, name), value(after, name)
        if name != dimension and old != new:
            found.append(Move(name, old, new, _why(name, after, reasons)))
    for name, style in (("utilization", "g"), ("batched_tokens", ",")):
        then, now = getattr(before.workload, name), getattr(after.workload, name)
        if then != now:
            found.append(Move(name, format(then, style), format(now, style), ""))
    return found


def _why(dimension: str, after: Choice, reasons: tuple[Refusal, ...]) -> str:
    """The rule that made it move; empty where the value came along as published."""
    for reason in reasons:
        if dimension in _axes(after.engine, reason):
            return reason.reason.why
    return ""


def _stubborn(choice: Choice, dimension: str, reasons: tuple[Refusal, ...]) -> Refusal | None:
    """The first reason that nothing which may move could mend."""
    return next((one for one in reasons if not _axes(choice.engine, one) - {dimension}), None)


@lru_cache(maxsize=4)
def _rule_axes(engine: str) -> dict[str, frozenset[str]]:
    return {
        rule.id: frozenset(
            axis
            for axis, facts in (("layout", _LAYOUT_FACTS), ("version", {"versions"}), ("kv", {"kv_dtype"}))
            if facts & {*rule.when, *rule.unless}
        )
        for rule in rules(engine)
        if rule.refuse
    }


def _axes(engine: str, refusal: Refusal) -> frozenset[str]:
    """The rows that may move and that this refusal depends on."""
    return _rule_axes(engine).get(refusal.reason.rule, frozenset({"layout"}))


def _nearest(wanted: Choice, dimension: str, reasons: tuple[Refusal, ...]) -> Choice | None:
    """The allowed choice with the fewest moves, looked for along the rows that the refusals depend on."""
    axes: frozenset[str] = frozenset()
    while not _stubborn(wanted, dimension, reasons):
        more = axes.union(*(_axes(wanted.engine, one) for one in reasons)) - {dimension}
        if more == axes:
            return None
        axes = more
        met: dict[str, Refusal] = {}
        for candidate in _candidates(wanted, axes):
            left = against(candidate)
            if not left:
                return candidate
            met.update((one.reason.rule, one) for one in left if _axes(wanted.engine, one) - {dimension})
        reasons = tuple(met.values())
        if not reasons:
            return None
    return None


def _candidates(wanted: Choice, axes: frozenset[str]) -> list[Choice]:
    layouts: list[Pair] = [(wanted.layout, wanted.prefill)]
    if "layout" in axes:
        known = suggestion(wanted.engine, wanted.gpu, wanted.serving, wanted.goal)
        layouts += [(known.layout, known.prefill)] if known else []
        layouts += pairs(wanted)
    names = [wanted.version]
    if "version" in axes:
        standard = standard_version(wanted.engine, wanted.gpu, wanted.scheme)
        names += [standard, *releases(wanted.engine)[:_MOST_RELEASES]]
    caches = [wanted.workload.kv_dtype]
    if "kv" in axes:
        caches += [KV_STANDARD[wanted.engine], KvDtype.FP8, KvDtype.BF16]
    return [
        replace(
            wanted,
            layout=layout,
            prefill=prefill,
            version=version,
            workload=replace(wanted.workload, kv_dtype=cache),
        )
        for (layout, prefill), version, cache in product(
            dict.fromkeys(layouts), dict.fromkeys(names), dict.fromkeys(caches)
        )
    ]
