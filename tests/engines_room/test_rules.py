"""Rules are found by what each says for itself, however many facts are asked about."""

import random
from typing import Any

from k3stack.engines.rules import Rule, applying, checks, holds, refusals, rules
from tests.panel.states import clicked


def said(rule: Rule, facts: dict[str, Any]) -> bool:
    """Condition by condition, with nothing remembered."""
    if not all(holds(key, wanted, facts) for key, wanted in rule.when.items()):
        return False
    return not rule.unless or not all(holds(key, wanted, facts) for key, wanted in rule.unless.items())


def test_the_three_kinds_are_all_rules_that_apply() -> None:
    dice = random.Random(5)
    some = 0
    for seed in range(60):
        choice = clicked(500 + seed)
        for role, layout in choice.roles():
            facts = choice.facts(role, layout)
            for name in dice.sample(sorted(facts), dice.choice([0, 0, 3])):
                facts.pop(name)  # a copied command leaves things open
            want = {rule.id for rule in rules(choice.engine) if said(rule, facts)}
            found = [rule.id for kind in (applying, refusals, checks) for rule in kind(choice.engine, facts)]
            assert sorted(found) == sorted(want)
            some += len(found)
    assert some > 1_000
