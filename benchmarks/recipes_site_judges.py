"""The judges of benchmarks/recipes_site.py: the engine's parser, the engine's configuration, our planner, our rules."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.recipes_site_commands import Command, examined, known_gpu
from tests.engines.validate_vllm import NOT_HERE, Folders, resolved

from k3stack.engines.installed import ask
from k3stack.errors import K3Error
from k3stack.plan.assess import Job
from k3stack.plan.plan import check, plan_job
from k3stack.plan.releases import release
from k3stack.recipe.choice import Feature, Parsers
from k3stack.recipe.doctor import Diagnosis, Weight
from k3stack.recipe.meaning import features_of, layout_of, number_of, scheme_of, workload_of
from k3stack.spec.published import kimi_k3
from k3stack.spec.schemes import Scheme

__all__ = ["Memory", "Verdict", "judged", "short"]

VLLM_SHARE = 0.92
"""vLLM 0.33.0's own gpu-memory-utilization."""

K3_CONTEXT = 1_048_576
"""What vLLM takes for max-model-len when a command does not say: the model's own."""

SWITCHED = "vllm-parsers"
"""The rule on missing parsers. The page has a switch for each: one that is off is off on purpose."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Our planner's word; None where it has none.

    Attributes:
        one: whether one request as long as the command allows fits, which vLLM asks for when it starts.
        all: whether as many such requests as the command's max-num-seqs fit; None where it states none.
    """

    one: bool | None = None
    all: bool | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the judges say of one command.

    Attributes:
        parser: the parser's error; None when it takes the command.
        configuration: the error of the engine's configuration; empty when taken, None when not judged.
        unjudged: why the configuration was not judged.
        stops: our rules that say it does not start.
        wrong: our rules that say it starts and does not do what it should.
    """

    parser: str | None
    configuration: str | None = None
    unjudged: str = ""
    memory: Memory = field(default_factory=Memory)
    stops: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()

    @property
    def engine_refuses(self) -> str:
        """The engine's error, whoever of it says so; empty when there is none."""
        return self.parser or self.configuration or ""

    @property
    def seen(self) -> bool:
        """Whether `k3 recipe --from` calls it bad."""
        return bool(self.stops or self.wrong)


def judged(commands: Sequence[Command], version: str, python: str, home: Path) -> dict[Command, Verdict]:
    """Every judge about every command."""
    parsed = ask("vllm", [list(one.words) for one in commands], python).errors
    found = {
        one: _by_us(one, Verdict(error), version, Parsers.RAW if _raw(one) else Parsers.KIMI_K3)
        for one, error in zip(commands, parsed, strict=True)
    }
    taken = [one for one in commands if found[one].parser is None]
    return found | _configured({one: found[one] for one in taken}, version, python, Folders(home))


def _raw(command: Command) -> bool:
    """Whether the parsers are left out on purpose; the page lets people switch them off."""
    return not any("parser" in word for word in command.words)


def _configured(
    found: Mapping[Command, Verdict], version: str, python: str, folders: Folders
) -> dict[Command, Verdict]:
    told: dict[Command, Verdict] = {}
    for hardware in dict.fromkeys(one.hardware for one in found):
        group = [one for one in found if one.hardware == hardware]
        vendor = known_gpu(hardware).vendor
        if vendor in NOT_HERE:
            told |= {one: replace(found[one], unjudged=NOT_HERE[vendor]) for one in group}
            continue
        asked = [(list(one.words), one.variables) for one in group]
        for one, answer in zip(group, resolved(folders, hardware, asked, version, python=python), strict=True):
            told[one] = _answered(found[one], answer)
    return told


def _answered(verdict: Verdict, answer: Mapping[str, Any]) -> Verdict:
    error = answer["error"]
    return replace(verdict, configuration=short(error) if error else "")


def short(error: str) -> str:
    """The sentence of an error, without numbers of a run, addresses and folders."""
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    said = next((line for line in lines if line.startswith("Value error,")), lines[0])
    said = re.sub(r"\s*\[type=.*", "", said.removeprefix("Value error, "))
    return said if len(said) <= 300 else said[:297] + "..."


def _by_us(command: Command, verdict: Verdict, version: str, parsers: Parsers) -> Verdict:
    diagnosis = examined(command, version, parsers)

    def of(weight: Weight) -> tuple[str, ...]:
        told = (one.rule for one in diagnosis.findings if one.weight is weight and one.rule != SWITCHED)
        return tuple(dict.fromkeys(told))

    return replace(verdict, memory=_memory(diagnosis, command, version), stops=of(Weight.STOPS), wrong=of(Weight.WRONG))


def _memory(diagnosis: Diagnosis, command: Command, version: str) -> Memory:
    values = diagnosis.settings
    layout = layout_of("vllm", values)
    draft = values.get("speculative-config")
    stated = number_of(values, "max-num-seqs", 0)
    work = replace(
        workload_of("vllm", values, VLLM_SHARE),
        context=number_of(values, "max-model-len", K3_CONTEXT),
        concurrency=layout.dp,
        speculative_tokens=int(draft["num_speculative_tokens"]) if isinstance(draft, dict) else 0,
        vision=Feature.TEXT_ONLY not in features_of("vllm", values),
    )
    spec = kimi_k3(scheme_of(diagnosis.model, values) or Scheme.MXFP4)

    def fits(concurrency: int) -> bool | None:
        asked = replace(work, concurrency=concurrency)
        try:
            check(spec, layout, asked)
            job = Job(spec, known_gpu(command.hardware), layout, asked, release("vllm", version), None)
            return plan_job(diagnosis.model, job, ()).yes
        except K3Error:
            return None

    return Memory(fits(layout.dp), fits(stated * layout.dp) if stated else None)
