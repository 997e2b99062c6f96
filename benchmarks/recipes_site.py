"""What `k3 recipe` writes for Kimi-K3 beside what vLLM's recipes page shows, with vLLM itself as the judge.

    python benchmarks/recipes_site.py CHECKOUT [--vllm PYTHON]

CHECKOUT is of github.com/vllm-project/recipes; its own code renders its commands in Node.js (benchmarks/peers/
recipes_site.mjs imports it unchanged). PYTHON is of an environment with vLLM; without it, one with vLLM 0.33.0 is made
(tests/engines/venvs.py).

Enumerated is what the page shows by clicking: every GPU of its row, variant, strategy, pill of nodes and set of
features; for prefill and decode every pair of modes of the pools, each pool with as many nodes as the page gives it.
Left out: KV offload and the advanced switches, which are off until clicked, pools of other sizes, which are typed, and
nodes beyond the second of a role, which differ in their number only. Ours are asked for the same GPUs, checkpoint,
layouts, draft, pictures and parsers; the sizes of requests are our own.

Equal words with equal variables on the same GPUs count once. Four judges, kept apart: vLLM's argument parser; vLLM's
own configuration, as on those GPUs (tests/engines/validate_vllm.py says what is stood in for); `k3 plan`'s memory; our
rules. The first two are the engine's, the others are our opinion. It takes about ten minutes.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.recipes_site_commands import Asked, Command, Written, asked_of, ours, theirs
from benchmarks.recipes_site_judges import Verdict, judged
from tests.engines.validate_vllm import VERSION
from tests.engines.venvs import engine_python

Side = list[Written]
Judged = dict[Command, Verdict]


def main() -> None:
    """Print the table."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("checkout", type=Path, help="of github.com/vllm-project/recipes")
    options.add_argument("--vllm", help="a Python that has vLLM")
    chosen = options.parse_args()
    python = chosen.vllm or str(engine_python("vllm", VERSION))
    version = _output([python, "-c", "from importlib.metadata import version; print(version('vllm'))"])
    snapshot = _output(["git", "-C", str(chosen.checkout), "log", "-1", "--format=%h of %cs"])
    print(f"judge: vLLM {version}; vllm-project/recipes at {snapshot}")
    page = theirs(chosen.checkout)
    answers = {asked: ours(asked, version) for asked in dict.fromkeys(asked_of(one, version) for one in page)}
    mine = [written for written, _ in answers.values() if written is not None]
    _print_choices(page, answers)
    with tempfile.TemporaryDirectory() as home:
        found = judged(distinct([*page, *mine]), version, python, Path(home))
    _print_table({"page": page, "k3": mine}, found)
    for name, side in (("page", page), ("k3", mine)):
        _print_errors(name, side, found)


def _output(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def distinct(side: Iterable[Written]) -> list[Command]:
    """Every command once."""
    return list(dict.fromkeys(command for written in side for command in written.commands))


def _print_choices(page: Side, answers: dict[Asked, tuple[Written | None, str]]) -> None:
    print(f"page: {len(page)} choices can be clicked, {len(distinct(page))} distinct commands")
    why = Counter(reason for _, reason in answers.values())
    print(f"k3:   the same in our words are {len(answers)} choices: a command for {why.pop('')} of them")
    for reason, count in why.most_common():
        print(f"      {count} {reason}")


def _print_table(sides: dict[str, Side], found: Judged) -> None:
    columns = {name: [found[command] for command in distinct(side)] for name, side in sides.items()}
    rows: list[tuple[str, Callable[[Verdict], bool | None]]] = [
        ("vLLM's parser takes it", lambda one: one.parser is None),
        ("vLLM's configuration takes it", _configuration),
        ("k3 plan: one request of its length fits", lambda one: one.memory.one),
        ("k3 plan: all requests that it allows fit", lambda one: one.memory.all),
        ("k3 rules: nothing stops it", lambda one: not one.stops),
        ("k3 rules: nothing is wrong either", lambda one: not one.seen),
    ]
    print(f"\n{'':44}" + "".join(f"{name:>18}" for name in columns))
    for title, judge in rows:
        cells = [[told for one in column if (told := judge(one)) is not None] for column in columns.values()]
        print(f"{title:44}" + "".join(f"{f'{sum(cell)} of {len(cell)}':>18}" for cell in cells))
    for name, side in sides.items():
        _print_whole(name, side, found)
        for reason, count in Counter(one.unjudged for one in columns[name] if one.unjudged).items():
            print(f"  not judged by the configuration: {count} commands: {reason}")


def _print_whole(name: str, side: Side, found: Judged) -> None:
    """How many choices give only commands that the engine takes."""
    known = [one for one in side if not any(found[command].unjudged for command in one.commands)]
    good = [one for one in known if not any(found[command].engine_refuses for command in one.commands)]
    print(f"{name}: vLLM takes every command of {len(good)} of {len(known)} choices, ", end="")
    usual = sum(one.usual for one in good)
    print(f"{usual} of {sum(one.usual for one in known)} of those with pools as set by itself")


def _configuration(one: Verdict) -> bool | None:
    return None if one.configuration is None else one.configuration == ""


def _print_errors(name: str, side: Side, found: Judged) -> None:
    """What the engine says, with how many commands it hits, and how many of those `k3 recipe --from` calls bad."""
    where: dict[Command, str] = {}
    usual = set(distinct(written for written in side if written.usual))
    for written in side:
        for role, ranks in written.roles.items():
            for rank, command in enumerate(ranks):
                where.setdefault(command, f"{written.said}, {role} node {rank}")
    hit = [command for command in where if found[command].engine_refuses]
    print(f"\n{name}: {len(hit)} commands that the engine refuses")
    for error, count in Counter(found[command].engine_refuses for command in hit).most_common():
        same = [command for command in hit if found[command].engine_refuses == error]
        seen = sum(found[command].seen for command in same)
        stops = sum(bool(found[command].stops) for command in same)
        rules = Counter(rule for command in same for rule in found[command].stops + found[command].wrong)
        told = ", ".join(rule for rule, _ in rules.most_common(6))
        print(f"  {count:5} {error}\n        e.g. {where[same[0]]}")
        print(f"        {len(usual.intersection(same))} of them with pools as set by itself")
        print(f"        k3 recipe --from calls {seen} of them bad ({stops}: does not start): {told or 'nothing found'}")
    rules = Counter(rule for command in where for rule in found[command].stops)
    print(f"{name}: our rules say of these that they do not start: {dict(rules.most_common(12))}")
    rules = Counter(rule for command in where for rule in found[command].wrong)
    print(f"{name}: our rules say of these that something is wrong: {dict(rules.most_common(16))}")
    quiet = [one for one in where if found[one].stops and found[one].configuration == ""]
    print(f"{name}: {len(quiet)} that our rules say do not start and the configuration takes: ", end="")
    print(dict(Counter(rule for one in quiet for rule in found[one].stops).most_common(8)))


if __name__ == "__main__":
    main()
