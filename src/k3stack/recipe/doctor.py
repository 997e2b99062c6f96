"""The doctor of copied commands: what is wrong with one for Kimi-K3, why, and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from k3stack.engines.check import Broken, broken_rules, unknown_variables
from k3stack.engines.reading import Fault, Reading, read
from k3stack.engines.releases import Release, latest, release, versions
from k3stack.engines.rules import Rule, applying, refusals
from k3stack.errors import NotKnownError
from k3stack.hardware.table import Gpu
from k3stack.recipe.choice import CARD, Parsers
from k3stack.recipe.copied import TYPOGRAPHIC, Copied, take_apart
from k3stack.recipe.copied.programs import engine_of_image
from k3stack.recipe.deployment import WORKER
from k3stack.recipe.meaning import (
    model_of,
    parsers_of,
)
from k3stack.recipe.stated import facts_of

__all__ = ["Diagnosis", "Finding", "Weight", "diagnose", "diagnosis_of", "parser_faults", "shell_faults", "text_faults"]

_SECRET = re.compile(
    r"(?<![A-Za-z0-9_])(?:hf_(?:[A-Za-z0-9]{12,}|(?=[A-Za-z]*\d)[A-Za-z0-9]{8,})|sk-[A-Za-z0-9_-]{8,})"
)
"""A token of the Hugging Face hub, or of an API; hf_transfer and a task-runner are none."""

_BROKEN_LINE = re.compile(r"\\[ \t]+$", re.MULTILINE)


class Weight(StrEnum):
    """How bad a finding is."""

    STOPS = "stops"
    WRONG = "wrong"
    ADVICE = "advice"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing about a command.

    Attributes:
        weight: stops (it does not start), wrong (it starts and does not do what it should), advice.
        rule: of our rules, or what the parser calls it.
    """

    weight: Weight
    rule: str
    what: str
    why: str
    fix: str
    source: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What is known about a copied command.

    Attributes:
        assumed: what the command does not say and was taken for granted.
        settings: canonical flags and their values.
    """

    engine: str
    version: str
    model: str
    findings: tuple[Finding, ...]
    assumed: tuple[str, ...]
    checked_by: str
    settings: dict[str, Any]
    environment: dict[str, str]

    @property
    def good(self) -> bool:
        """Whether nothing stops it or makes it wrong."""
        return all(finding.weight is Weight.ADVICE for finding in self.findings)


def diagnose(
    text: str, gpu: Gpu | None = None, version: str | None = None, parsers: Parsers = Parsers.KIMI_K3
) -> Diagnosis:
    """Examine a command; of several in a text, the first.

    Args:
        text: the command as copied.
        gpu: what it is to run on, if known; rules about hardware need it.
        version: the engine's release, if known; otherwise the image's tag says it, or the newest is assumed.
        parsers: what is wanted; `raw` where they are left out on purpose.

    Raises:
        InputError: no engine is started here.
        NotKnownError: there is no snapshot of this release.
    """
    found = diagnosis_of(take_apart(text), gpu, version, parsers)
    return replace(found, findings=tuple(dict.fromkeys((*found.findings, *text_faults(text)))))


def diagnosis_of(
    copied: Copied, gpu: Gpu | None = None, version: str | None = None, parsers: Parsers = Parsers.KIMI_K3
) -> Diagnosis:
    """Examine a command that was taken apart; the arguments are as for `diagnose`.

    Raises:
        NotKnownError: there is no snapshot of this release.
    """
    assumed: list[str] = []
    said = version or version_of(copied)
    if said is None:
        said = latest(copied.engine)
        assumed.append(f"{copied.engine} {said}, the newest release known, since the command does not say which")
    if gpu is None:
        assumed.append("no hardware: rules about GPUs were not checked (--hardware says which)")
    taken = release(copied.engine, versions(copied.engine)[0] if said == CARD else said)
    understood = read(taken, copied.words)
    values = understood.values()
    assumed += _not_read(copied, values)
    model = model_of(understood, values)
    wanted = Parsers.RAW if copied.launcher and "parser" in " ".join(copied.words) else parsers
    facts = facts_of(copied, values, model, said, gpu) | {"parsers": parsers_of(values, wanted).value}
    broken = list(broken_rules(copied.engine, facts, values, copied.environment))
    if copied.launcher:  # which tells the nodes of each other
        values = {"master-addr": "", "dist-init-addr": "", "node-rank": "", **values}
        broken = [
            one
            for one in broken
            if not {"master-addr", "dist-init-addr"} & one.rule.needs.keys() and one.rule.flags.get("nnodes") != "unset"
        ]
    read_by_engine = (name for name in copied.unexported if name in taken.variables or name.startswith("NCCL_"))
    copied = replace(copied, unexported=tuple(read_by_engine))
    findings = [
        *shell_faults(copied),
        *parser_faults(understood, taken, copied.launcher),
        *_dead(taken, copied.environment),
        *_container(copied, facts),
        *_refused(copied.engine, facts),
        *_broken(broken),
        *_needed(copied, facts, values, understood, {key for one in broken for key in one.rule.needs}),
    ]
    return Diagnosis(
        engine=copied.engine,
        version=said,
        model=model,
        findings=tuple(dict.fromkeys(findings)),
        assumed=tuple(assumed),
        checked_by=f"snapshot of {taken.engine} {taken.version}",
        settings=values,
        environment={name: "(hidden)" if _SECRET.search(text) else text for name, text in copied.environment.items()},
    )


def _not_read(copied: Copied, values: Mapping[str, Any]) -> Iterator[str]:
    """What a command takes from elsewhere, or hands to a program whose flags are not known here."""
    if values.get("config"):
        yield "the file that --config names was not read: its settings count as not given"
    if copied.launcher:
        yield "Dynamo starts the engine: flags that the engine does not have are taken for Dynamo's own"


def shell_faults(copied: Copied) -> Iterator[Finding]:
    """What a shell makes of the text that its writer did not mean."""
    if copied.cut:
        yield Finding(
            Weight.WRONG,
            "cut-command",
            f"the command ends before {copied.cut}",
            "The line before it does not go on: its backslash is missing, or a comment stands there; a shell starts "
            "the engine without what follows.",
            "End every line but the last with a backslash, and keep comments out of the command.",
            "k3stack",
        )
    if copied.unexported:
        names = ", ".join(copied.unexported)
        yield Finding(
            Weight.WRONG,
            "not-exported",
            f"{names} is set and not exported" if len(copied.unexported) == 1 else f"{names} are set and not exported",
            "A shell keeps such a variable to itself; the engine never sees it.",
            "Write export in front of it.",
            "k3stack",
        )


def version_of(copied: Copied) -> str | None:
    """The release that the image's tag names.

    Raises:
        NotKnownError: there is no snapshot of it.
    """
    if not copied.image or copied.launcher or engine_of_image(copied.image) != copied.engine:
        return None
    tag = copied.image.partition("@")[0].rpartition(":")[2]
    if copied.engine == "vllm" and tag == CARD:
        return CARD
    found = re.match(r"v?(\d+\.\d+\.\d+)", tag)
    if found and found[1] in versions(copied.engine):
        return found[1]
    if found:
        raise NotKnownError(
            f"there is no snapshot of {copied.engine} {found[1]}",
            where=copied.image,
            hint=f"Known: {', '.join(versions(copied.engine))}.",
        )
    return None


def parser_faults(understood: Reading, taken: Release, launcher: str = "") -> Iterator[Finding]:
    """What the release's parser refuses or takes otherwise than it seems; a launcher has flags of its own."""
    said = f"{taken.engine} {taken.version}: its parser"
    for problem in understood.problems:
        if launcher and problem.fault is Fault.UNKNOWN:
            continue
        weight = Weight.STOPS if problem.stops else Weight.ADVICE
        if problem.fault == "given more than once":
            weight = Weight.WRONG
        yield Finding(weight, problem.fault.value, problem.what, f"{said} decides.", problem.fix, said)


