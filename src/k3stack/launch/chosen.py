"""From what the user asks to what is started: plan, recipe, or, for a model that is not Kimi-K3, plainly the engine.

Steps that know only Kimi-K3 are left out for other models, and said to be left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from k3stack.errors import NotKnownError, UsageError
from k3stack.files import json_value
from k3stack.hardware.table import Gpu, gpu
from k3stack.plan.site import saved
from k3stack.recipe.build import build
from k3stack.recipe.choice import Serving
from k3stack.recipe.deployment import Deployment
from k3stack.recipe.fit import Fit
from k3stack.recipe.wanted import Wanted, Wishes, fitting
from k3stack.spec.model import ModelSpec
from k3stack.spec.schemes import Scheme

__all__ = ["Asked", "Chosen", "choose", "is_kimi"]


@dataclass(frozen=True, slots=True)
class Asked(Wishes):
    """What the options of `k3 up` and `k3 preflight` say; None is left open.

    Attributes:
        where: a folder, a hub id, or kimi-k3 for the published values.
        engine: vllm, sglang or reference; None takes what can run here.
        scheme: this one instead of the checkpoint's own.
        name: the model's name in the API.
        python: of the environment that has the engine.
        extra: further words for the engine's command line.
    """

    where: str
    engine: str | None = None
    hardware: str | None = None
    scheme: Scheme | None = None
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
        fit: the planner's word on every role; None for what it does not plan.
        deployment: the recipe; None where there is none.
        left_out: steps that do not apply, with the reason, for the reader.
    """

    engine: str
    model: str
    spec: ModelSpec | None
    fit: Fit | None
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

    spec, model = target(asked.where, asked.scheme)
    if engine == "reference":
        why = "the reference engine keeps everything in host memory and takes no flags of an engine"
        return Chosen(engine, model, spec, None, None, (f"plan and recipe: not applicable, {why}",))
    kind, count = _hardware(asked, found)
    wanted = Wanted.of(replace(asked, gpus=count), kind, engine, spec, model)
    fit = fitting(wanted, spec, saved(engine, kind.id))
    return Chosen(engine, model, spec, fit, build(fit.choice, asked.name) if fit.yes else None, fit.unknown)


def is_kimi(where: str) -> bool:
    """Whether WHERE is Kimi-K3's architecture; what cannot be read is taken for it, so that its error is told."""
    path = Path(where) / "config.json"
    if not path.is_file():
        return True
    try:
        config = json_value(path.read_text())
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
    here = asked.tp is None and asked.serving == Serving.UNIFIED
    return found[0], asked.gpus or (found[1] if here else None)
