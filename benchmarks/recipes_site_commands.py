"""The commands that benchmarks/recipes_site.py judges: those of vLLM's recipes page, and ours for the same choices."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from k3stack.errors import InputError, K3Error, UnavailableError
from k3stack.hardware.table import Gpu, gpu
from k3stack.plan.layout import Layout
from k3stack.recipe.asking import engine_variables, engine_words
from k3stack.recipe.build import build
from k3stack.recipe.choice import Choice, Feature, Parsers, Serving, refused
from k3stack.recipe.doctor import Diagnosis, diagnose
from k3stack.recipe.meaning import features_of, layout_of, parsers_of, scheme_of
from k3stack.recipe.wanted import Wanted, choose, lowered
from k3stack.spec.schemes import Scheme

__all__ = [
    "Asked",
    "Command",
    "Written",
    "asked_of",
    "examined",
    "known_gpu",
    "ours",
    "rendered",
    "site_data",
    "theirs",
]

DRIVER = Path(__file__).with_name("peers") / "recipes_site.mjs"

PLACES = [("PORT", "13345"), ("IFACE", "eth0"), ("NODE_2", "10.0.0.2")]
"""What stands for the page's variables, by a part of their names; every other is an address."""


@dataclass(frozen=True, slots=True)
class Command:
    """One process, as on this hardware: the words behind `vllm serve`, and its environment."""

    hardware: str
    words: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]

    @property
    def variables(self) -> dict[str, str]:
        """The environment as a mapping."""
        return dict(self.environment)

    @property
    def text(self) -> str:
        """What somebody would paste."""
        given = [f"{name}={shlex.quote(value)}" for name, value in self.environment]
        return " ".join([*given, "vllm", "serve", *map(shlex.quote, self.words)])


@dataclass(frozen=True, slots=True)
class Written:
    """What a choice comes to: the first two nodes of every role.

    Attributes:
        said: the choice in a few words.
        roles: role names to commands, node 0 first.
        usual: whether the pools of prefill and decode have the modes that the page gives them by itself.
    """

    said: str
    roles: dict[str, tuple[Command, ...]]
    usual: bool = True

    @property
    def commands(self) -> Iterator[Command]:
        """All of them."""
        for ranks in self.roles.values():
            yield from ranks


@dataclass(frozen=True, slots=True)
class Asked:
    """What a choice of the page means in our words: same hardware, checkpoint, layouts, draft, pictures, parsers."""

    hardware: str
    scheme: Scheme
    layout: Layout
    prefill: Layout | None
    features: tuple[Feature, ...]
    parsers: Parsers


class _Core(yaml.SafeLoader):
    """YAML 1.2, as the page's loader reads it, with dates left as text."""


def _plain(resolvers: dict[str, list[Any]]) -> dict[str, list[Any]]:
    dropped = {"tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:bool"}
    return {first: [(tag, form) for tag, form in rows if tag not in dropped] for first, rows in resolvers.items()}


_Core.yaml_implicit_resolvers = _plain(yaml.SafeLoader.yaml_implicit_resolvers)
_Core.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)


def site_data(checkout: Path) -> dict[str, Any]:
    """The recipe for Kimi-K3, the strategies and the vocabulary of a checkout.

    Raises:
        InputError: it is not one.
    """
    strategies = {}
    for folder in ("strategies", "kv_store"):
        for path in sorted((checkout / folder).glob("*.yaml")):
            strategy = _loaded(path)
            strategies[strategy["name"]] = strategy
    recipe = _loaded(checkout / "models" / "moonshotai" / "Kimi-K3.yaml")
    return {"recipe": recipe, "strategies": strategies, "taxonomy": _loaded(checkout / "taxonomy.yaml")}


def _loaded(path: Path) -> Any:
    try:
        return yaml.load(path.read_text(), _Core)
    except OSError as error:
        hint = "Give a checkout of github.com/vllm-project/recipes."
        raise InputError("is not there", where=str(path), hint=hint) from error


def theirs(checkout: Path, node: str = "node") -> list[Written]:
    """Every choice that the page shows, with its commands as the page's own code renders them.

    Raises:
        InputError: no checkout.
        UnavailableError: Node.js is not there, or the page's code cannot be run.
    """
    command = [node, "--no-warnings", str(DRIVER), str(checkout)]
    try:
        ran = subprocess.run(
            command, input=json.dumps(site_data(checkout)), capture_output=True, text=True, check=False
        )
    except OSError as error:
        hint = "Node.js 20.19 or newer runs the page's code."
        raise UnavailableError("cannot be started", where=node, hint=hint) from error
    if ran.returncode:
        raise UnavailableError(f"the page's code fails: {ran.stderr.strip()[-300:]}", where=str(checkout))
    return [rendered(choice) for choice in json.loads(ran.stdout)]


