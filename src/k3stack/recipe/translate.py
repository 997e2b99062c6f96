"""A copied command for the other engine: what it means is built anew by that engine's rules; the rest is named."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict

from k3stack.engines.releases import release
from k3stack.errors import UsageError
from k3stack.hardware.table import Gpu
from k3stack.recipe.build import build
from k3stack.recipe.choice import UTILIZATION_STANDARD, Choice, Parsers, Serving, standard_version
from k3stack.recipe.deployment import Deployment, Flag, Reason
from k3stack.recipe.doctor import Diagnosis
from k3stack.recipe.meaning import features_of, layout_of, role_of, scheme_of, workload_of

__all__ = ["Translation", "translate"]


@dataclass(frozen=True, slots=True)
class Translation:
    """The equivalent deployment, and what of the original has none.

    Attributes:
        untranslated: the flags, as they were given.
    """

    deployment: Deployment
    untranslated: tuple[str, ...]


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    same: list[dict[str, str]]
    meaning: dict[str, list[str]]


@lru_cache(maxsize=1)
def _file() -> _File:
    text = files("k3stack.engines").joinpath("data/equivalents.yaml").read_text()
    return _File.model_validate(yaml.safe_load(text))


def translate(diagnosis: Diagnosis, gpu: Gpu | None, parsers: Parsers = Parsers.KIMI_K3) -> Translation:
    """The command of a diagnosis, for the engine that it is not for, with the parsers that are wanted.

    Raises:
        UsageError: the hardware is not said, the scheme cannot be told, or the command is one role of several.
        NotKnownError: the other engine does not allow it; gives the reason.
    """
    values = diagnosis.settings
    if gpu is None:
        raise UsageError(
            "a translation depends on the hardware", where="--hardware", hint="Add --hardware, such as b300."
        )
    scheme = scheme_of(diagnosis.model, values)
    if scheme is None:
        what = f"how {diagnosis.model or 'the model'} is stored cannot be told from its name"
        raise UsageError(what, where="--from", hint="Name the checkpoint on the hub, such as moonshotai/Kimi-K3.")
    if role_of(values) != "server":
        raise UsageError(
            "this is one role of several; a role of another engine would not understand the others",
            where="--from",
            hint="Use --engine, --serving prefill-decode and --hardware to write all roles.",
        )
    other = "sglang" if diagnosis.engine == "vllm" else "vllm"
    choice = Choice(
        engine=other,
        version=standard_version(other, gpu, scheme),
        gpu=gpu,
        scheme=scheme,
        layout=layout_of(diagnosis.engine, values),
        workload=workload_of(diagnosis.engine, values, UTILIZATION_STANDARD[other]),
        serving=Serving.UNIFIED,
        features=features_of(diagnosis.engine, values),
        parsers=parsers,
    )
    deployment = build(choice, served_name=_text(values.get("served-model-name")))
    return _carry_over(diagnosis, deployment, choice)


def _text(value: Any) -> str | None:
    return str(value[0] if isinstance(value, list) else value) if value else None


def _carry_over(diagnosis: Diagnosis, deployment: Deployment, choice: Choice) -> Translation:
    role = deployment.roles[0]
    have = role.command.values()
    pairs = {pair[diagnosis.engine]: pair[deployment.engine] for pair in _file().same}
    known = release(deployment.engine, choice.snapshot).flags
    reason = Reason("carried-over", "The copied command has it.", f"{diagnosis.engine} command", "2026-11-29")
    added: list[Flag] = []
    lost: list[str] = []
    for name, value in diagnosis.settings.items():
        if name in _file().meaning[diagnosis.engine]:
            continue
        there = pairs.get(name)
        if there is None or there not in known:
            if not (name in have and str(have[name]) == str(value)):
                lost.append(f"--{name}" if isinstance(value, bool) else f"--{name} {value}")
        elif there not in have:
            added.append(Flag(there, value, reason))
    command = replace(role.command, flags=(*role.command.flags, *added))
    changed = replace(deployment, roles=(replace(role, command=command), *deployment.roles[1:]))
    return Translation(changed, tuple(lost))
