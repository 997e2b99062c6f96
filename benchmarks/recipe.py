"""How many selections render to commands that their release's parser takes, fit, or are refused, and how fast.

    python benchmarks/recipe.py [EVERY]    judge every EVERYth selection of the product (standard 20)

Counts are computed; the time of one selection is measured on this machine. The peer is measured by
benchmarks/recipes_site.py.
"""

import sys
import time
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.recipe.product import product

from k3stack.engines.reading import read
from k3stack.engines.releases import release
from k3stack.recipe.asking import engine_words
from k3stack.recipe.build import build
from k3stack.recipe.choice import refused
from k3stack.recipe.fit import fit


def main() -> None:
    """Print the figures."""
    every = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    allowed = against = broken = fitting = 0
    building = planning = 0.0
    for choice in islice(product(), 0, None, every):
        if refused(choice):
            against += 1
            continue
        begin = time.perf_counter()
        made = build(choice)
        building += time.perf_counter() - begin
        allowed += 1
        begin = time.perf_counter()
        fitting += fit(choice, changes=False).yes
        planning += time.perf_counter() - begin
        taken = release(choice.engine, choice.snapshot)
        commands = [engine_words(role) for role in made.roles if role.name != "router"]
        broken += any(problem.stops for words in commands for problem in read(taken, words).problems)
    print(f"every {every}th selection: {allowed:,} allowed, {against:,} refused, {broken} that a parser would not take")
    print(f"one allowed selection is built and checked in {building / max(allowed, 1) * 1000:.2f} ms (measured)")
    each = planning / max(allowed, 1) * 1000
    print(f"of these {fitting:,} fit, says the planner in {each:.2f} ms each (measured)")


if __name__ == "__main__":
    main()