def rendered(choice: dict[str, Any]) -> Written:
    """A choice as the page's code rendered it."""
    roles = {
        one["role"]: tuple(
            Command(choice["hardware"], tuple(map(filled, words[2:])), _environment(given))
            for words, given in zip(one["ranks"], one["environment"], strict=True)
        )
        for one in choice["roles"]
    }
    return Written(_said(choice), roles, choice["usual"])


def _environment(given: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple((name, filled(str(value))) for name, value in sorted(given.items()))


def filled(text: str) -> str:
    """A word of the page with something for its variables."""

    def value(found: re.Match[str]) -> str:
        return next((given for part, given in PLACES if part in found[0]), "10.0.0.1")

    return re.sub(r"\$[A-Z_][A-Z0-9_]*", value, text)


def _said(choice: dict[str, Any]) -> str:
    pools = choice["pools"]
    sized = " ".join(f"{role} {one['parallelism']} on {one['nodes']}" for role, one in pools.items()) if pools else ""
    nodes = sized or f"on {choice['nodes']}"
    return f"{choice['hardware']} {choice['variant']} {choice['strategy']} {nodes} [{' '.join(choice['features'])}]"


def examined(command: Command, version: str, parsers: Parsers = Parsers.KIMI_K3) -> Diagnosis:
    """What `k3 recipe --from` says."""
    return diagnose(command.text, known_gpu(command.hardware), version, parsers)


def known_gpu(hardware: str) -> Gpu:
    """The page names GPUs as we do."""
    return gpu(hardware)


def asked_of(written: Written, version: str) -> Asked:
    """What a choice of the page asks for, by what its commands say."""
    found = {role: examined(ranks[0], version) for role, ranks in written.roles.items()}
    layouts = {role: layout_of("vllm", one.settings) for role, one in found.items()}
    main = found.get("decode") or found["server"]
    return Asked(
        hardware=next(written.commands).hardware,
        scheme=scheme_of(main.model, main.settings) or Scheme.MXFP4,
        layout=layouts.get("decode") or layouts["server"],
        prefill=layouts.get("prefill"),
        features=features_of("vllm", main.settings),
        parsers=parsers_of(main.settings, Parsers.RAW),
    )


def ours(asked: Asked, version: str) -> tuple[Written | None, str]:
    """Our commands for the same, or the reason why there are none: a rule that refuses, or memory that does not do."""
    try:
        choice = _choice(asked, version)
        refusals = refused(choice)
        if refusals:
            return None, f"refused: {refusals[0].reason.rule}"
        fit = lowered(choice, _wanted(asked, version))
        if not fit.yes:
            return None, "does not fit"
        made = build(fit.choice)
    except K3Error as error:
        return None, "refused: nothing published for prefill and decode there" if asked.prefill else f"refused: {error}"
    roles = {
        role.name: tuple(
            Command(
                asked.hardware, tuple(engine_words(role, rank)), tuple(sorted(engine_variables(role, rank).items()))
            )
            for rank in range(min(role.nodes, 2))
        )
        for role in made.roles
        if role.name != "router"
    }
    features = " ".join((*map(str, asked.features), f"parsers {asked.parsers}"))
    layouts = f"{asked.prefill.describe()} and {asked.layout.describe()}" if asked.prefill else asked.layout.describe()
    return Written(f"{asked.hardware} {asked.scheme} {layouts} [{features}]", roles), ""


def _wanted(asked: Asked, version: str) -> Wanted:
    layout = asked.layout
    return Wanted(
        gpu=known_gpu(asked.hardware),
        scheme=asked.scheme,
        version=version,
        serving=Serving.DISAGGREGATED if asked.prefill else Serving.UNIFIED,
        features=asked.features,
        tp=layout.tp,
        pp=layout.pp,
        dp=layout.dp,
        ep=layout.ep,
        dcp=layout.dcp,
        parsers=asked.parsers,
    )


def _choice(asked: Asked, version: str) -> Choice:
    choice = choose(_wanted(asked, version))
    return replace(choice, prefill=asked.prefill) if asked.prefill else choice
