"""From a plan to a deployment: the rules that apply, merged into one command with a reason for every flag."""

from __future__ import annotations

from typing import Any

from k3stack.engines.rules import Rule, applying
from k3stack.errors import K3Error, NotKnownError
from k3stack.plan.plan import Plan
from k3stack.recipe.deployment import Command, Deployment, Flag, Reason, Role, Variable

__all__ = ["build"]


def build(plan: Plan, served_name: str | None = None) -> Deployment:
    """The deployment of a plan.

    Args:
        plan: one that fits.
        served_name: the model's name in the API; by default the last part of the model's name, in lower case.

    Raises:
        K3Error: the plan does not fit.
        NotKnownError: no rule gives an image for this scheme on this hardware.
    """
    if not plan.yes:
        raise K3Error(f"the plan {plan.verdict}: {plan.reason}", where=plan.model, hint="See `k3 plan` for what would.")
    if plan.layout.pp > 1 or plan.layout.gpus > plan.gpu.nvlink_gpus:
        raise NotKnownError(
            "recipes cover one node with tensor parallelism so far", where="--pp", hint="Use --pp 1 and one node."
        )
    chosen = list(applying(plan.engine, _facts(plan)))
    images = [rule for rule in chosen if rule.image is not None]
    if not images:
        raise NotKnownError(
            f"no recipe for {plan.scheme} on {plan.gpu.name} is known yet",
            where=plan.model,
            hint="Known: --scheme nvfp4-mixed on b300, b200, gb300, gb200.",
        )
    values = _values(plan)
    name = served_name or plan.model.rstrip("/").rpartition("/")[2].lower()
    flags = {"served-model-name": Flag("served-model-name", name, _reason(_NAME_RULE))}
    environment: dict[str, Variable] = {}
    for rule in chosen:
        for key, value in rule.set.items():
            flags[key] = Flag(key, _fill(value, values), _reason(rule))
        for key, text in rule.env.items():
            environment[key] = Variable(key, text, _reason(rule))
    command = Command(plan.model, tuple(flags.values()), tuple(environment.values()))
    image = images[-1]
    return Deployment(
        engine=plan.engine,
        image=str(image.image),
        image_reason=_reason(image),
        roles=(Role("server", command, plan.layout.gpus, int(command.flag("port"))),),
        patches=tuple(name for rule in chosen for name in rule.patches),
        notes=tuple(_notes(plan)),
    )


_NAME_RULE = Rule.model_validate(
    {
        "id": "served-name",
        "when": {},
        "why": "The model's name in the API, short and without the publisher.",
        "source": "k3stack",
        "date": "2026-11-29",
    }
)


def _facts(plan: Plan) -> dict[str, Any]:
    return {
        "scheme": plan.scheme.value,
        "architecture": plan.gpu.architecture,
        "vendor": plan.gpu.vendor,
        "kv_dtype": plan.workload.kv_dtype.value,
        "prefix_caching": plan.workload.prefix_caching,
    }


def _values(plan: Plan) -> dict[str, Any]:
    work = plan.workload
    return {
        "tp": plan.layout.tp,
        "utilization": f"{work.utilization:.2f}",
        "context": work.context,
        "batched_tokens": work.batched_tokens,
        "concurrency": work.concurrency,
        "kv_dtype": "fp8" if work.kv_dtype.size_bytes == 1 else "auto",
    }


def _fill(value: Any, values: dict[str, Any]) -> Any:
    if isinstance(value, str) and value.startswith("{") and value.endswith("}"):
        return values[value[1:-1]]
    return value


def _reason(rule: Rule) -> Reason:
    return Reason(rule.id, rule.why, rule.source, rule.date.isoformat())


def _notes(plan: Plan) -> list[str]:
    notes = ["Needs an NVIDIA driver r580 or newer: the image is built for CUDA 13."]
    validated = plan.gpu.id == "b300" and plan.layout.tp == 8
    if not validated:
        notes.append(f"NVIDIA validated this on 8 x B300 with TP8; {plan.gpu.name} with TP{plan.layout.tp} is derived.")
    notes.append("Set K3_PATCH_DIR to the folder with the checkpoint's runtime patches (runtime_patches/ on the hub).")
    notes.append("The first start downloads about 1.6 TB and took about 18 minutes to load on the validated machine.")
    return notes
