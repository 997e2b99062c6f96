"""Random states of the page: what a reader gets to by clicking, with the sliders anywhere."""

import random
from functools import lru_cache

from k3stack.panel.about import CONCURRENCIES, CONTEXTS
from k3stack.panel.dimensions import DIMENSIONS, start, values
from k3stack.panel.follow import change
from k3stack.recipe.choice import Choice


def clicked(seed: int, clicks: int = 12) -> Choice:
    """Where some clicks lead; those on impossible values lead nowhere, as on the page."""
    dice = random.Random(seed)
    choice = start()
    for _ in range(clicks):
        dimension = dice.choice(DIMENSIONS)
        there = change(choice, dimension, dice.choice(list(values(choice, dimension)))).choice
        choice = there or choice
    return choice.at(dice.choice(CONTEXTS), dice.choice(CONCURRENCIES))


@lru_cache(maxsize=1)
def some() -> tuple[Choice, ...]:
    return tuple(clicked(seed) for seed in range(60))


def follow(*clicks: tuple[str, str]) -> Choice:
    """Where these clicks lead from the beginning."""
    choice = start()
    for dimension, word in clicks:
        there = change(choice, dimension, word).choice
        assert there is not None, (dimension, word)
        choice = there
    return choice
