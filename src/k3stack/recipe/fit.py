"""Whether a choice's memory suffices: the planner asked for every role, with the sizes its own command says.

SGLang divides its memory between KDA states and tokens by a ratio. Where its own ratio does not do for this work and
another does, the choice that comes back carries that one, so that the command says what was planned.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from k3stack.plan.assess import Job
from k3stack.plan.draft import DSPARK_PARAMETERS
from k3stack.plan.layout import Layout, StateDtype, Workload
from k3stack.plan.plan import Plan, Verdict, check, explained, plan_job
from k3stack.plan.releases import release
from k3stack.plan.reserves import Reserves
from k3stack.plan.sglang import DEFAULT_RATIO
from k3stack.recipe.build import unchecked
from k3stack.recipe.choice import LONG, Choice, Feature
from k3stack.recipe.deployment import Command, Deployment
from k3stack.recipe.objections import objections_of
from k3stack.spec.model import ModelSpec
from k3stack.spec.published import kimi_k3

__all__ = ["Fit", "RoleFit", "fit"]

REDHAT_PARAMETERS = 4_744_900_481
"""Of RedHatAI/Kimi-K3-speculator.dspark, which has an embedding and a head of its own (its model card)."""

_STATE_SLOTS = {"no_buffer": 3, "extra_buffer_lazy": 4, "extra_buffer": 5}


@dataclass(frozen=True, slots=True)
class RoleFit:
    """The plan of one role; each has nodes of its own."""

    role: str
    plan: Plan


@dataclass(frozen=True, slots=True)
class Fit:
    """What the planner says about a choice.

    Attributes:
        choice: what to build; the choice that was asked about, with SGLang's ratio where it needs one.
        roles: a plan for every role whose memory could be counted.
        unknown: what was not counted, in sentences; empty when everything was.
        lowered: what was made smaller than usual so that it fits, in a sentence; empty when nothing was.
    """

    choice: Choice
    roles: tuple[RoleFit, ...]
    unknown: tuple[str, ...] = ()
    lowered: str = ""

    @property
    def yes(self) -> bool:
        """Whether no role is known not to fit."""
        return all(one.plan.yes for one in self.roles)

    @property
    def short(self) -> tuple[RoleFit, ...]:
        """The roles that do not fit."""
        return tuple(one for one in self.roles if not one.plan.yes)

    @property
    def tight(self) -> tuple[str, ...]:
        """What is known of roles that fit but barely, in sentences."""
        tight = [one for one in self.roles if one.plan.verdict is Verdict.TIGHT]
        return tuple(f"{one.role}: {one.plan.verdict}: {one.plan.reason}" for one in tight)

    @property
    def reason(self) -> str:
        """The verdict in a sentence: of the first role that does not fit, or of the one with the least left."""
        if not self.roles:
            return "memory was not counted"
        told = self.short[0] if self.short else min(self.roles, key=lambda one: one.plan.left_bytes)
        name = f"{told.role}: " if len(self.choice.roles()) > 1 else ""
        return f"{name}{told.plan.verdict}: {told.plan.reason}"


def fit(choice: Choice, spec: ModelSpec | None = None, reserves: Reserves | None = None, changes: bool = True) -> Fit:
    """Ask the planner about every role of a choice.

    Args:
        spec: the model, if it is not the published one.
        reserves: what a start-up log of this site told, instead of estimates.
        changes: look for what would fit where a role does not, which takes longer than all the rest.

    Raises:
        NotKnownError: the choice is not allowed; the reason is `unchecked`'s.
    """
    model = spec or kimi_k3(choice.scheme)
    found = _split(_ask(choice, model, reserves), model, reserves)
    return found if found.yes or not changes else _explained(found, reserves)


def _split(found: Fit, spec: ModelSpec, reserves: Reserves | None) -> Fit:
    """The same, or with another split of SGLang's memory where its own does not do."""
    choice = found.choice
    if found.yes or choice.engine != "sglang" or choice.workload.state_ratio is not None:
        return found
    for one in found.short:
        balanced = _plan(choice, spec, reserves, one.plan.layout, replace(one.plan.workload, state_ratio=None))
        if balanced.yes and balanced.capacity.state_ratio is not None:
            ratio = balanced.capacity.state_ratio
            return _ask(replace(choice, workload=replace(choice.workload, state_ratio=ratio)), spec, reserves)
    return found


def _explained(found: Fit, reserves: Reserves | None) -> Fit:
    """The same, with what would fit in the plans of the roles that do not."""

    def advised(one: RoleFit) -> RoleFit:
        return replace(one, plan=explained(one.plan, reserves, objections_of(found.choice, one.role, one.plan)))

    return replace(found, roles=tuple(map(advised, found.roles)))


