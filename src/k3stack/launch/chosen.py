"""From what the user asks to what is started: plan, recipe, or, for a model that is not Kimi-K3, plainly the engine.

Steps that know only Kimi-K3 are left out for other models, and said to be left out.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from k3stack.errors import ConfigError, NotKnownError, UsageError
from k3stack.hardware.table import Gpu, gpu
from k3stack.plan.layout import KvDtype, Layout, Workload
from k3stack.plan.plan import Plan, make_plan
from k3stack.recipe.choice import (
    KV_STANDARD,
    UTILIZATION_STANDARD,
    Choice,
    Feature,
    Goal,
    Serving,
    standard_version,
)
from k3stack.recipe.deployment import Deployment
from k3stack.spec.model import ModelSpec
from k3stack.spec.schemes import Scheme

__all__ = ["Asked", "Chosen", "choose", "is_kimi"]


@dataclass(frozen=True, slots=True)
class Asked:
    """What the options of `k3 up` and `k3 preflight` say; None is left open.

    Attributes:
        where: a folder, a hub id, or kimi-k3 for the published values.
        engine: vllm, sglang or reference; None takes what can run here.
        extra: further words for the engine's command line.
    """

    where: str
    engine: str | None = None
    version: str | None = None
    hardware: str | None = None
    gpus: int | None = None
    scheme: str | None = None
    goal: str = "balanced"
    serving: str = "unified"
    features: tuple[str, ...] = ()
    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    ep: bool | None = None
    dcp: int | None = None
    context: int | None = None
    concurrency: int | None = None
    kv_dtype: str | None = None
    prefix_caching: bool = True
    batched_tokens: int | None = None
    utilization: float | None = None
    host: str = "127.0.0.1"
    port: int | None = None
    name: str | None = None
    python: str | None = None
    extra: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Chosen:
    """What was decided.

    Attributes:
        engine: vllm, sglang or reference.
        model: what is loaded.
        spec: of the model; None when it is not Kimi-K3.
        plan: the planner's word; None where it has none.
        deployment: the recipe; None where there is none.
        left_out: steps that do not apply, with the reason, for the reader.
    """

    engine: str
    model: str
    spec: ModelSpec | None
    plan: Plan | None
    deployment: Deployment | None
    left_out: tuple[str, ...]


def choose(asked: Asked, found: tuple[Gpu, int] | None) -> Chosen:
    """Decide what to start.

    Args:
        found: the GPUs of this machine and how many, or None.

    Raises:
        K3Error: what was asked for makes no sense or is not allowed, with the reason.
    """
    engine = asked.engine or ("vllm" if found or asked.hardware else "reference")
    if not is_kimi(asked.where):
        if engine == "reference":
            raise UsageError(
                "is not Kimi-K3, and the reference engine serves nothing else",
                where=asked.where,
                hint="Use --engine vllm, with --python if it is in another environment.",
            )
        why = "the model is not Kimi-K3, which alone they know"
        return Chosen(engine, asked.where, None, None, None, (f"plan and recipe: not applicable, {why}",))
    from k3stack.checkpoint.target import target

    spec, model = target(asked.where, None if asked.scheme is None else Scheme(asked.scheme))
    if engine == "reference":
        why = "the reference engine keeps everything in host memory and takes no flags of an engine"
        return Chosen(engine, model, spec, None, None, (f"plan and recipe: not applicable, {why}",))
    kind, count = _hardware(asked, found)
    choice = _choice(asked, engine, kind, count, spec, model)
    plan, left_out = _plan(choice, spec, model)
    if plan is not None and not plan.yes:
        return Chosen(engine, model, spec, plan, None, left_out)
    from k3stack.recipe.build import build

    return Chosen(engine, model, spec, plan, build(choice, asked.name), left_out)


def is_kimi(where: str) -> bool:
    """Whether WHERE is Kimi-K3's architecture; what cannot be read is taken for it, so that its error is told."""
    path = Path(where) / "config.json"
    if not path.is_file():
        return True
    try:
        config = json.loads(path.read_text())
    except (OSError, ValueError):
        return True
    return not isinstance(config, dict) or str(config.get("model_type", "kimi")).startswith("kimi")


def _hardware(asked: Asked, found: tuple[Gpu, int] | None) -> tuple[Gpu, int | None]:
    if asked.hardware is not None:
        return gpu(asked.hardware), asked.gpus
    if found is None:
        raise NotKnownError(
            "no GPU that k3stack knows is here",
            where="--hardware",
            hint="Plan for another machine with --hardware, or use --engine reference on a tiny checkpoint.",
        )
    return found[0], asked.gpus or (found[1] if asked.tp is None else None)


def _choice(asked: Asked, engine: str, kind: Gpu, count: int | None, spec: ModelSpec, model: str) -> Choice:
    goal, serving = Goal(asked.goal), Serving(asked.serving)
    layout, prefill = _layouts(asked, engine, kind, count, goal, serving)
    work = Workload()
    return Choice(
        engine=engine,
        version=asked.version or standard_version(engine, kind, spec.scheme),
        gpu=kind,
        scheme=spec.scheme,
        layout=layout,
        workload=Workload(
            asked.context or min(work.context, spec.max_context),
            asked.concurrency or work.concurrency,
            KV_STANDARD[engine] if asked.kv_dtype is None else KvDtype(asked.kv_dtype),
            asked.prefix_caching,
            asked.batched_tokens or work.batched_tokens,
            UTILIZATION_STANDARD[engine] if asked.utilization is None else asked.utilization,
        ),
        goal=goal,
        serving=serving,
        prefill=prefill,
        features=tuple(Feature(one) for one in asked.features),
        model=model,
    )


def _layouts(
    asked: Asked, engine: str, kind: Gpu, count: int | None, goal: Goal, serving: Serving
) -> tuple[Layout, Layout | None]:
    """The layout that was asked for; what was left open is as published for the goal."""
    from k3stack.recipe.suggest import suggest

    said = (asked.tp, asked.pp, asked.dp, asked.ep, asked.dcp)
    if serving is Serving.DISAGGREGATED or (all(one is None for one in said) and count is None):
        known = suggest(engine, kind, serving, goal)
        if all(one is None for one in said):
            return known.layout, known.prefill
        return Layout(asked.tp or kind.gpus_per_node, asked.pp or 1, asked.dp or 1, bool(asked.ep), asked.dcp or 1), (
            known.prefill
        )
    replicas = (asked.pp or 1) * (asked.dp or 1)
    size = asked.tp or max(1, (count or kind.gpus_per_node) // replicas)
    layout = Layout(size, asked.pp or 1, asked.dp or 1, bool(asked.ep), asked.dcp or 1)
    if asked.gpus is not None and layout.gpus != asked.gpus:
        raise UsageError(f"the layout has {layout.gpus} GPUs, not {asked.gpus}", where="--gpus")
    return layout, None


def _plan(choice: Choice, spec: ModelSpec, model: str) -> tuple[Plan | None, tuple[str, ...]]:
    """The planner's word, where it has one for this route."""
    if choice.serving is not Serving.UNIFIED:
        return None, ("plan: not applicable, prefill and decode apart are not planned together",)
    from k3stack.plan.site import saved

    try:
        reserves = saved(choice.engine, choice.gpu.id)
        return make_plan(spec, model, choice.gpu, choice.layout, choice.workload, choice.engine, None, reserves), ()
    except (NotKnownError, ConfigError) as error:
        return None, (f"plan: not applicable, {error.what}",)
