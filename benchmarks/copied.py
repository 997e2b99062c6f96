"""What `k3 recipe --from` finds in public commands, beside what the engines' own parsers say of them.

    python benchmarks/copied.py [--vllm PYTHON] [--sglang PYTHON]

The commands are those that public deployers run or publish for Kimi-K3 (tests/recipe/commands.py names each source).
PYTHON is of an environment with vLLM 0.33.0 or SGLang 0.5.23; the parser reads the same words, nothing is served.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.recipe.commands import PUBLIC, Public

from k3stack.engines.installed import ask
from k3stack.hardware.table import gpu
from k3stack.recipe.copied import take_apart
from k3stack.recipe.doctor import Diagnosis, diagnose


def examined(public: Public) -> Diagnosis:
    """What we say of a command."""
    return diagnose(flat(public), gpu(public.hardware) if public.hardware else None, public.version)


def flat(public: Public) -> str:
    """The command on one line."""
    return public.command.replace("\\\n", " ").replace("\n", " ")


def taken(python: str, engine: str, commands: list[Public]) -> tuple[str, set[str]]:
    """Who read the commands, and the names of those that the engine's parser takes."""
    words = [take_apart(flat(one)).words for one in commands]
    answer = ask(engine, words, python)
    said = answer.by.partition(" in ")[0]
    return said, {one.name for one, error in zip(commands, answer.errors, strict=True) if error is None}


def main() -> None:
    """Print the figures."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--vllm", help="a Python that has vLLM")
    options.add_argument("--sglang", help="a Python that has SGLang")
    chosen = options.parse_args()
    bad, good = [one for one in PUBLIC if not one.good], [one for one in PUBLIC if one.good]
    caught = 0
    for one in bad:
        diagnosis = examined(one)
        rules = {finding.rule for finding in diagnosis.findings}
        caught += not diagnosis.good and one.rules <= rules
        print(f"  {one.name}: {', '.join(sorted(rules)) or 'NOTHING FOUND'}")
    print(f"k3 recipe --from: {caught} of {len(bad)} bad commands caught, each by the rules that it breaks")
    print(f"                  {sum(examined(one).good for one in good)} of {len(good)} good commands called good")
    for engine, python in (("vllm", chosen.vllm), ("sglang", chosen.sglang)):
        mine = [one for one in bad if take_apart(flat(one)).engine == engine]
        if python and mine:
            said, accepted = taken(python, engine, mine)
            print(f"peer: {said} takes {len(accepted)} of the {len(mine)} bad ones that start {engine}")


if __name__ == "__main__":
    main()