def _dead(taken: Release, environment: Mapping[str, str]) -> Iterator[Finding]:
    said = f"{taken.engine} {taken.version}: its source"
    for name in unknown_variables(taken, dict(environment)):
        what = f"{name} is set and nothing reads it"
        yield Finding(
            Weight.ADVICE, "dead variable", what, f"{taken.version} has no such variable.", "Remove it.", said
        )


def _container(copied: Copied, facts: Mapping[str, Any]) -> Iterator[Finding]:
    docker = copied.docker
    if docker is None:
        return
    if facts.get("nodes", 1) > 1 and not docker.host_network:
        yield Finding(
            Weight.STOPS,
            "host-network",
            "several nodes without --network host",
            "The ranks open ports among each other that no --publish names; they would never meet.",
            "Use --network host instead of --publish.",
            "vllm-project/recipes, executed: multi-node docker",
        )
    if not docker.host_ipc and not docker.shared_memory:
        why = "The ranks of a node share memory; docker's standard 64 MB is too little."
        yield Finding(
            Weight.WRONG, "shared-memory", "neither --ipc host nor --shm-size", why, "Add --ipc host.", "docs.vllm.ai"
        )
    for published in docker.publishes:
        if not published.startswith(("127.", "localhost", "[::1]")):
            what, why = f"--publish {published} opens the port on every address", "The engines ask nobody for a key."
            yield Finding(Weight.ADVICE, "open-port", what, why, f"Write 127.0.0.1:{published}.", "k3stack")
    tag = docker.image.rpartition(":")[2] if ":" in docker.image else "latest"
    if "@sha256:" not in docker.image and not re.match(r"v?\d", tag):
        why = "The same command can start another engine tomorrow."
        fix = "Use a release's tag or a digest."
        yield Finding(Weight.ADVICE, "floating-image", f"{docker.image} floats", why, fix, "sglang#32541, vllm#51975")


