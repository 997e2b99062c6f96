"""From a choice to a deployment: the rules that apply, merged into one command a role with a reason for every flag.

Nothing is returned that is not allowed, or that the release's own parser would not take.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from k3stack.engines.check import broken_rules, flag_problems, unknown_variables
from k3stack.engines.releases import latest, release
from k3stack.engines.rules import Rule, applying
from k3stack.errors import K3Error, NotKnownError
from k3stack.plan.layout import Layout
from k3stack.plan.plan import Plan
from k3stack.recipe.assemble import Assembly, fill
from k3stack.recipe.choice import CARD, DRAFT_TOKENS, Choice, Feature, Goal, Serving, from_plan, refused
from k3stack.recipe.deployment import WORKER, Command, Deployment, Reason, Role, reason_of
from k3stack.recipe.pairing import Said, disagreements
from k3stack.recipe.router import router
from k3stack.recipe.suggest import suggest
from k3stack.spec.schemes import Scheme

__all__ = ["build", "captured", "places", "problems", "unchecked"]

_NAME = Reason("served-name", "The model's name in the API, short and without the publisher.", "k3stack", "2026-11-29")


def build(wanted: Plan | Choice, served_name: str | None = None, refuse: bool = True) -> Deployment:
    """The deployment of a plan or of a choice.

    Args:
        served_name: the model's name in the API; by default the last part of the model's name, in lower case.
        refuse: whether to ask first if the choice is allowed; not for a template, whose numbers nobody chose.

    Raises:
        K3Error: the plan does not fit.
        NotKnownError: the choice is not allowed, with the reason, or is one that no release's parser takes.
    """
    choice = _of_plan(wanted) if isinstance(wanted, Plan) else wanted
    deployment = unchecked(choice, served_name) if refuse else _deployment(choice, served_name)
    for problem in problems(deployment, choice):
        raise NotKnownError(
            problem, where=f"{choice.engine} {choice.version}", hint="Report this: a rule needs mending."
        )
    return deployment


def unchecked(choice: Choice, served_name: str | None = None) -> Deployment:
    """The deployment of a choice before the release's parser has seen it: for the planner, which asks by the hundred.

    Raises:
        NotKnownError: the choice is not allowed, with the reason.
    """
    for refusal in refused(choice):
        raise NotKnownError(refusal.reason.why.rstrip("."), where=refusal.reason.rule, hint=refusal.fix)
    return _deployment(choice, served_name)


def _of_plan(plan: Plan) -> Choice:
    if not plan.yes:
        said = f"the plan {plan.verdict}: {plan.reason}"
        raise K3Error(said, where=plan.model, hint="See `k3 plan` for what would.")
    return from_plan(plan)


def _deployment(choice: Choice, served_name: str | None) -> Deployment:
    roles: list[Role] = []
    found: dict[str, Rule] = {}
    for name, layout in choice.roles():
        facts = choice.facts(name, layout)
        chosen = list(applying(choice.engine, facts))
        found |= {rule.id: rule for rule in chosen if rule.id not in found}
        roles.append(_role(choice, name, layout, facts, chosen, served_name))
    rules = list(found.values())
    if choice.serving is Serving.DISAGGREGATED:
        roles.append(router(choice.engine, *roles))
    images = [rule for rule in rules if rule.image is not None]
    if not images:
        raise NotKnownError(f"no image for {choice.gpu.name} is known", where=f"{choice.engine} {choice.version}")
    image, digest = str(fill(images[-1].image, {"version": choice.version})), _digest(choice, rules, images[-1])
    return Deployment(
        engine=choice.engine,
        image=image,
        image_reason=reason_of(images[-1]),
        roles=tuple(roles),
        patches=tuple(sorted(dict.fromkeys(patch for rule in rules for patch in rule.patches))),
        notes=tuple(_notes(choice, rules, image, digest)),
        version=choice.version,
        digest=digest,
        vendor=choice.gpu.vendor,
        checked_by=f"{choice.engine} {choice.snapshot}",
        gpu=choice.gpu.id,
        rack=choice.gpu.nvlink_gpus > choice.gpu.gpus_per_node and any(role.nodes > 1 for role in roles),
    )


def _role(
    choice: Choice, name: str, layout: Layout, facts: dict[str, Any], chosen: list[Rule], served_name: str | None
) -> Role:
    assembly = Assembly(places(choice, layout, facts["nodes"], name))
    served = served_name or choice.model_path.rstrip("/").rpartition("/")[2].lower()
    assembly.set("served-model-name", served, _NAME)
    assembly.apply(chosen)
    vllm = choice.engine == "vllm"
    command = Command(
        model=choice.model_path,
        flags=tuple(assembly.flags.values()),
        environment=tuple(assembly.environment.values()),
        program=("vllm", "serve") if vllm else ("sglang", "serve"),
        image_program=() if vllm else None,  # vLLM's image starts with `vllm serve`
    )
    nodes = facts["nodes"]
    return Role(
        name=name,
        command=command,
        gpus=layout.gpus,
        port=int(command.flag("port")),
        nodes=nodes,
        doors=nodes if command.flag("data-parallel-hybrid-lb") else 1,
        local_replicas=max(1, layout.dp // nodes) if vllm else 1,
    )


def places(choice: Choice, layout: Layout, nodes: int, role: str = "server") -> dict[str, Any]:
    """What stands for the places in rules' values, for a role with this layout."""
    work = choice.work(role)
    sequences = -(-work.concurrency // layout.dp)
    return {
        "version": choice.version,
        "tp": layout.tp,
        "pp": layout.pp,
        "dp": layout.dp,
        "dcp": layout.dcp,
        "sglang_tp": layout.tp * layout.dp,
        "nodes": nodes,
        "dp_local": max(1, layout.dp // nodes),
        "utilization": f"{work.utilization:.2f}",
        "context": work.context,
        "batched_tokens": work.batched_tokens,
        "chunk": work.batched_tokens * layout.dp,
        "state_ratio": work.state_ratio,
        "concurrency": work.concurrency,
        "sequences": sequences,
        "graphs": captured(sequences),
        "draft_graphs": captured(sequences * (DRAFT_TOKENS + 1)),
        "kv_dtype": "fp8" if work.kv_dtype.size_bytes == 1 else "auto",
    }


def captured(tokens: int) -> int:
    """The smallest size that vLLM captures a CUDA graph for and that covers so many tokens; a size between is cut down.

    Its sizes are 1, 2, 4, multiples of 8 below 256 and of 16 from there (vLLM 0.33.0: vllm/config/vllm.py
    _set_cudagraph_sizes).
    """
    for size in (1, 2, 4):
        if tokens <= size:
            return size
    step = 8 if tokens <= 248 else 16
    return -(-tokens // step) * step


def problems(deployment: Deployment, choice: Choice) -> Iterator[str]:
    """What the release or the engine's checks hold against a deployment; nothing, unless a rule is wrong."""
    taken = release(choice.engine, choice.snapshot)
    layouts = dict(choice.roles())
    for role in deployment.roles:
        if role.name == "router":
            yield from flag_problems(_router_release(choice.engine), role.command.values())
            continue
        values = {name: _sample(value) for name, value in role.command.values().items()}
        variables = role.command.variables()
        yield from flag_problems(taken, values)
        yield from (f"{name} is not read by {taken.version}" for name in unknown_variables(taken, variables))
        facts = choice.facts(role.name, layouts[role.name])
        for broken in broken_rules(choice.engine, facts, values, variables):
            yield f"{broken.what}: {broken.rule.why}"
    yield from _disagreements(deployment)


def _router_release(engine: str) -> Any:
    return release(f"{engine}-router", latest(f"{engine}-router"))


def _sample(value: Any) -> Any:
    """A value as a node would fill it, so that it can be checked."""
    if isinstance(value, str) and value.startswith(WORKER):
        return _sample(value.removeprefix(WORKER)) if value != WORKER else True
    if value in ("{rank}", "{dp_start}"):
        return 1
    return fill(value, {"head": "10.0.0.1", "self": "10.0.0.2"})


def _disagreements(deployment: Deployment) -> Iterator[str]:
    """What prefill and decode must have in common, because one reads the cache that the other wrote."""
    engines = [role.command for role in deployment.roles if role.name != "router"]
    if len(engines) == 2:
        prefill, decode = (_said(deployment, command) for command in engines)
        yield from (f"{one.what}: {one.rule.why}" for one in disagreements(deployment.engine, prefill, decode))


def _said(deployment: Deployment, command: Command) -> Said:
    return Said(command.values(), command.model, deployment.version, version_known=True)


def _digest(choice: Choice, rules: list[Rule], image: Rule) -> str | None:
    """The image's digest, where somebody recorded one."""
    return image.digest or next((one.digests[choice.version] for one in rules if choice.version in one.digests), None)


def _notes(choice: Choice, rules: list[Rule], image: str, digest: str | None) -> Iterator[str]:
    if choice.gpu.vendor == "nvidia":
        yield "Needs an NVIDIA driver r580 or newer: the image is built for CUDA 13."
    yield from _evidence(choice)
    if digest is None:
        yield f"{image} is a floating tag: no digest is recorded here, so pin the one that `docker pull` prints."
    else:
        yield f"The digest is that of {image}, as public deployments recorded it."
    yield from (rule.note for rule in rules if rule.note)
    patches = sorted({patch for rule in rules for patch in rule.patches})
    if choice.version == CARD and patches:
        yield "Set K3_PATCH_DIR to the folder with the checkpoint's runtime patches (runtime_patches/ on the hub)."
    elif patches:
        names = ", ".join(patches)
        yield f"Needs runtime patches ({names}): write them with `k3 patches export DIR`, and set K3_PATCH_DIR to DIR."
    if not choice.smaller:
        yield "The first start downloads about 1.6 TB and took about 18 minutes to load on the validated machine."


def _evidence(choice: Choice) -> Iterator[str]:
    """Who ran this before, as far as is known."""
    layout = choice.layout
    shape = (
        f"TP{layout.tp}"
        + (f" x PP{layout.pp}" if layout.pp > 1 else "")
        + (f" x DP{layout.dp}" if layout.dp > 1 else "")
    )
    one_node = choice.gpu.id == "b300" and layout.gpus == layout.tp == 8 and choice.serving is Serving.UNIFIED
    if choice.scheme is Scheme.NVFP4_MIXED:
        card = (
            choice.version == CARD
            if choice.engine == "vllm"
            else (layout.dcp, choice.features) == (8, (Feature.DSPARK,))
        )
        if not (one_node and card and (choice.engine == "sglang" or (not choice.features and layout.dcp == 1))):
            version = "the day-0 image" if choice.engine == "vllm" else "a day-0 image, DCP8 and DSpark"
            here = f"{choice.gpu.name} with {shape}"
            yield f"NVIDIA validated this on 8 x B300 with TP8 and {version}; {here} is derived."
        return
    try:
        known = suggest(choice.engine, choice.gpu, choice.serving, choice.goal)
    except NotKnownError:
        known = None
    if known is not None and known.published and (known.layout, known.prefill) == (layout, choice.prefill):
        verified = choice.engine == "sglang" and one_node and choice.goal is not Goal.HIGH_THROUGHPUT
        more = ", verified there" if verified else "; no run of it is known here"
        yield f"{choice.gpu.name} with {shape} is published ({known.source}){more}."
    else:
        yield f"{choice.gpu.name} with {shape} is derived from the rules; no run of it is known."
