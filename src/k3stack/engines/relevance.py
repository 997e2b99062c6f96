"""Which flags and variables matter for K3: those that a rule names."""

from __future__ import annotations

from dataclasses import replace

from k3stack.engines.check import engine_variable
from k3stack.engines.difference import Difference
from k3stack.engines.pairs import pair_rules
from k3stack.engines.rules import rules
from k3stack.errors import NotKnownError

__all__ = ["named_by_rules", "only_relevant"]


def named_by_rules(engine: str) -> tuple[frozenset[str], frozenset[str]]:
    """Flags and environment variables that the rules of an engine set, unset or look at."""
    flags: set[str] = set()
    variables: set[str] = set()
    for rule in rules(engine):
        named = [*rule.set, *rule.unset, *rule.flags, *rule.needs]
        flags |= {name.partition(".")[0] for name in named if not name.startswith("env:")}
        variables |= {name[4:] for name in named if name.startswith("env:")} | set(rule.env)
    flags |= {rule.flag for rule in pair_rules(engine)} - {""}
    return frozenset(flags), frozenset(variables)


def only_relevant(found: Difference) -> Difference:
    """A difference without what no rule for K3 names; new flags and variables stay when they name the model."""
    try:
        flags, variables = named_by_rules(found.engine)
    except NotKnownError:
        return found  # a router: small enough to show whole
    return replace(
        found,
        new_flags=tuple(name for name in found.new_flags if name in flags or _about_k3(name)),
        gone_flags=tuple(name for name in found.gone_flags if name in flags),
        changes=tuple(change for change in found.changes if change.flag in flags),
        new_variables=tuple(name for name in found.new_variables if name in variables or _about_k3(name)),
        gone_variables=tuple(
            name for name in found.gone_variables if engine_variable(name) and (name in variables or _about_k3(name))
        ),
    )


def _about_k3(name: str) -> bool:
    lowered = name.lower().replace("_", "-")
    return any(
        word in lowered for word in ("kimi", "k3", "kda", "dspark", "dflash", "mla", "dcp", "mxfp4", "nvfp4", "situ")
    )