def text_faults(text: str) -> Iterator[Finding]:
    """What is wrong with a text whatever it starts: tokens, and what became of its characters on the way."""
    if _BROKEN_LINE.search(text):
        yield Finding(
            Weight.WRONG,
            "broken-line",
            "a space stands behind a backslash at the end of a line",
            "A shell goes on to the next line only when the backslash is the last character.",
            "Remove the space.",
            "k3stack",
        )
    if TYPOGRAPHIC.search(text):
        yield Finding(
            Weight.STOPS,
            "typographic",
            "dashes or quotation marks are typographic",
            "A text program changed them on the way: neither a shell nor the engine takes them for what they were.",
            "Write two plain hyphens and straight quotation marks.",
            "k3stack",
        )
    if _SECRET.search(text):
        why = "It ends up in shell histories, process lists and tickets."
        yield Finding(
            Weight.WRONG, "secret", "a token is written out", why, "Pass it through: --env HF_TOKEN.", "k3stack"
        )


def _refused(engine: str, facts: Mapping[str, Any]) -> Iterator[Finding]:
    for rule in refusals(engine, facts):
        weight = Weight.ADVICE if rule.unpublished else Weight.WRONG if rule.starts else Weight.STOPS
        yield _of(rule, weight, rule.why.rstrip("."))


def _broken(found: Iterable[Broken]) -> Iterator[Finding]:
    for broken in found:
        yield Finding(Weight.WRONG, broken.rule.id, broken.what, broken.rule.why, broken.fix, broken.rule.source)


def _needed(
    copied: Copied, facts: Mapping[str, Any], values: Mapping[str, Any], understood: Reading, told: set[str]
) -> Iterator[Finding]:
    """What the rules would set, and a command for K3 cannot be right without; what a check has told is left out."""
    elsewhere = bool(values.get("config"))
    misread = {problem.word.partition("=")[0].lstrip("-") for problem in understood.problems}
    for rule in applying(copied.engine, facts):
        if not rule.needed:
            continue
        for name, value in rule.set.items():
            if name in misread or name in told or str(value).startswith(WORKER) or (elsewhere and name not in values):
                continue
            if not _given(value, values.get(name)):
                given = f"is {values[name]}" if name in values else "is missing"
                yield _of(rule, Weight.WRONG, f"--{name} {given}", _set(name, value))
        for name, text in rule.env.items():
            given = copied.environment.get(name, "")
            if (
                "{" in text
                or given == text
                or name in copied.unexported
                or (given.isdecimal() and text.isdecimal() and int(given) > int(text) > 1)
            ):
                continue
            yield _of(rule, Weight.WRONG, f"{name}={text} is missing", f"Set {name}={text}.")
        if rule.patches and "PYTHONPATH" not in copied.environment:
            names = ", ".join(rule.patches)
            yield _of(
                rule, Weight.WRONG, f"the runtime patch {names} is missing", "See `k3 recipe` for how to mount it."
            )


def _given(wanted: Any, value: Any) -> bool:
    if isinstance(wanted, str) and "{" in wanted:
        return value is not None
    if isinstance(wanted, dict):
        return isinstance(value, dict) and all(_given(one, value.get(key)) for key, one in wanted.items())
    return (wanted is False and value in (None, False)) or (value is not None and str(value) == str(wanted))


def _set(name: str, value: Any) -> str:
    if value is True:
        return f"Add --{name}."
    if isinstance(value, str) and "{" in value:
        return f"Set --{name}."
    return f"Set --{name} {value}." if value is not False else f"Add --no-{name}."


def _of(rule: Rule, weight: Weight, what: str, fix: str = "") -> Finding:
    return Finding(weight, rule.id, what, rule.why, fix or rule.fix, f"{rule.source}, {rule.date}")