def _ask(choice: Choice, spec: ModelSpec, reserves: Reserves | None) -> Fit:
    said = _said(_standing_for(choice))
    roles = tuple(
        RoleFit(name, _plan(choice, spec, reserves, layout, replace(choice.work(name), **said.settings[name])))
        for name, layout in choice.roles()
    )
    return Fit(choice, roles, said.unknown)


@dataclass(frozen=True, slots=True)
class _Said:
    """What commands say about memory: the fields of each role's workload, and what nobody counts."""

    settings: dict[str, dict[str, Any]]
    unknown: tuple[str, ...]


@lru_cache(maxsize=1_024)  # the panel asks for every place of its sliders
def _said(choice: Choice) -> _Said:
    deployment = unchecked(choice)
    commands = {role.name: role.command for role in deployment.roles}
    settings = {name: _settings(choice, name, layout, commands[name]) for name, layout in choice.roles()}
    return _Said(settings, _unknown(choice, deployment))


def _standing_for(choice: Choice) -> Choice:
    """A choice of which all rules say the same, and which many choices have in common.

    What is read of a command depends on the size of requests only through the rules that apply.
    """
    work = choice.workload
    fewer = choice.at(LONG + 1 if work.context > LONG else LONG, 1)
    alike = all(choice.facts(*role) == fewer.facts(*role) for role in choice.roles())
    return fewer if alike else choice


def _plan(choice: Choice, spec: ModelSpec, reserves: Reserves | None, layout: Layout, work: Workload) -> Plan:
    version = choice.facts("server", layout)["version"]
    check(spec, layout, work)
    job = Job(spec, choice.gpu, layout, work, release(choice.engine, version), reserves)
    return plan_job(choice.model_path, job)


def _settings(choice: Choice, role: str, layout: Layout, command: Command) -> dict[str, Any]:
    """The work of one role as its command says it, flag by flag; what the command leaves open is the engine's own."""
    read = _vllm if choice.engine == "vllm" else _sglang
    said = read(choice, command, layout)
    return {**said, "verifies": False} if choice.engine == "sglang" and role == "prefill" else said


def _vllm(choice: Choice, command: Command, layout: Layout) -> dict[str, Any]:
    draft = command.flag("speculative-config") or {}
    return {
        "batched_tokens": int(command.flag("max-num-batched-tokens")),
        "prefix_caching": command.flag("enable-prefix-caching") is not False,
        "speculative_tokens": int(draft.get("num_speculative_tokens", 0)),
        "vision": command.flag("language-model-only") is not True,
        "state_dtype": StateDtype(command.flag("mamba-ssm-cache-dtype") or StateDtype.FP32),
    }


def _sglang(choice: Choice, command: Command, layout: Layout) -> dict[str, Any]:
    decode = command.flag("disaggregation-mode") == "decode"
    cached = not decode and command.flag("disable-radix-cache") is not True
    strategy = command.flag("mamba-radix-cache-strategy") or "extra_buffer"
    ratio = command.flag("mamba-full-memory-ratio")
    draft = command.flag("speculative-dspark-block-size") or command.flag("speculative-dflash-block-size") or 0
    chunk = command.flag("chunked-prefill-size")
    return {
        "batched_tokens": max(1, int(chunk) // layout.dp) if chunk else choice.workload.batched_tokens,
        "prefix_caching": cached,
        "speculative_tokens": int(draft),
        "replay_ssm": command.flag("enable-linear-replayssm-spec") is True,
        "state_dtype": StateDtype(command.flag("mamba-ssm-dtype") or StateDtype.FP32),
        "state_slots": _STATE_SLOTS[strategy] if cached else 1,
        "state_ratio": (float(ratio) if ratio else DEFAULT_RATIO) if cached else None,
    }


def _unknown(choice: Choice, deployment: Deployment) -> tuple[str, ...]:
    """What the planner has no arithmetic for."""
    found = []
    if Feature.DFLASH in choice.features:
        found.append("The DFlash draft's own size is not known here; it was counted like a DSpark draft.")
    elif Feature.DSPARK in choice.features:
        more = 2 * (REDHAT_PARAMETERS - DSPARK_PARAMETERS) / choice.layout.tp
        found.append(
            "The DSpark draft was counted in Inferact's shape; "
            + (
                f"RedHatAI's, which the command names, has more parameters: up to {more / 1e9:.1f} GB more on each GPU."
                if choice.engine == "vllm"
                else "the size of RadixArk's, which the command names, is not known here."
            )
        )
    for role in deployment.roles:
        slots = role.command.flag("disaggregation-decode-extra-slots")
        if slots:
            found.append(f"{role.name} keeps {slots} more KDA states for requests on their way; they come on top.")
    return tuple(found)
