"""Everything the page shows for one choice: the verdict, memory, the command with its reasons, the rows.

The memory is `k3 plan`'s and the command `k3 recipe`'s, because both come from the same functions; what one would
type to get them is part of the answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from k3stack.engines.rules import rules
from k3stack.errors import NotKnownError
from k3stack.panel.dimensions import layout_word
from k3stack.panel.equivalent import plan_words, recipe_words
from k3stack.panel.figures import Measured, measured
from k3stack.panel.follow import against
from k3stack.panel.lines import Part, marked
from k3stack.panel.rows import Row, rows, selection
from k3stack.panel.sources import address
from k3stack.plan.assess import Capacity
from k3stack.plan.ledger import Line
from k3stack.plan.plan import Plan, Verdict
from k3stack.plan.plan import Way as PlannedWay
from k3stack.plan.site import saved
from k3stack.recipe.build import build
from k3stack.recipe.choice import Choice
from k3stack.recipe.client import client_snippets
from k3stack.recipe.deployment import Deployment, Reason
from k3stack.recipe.fit import Fit, RoleFit, fit
from k3stack.recipe.render import Form, render
from k3stack.recipe.render.words import places, word
from k3stack.values import Origin, dump

__all__ = ["FILES", "Answer", "answer", "describe", "remembered", "written"]

FILES = {
    Form.DOCKER: "k3-docker.sh",
    Form.SHELL: "k3-shell.sh",
    Form.COMPOSE: "compose.yaml",
    Form.KUBERNETES: "k3-kubernetes.yaml",
    Form.SLURM: "k3.sbatch",
    Form.SKYPILOT: "k3-skypilot.yaml",
}
"""What a downloaded command is called."""


@dataclass(frozen=True, slots=True)
class Bytes:
    """One item of a GPU's memory. `kind`: weights, kv, state or workspace."""

    what: str
    size_bytes: int
    origin: Origin
    formula: str
    kind: str


@dataclass(frozen=True, slots=True)
class Way:
    """What to change so that it fits, as fields of a link; None is as it was."""

    layout: str | None
    context: int | None
    concurrency: int | None
    batched_tokens: int | None
    utilization: float | None


@dataclass(frozen=True, slots=True)
class Memory:
    """What one GPU of one role holds; the plan's own figures.

    Attributes:
        refused: why the planner does not support it; empty when it does.
        gpu_bytes: all memory of the GPU.
        budget_bytes: what the engine may use of it.
        would_fit: the smallest changes that would, when it does not fit.
        ways: the same changes for a link to take.
        replicas: how many such groups of GPUs share the requests; `capacity` is that of one.
        command: the `k3 plan` command that prints the same.
    """

    role: str
    verdict: str
    refused: str
    gpu_bytes: int
    gpu_source: str
    gpu_origin: Origin
    budget_bytes: int
    left_bytes: int
    total_bytes: int
    items: tuple[Bytes, ...]
    capacity: Capacity
    would_fit: tuple[str, ...]
    ways: tuple[Way, ...]
    replicas: int
    notes: tuple[str, ...]
    command: str


@dataclass(frozen=True, slots=True)
class Why:
    """A reason as the page shows it."""

    rule: str
    why: str
    source: str
    date: str
    url: str


@dataclass(frozen=True, slots=True)
class Setting:
    """An environment variable, a patch or the image, with its reasons.

    Attributes:
        roles: that have it, where there are several roles to have anything.
    """

    name: str
    value: str
    why: Why
    roles: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Written:
    """The command in one form.

    Attributes:
        lines: of parts: a text, and the number of its reasons in `reasons` or -1.
        refused: why this form is not possible; then there are no lines.
    """

    form: str
    file: str
    lines: tuple[tuple[Part, ...], ...]
    reasons: tuple[tuple[Why, ...], ...]
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Offered:
    """A form of the command, its file's name, and why it is not possible; empty when it is."""

    form: str
    file: str
    refused: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What the page shows.

    Attributes:
        selection: the choice without the sliders' fields, for links.
        gpus, nodes: of all roles together.
        written: the command; None where the plan does not fit.
        command: the `k3 recipe` command that prints the same.
        unknown: what was not counted.
    """

    selection: str
    context: int
    concurrency: int
    gpus: int
    nodes: int
    verdict: str
    rows: tuple[Row, ...]
    memory: tuple[Memory, ...]
    unknown: tuple[str, ...]
    written: Written | None
    forms: tuple[Offered, ...]
    command: str
    client: str
    image: Setting | None
    environment: tuple[Setting, ...]
    patches: tuple[Setting, ...]
    notes: tuple[str, ...]
    checked_by: str
    parsers: tuple[Setting, ...]
    figures: tuple[Measured, ...]


def answer(choice: Choice, form: Form) -> Answer:
    """The answer for an allowed choice.

    Raises:
        NotKnownError: the choice is not allowed; says why and what to choose instead.
        UsageError: the workload is impossible for this model.
    """
    for refusal in against(choice):
        raise NotKnownError(refusal.reason.why.rstrip("."), where=refusal.reason.rule, hint=refusal.fix)
    found = fit(choice, reserves=saved(choice.engine, choice.gpu.id))
    return describe(choice, found, build(found.choice), form, rows(choice))


def describe(choice: Choice, found: Fit, deployment: Deployment, form: Form, shown: tuple[Row, ...]) -> Answer:
    """The answer, from its pieces."""
    engines = [role for role in deployment.roles if role.name != "router"]
    answering = engines[-1].command  # a prefill role of vLLM has no parsers: it answers nobody
    parsers = [flag for flag in answering.flags if flag.name in ("tool-call-parser", "reasoning-parser")]
    return Answer(
        selection=selection(choice),
        context=choice.workload.context,
        concurrency=choice.workload.concurrency,
        gpus=sum(role.gpus for role in engines),
        nodes=sum(role.nodes for role in engines),
        verdict=_worst(found),
        rows=shown,
        memory=tuple(_memory(one) for one in found.roles),
        unknown=found.unknown,
        written=written(deployment, form) if found.yes else None,
        forms=_forms(choice.gpu.id, deployment),
        command=recipe_words(choice, form),
        client=client_snippets(deployment),
        image=Setting("image", deployment.pinned_image, why(deployment.image_reason)),
        environment=tuple(_environment(deployment)),
        patches=tuple(_patches(choice, deployment)),
        notes=deployment.notes,
        checked_by=deployment.checked_by,
        parsers=tuple(Setting(flag.name, str(flag.value), why(flag.reason)) for flag in parsers),
        figures=measured(choice),
    )


def remembered(found: Fit) -> dict[str, Any]:
    """What of an answer comes from the planner, as JSON."""
    memory = [dump(_memory(one)) for one in found.roles]
    return {"verdict": _worst(found), "memory": memory, "unknown": list(found.unknown)}


def _worst(found: Fit) -> str:
    order = ("not supported", "does not fit", "tight", "fits")
    verdicts = [one.plan.verdict.value for one in found.roles]
    return min(verdicts, key=order.index) if verdicts else "not counted"


def why(reason: Reason) -> Why:
    """A reason with the address of its source."""
    return Why(reason.rule, reason.why, reason.source, reason.date, address(reason.source))


def _memory(of: RoleFit) -> Memory:
    plan = of.plan
    return Memory(
        role=of.role,
        verdict=plan.verdict.value,
        refused=plan.reason if plan.verdict is Verdict.NOT_SUPPORTED else "",
        gpu_bytes=plan.gpu.memory_bytes,
        gpu_source=plan.gpu.source,
        gpu_origin=plan.gpu.memory_origin,
        budget_bytes=plan.budget_bytes,
        left_bytes=plan.left_bytes,
        total_bytes=plan.ledger.total_bytes,
        items=tuple(_item(line) for line in plan.ledger.lines),
        capacity=plan.capacity,
        would_fit=plan.would_fit,
        ways=tuple(_way(plan, way) for way in plan.ways),
        replicas=plan.layout.dp,
        notes=plan.notes,
        command=plan_words(plan),
    )


def _way(plan: Plan, way: PlannedWay) -> Way:
    asked, found = plan.workload, way.workload

    def changed(name: str) -> Any:
        return getattr(found, name) if getattr(found, name) != getattr(asked, name) else None

    return Way(
        layout_word(way.layout) if way.layout != plan.layout else None,
        changed("context"),
        changed("concurrency"),
        changed("batched_tokens"),
        changed("utilization"),
    )


def _item(line: Line) -> Bytes:
    starts = (("weights", "weights"), ("MLA cache", "kv"), ("KDA state", "state"))
    kind = next((name for start, name in starts if line.what.startswith(start)), "workspace")
    return Bytes(line.what, line.size_bytes, line.origin, line.formula, kind)


def written(deployment: Deployment, form: Form) -> Written:
    """The command in one form, with its reasons."""
    try:
        text = render(deployment, form)
    except NotKnownError as error:
        return Written(form.value, FILES[form], (), (), str(error))
    found = marked(text, deployment)
    reasons = tuple(tuple(why(reason) for reason in reasons) for reasons in found.reasons)
    return Written(form.value, FILES[form], found.lines, reasons)


_refused_forms: dict[tuple[str, Form], str] = {}


def _forms(gpu: str, deployment: Deployment) -> tuple[Offered, ...]:
    """All forms. Whether one is refused depends on the GPU alone, so it is tried once for each."""
    for form in Form:
        if (gpu, form) not in _refused_forms:
            try:
                render(deployment, form)
                _refused_forms[gpu, form] = ""
            except NotKnownError as error:
                _refused_forms[gpu, form] = str(error)
    return tuple(Offered(form.value, FILES[form], _refused_forms[gpu, form]) for form in FILES)


def _environment(deployment: Deployment) -> Iterator[Setting]:
    """Every variable once, as a shell would be told it, with the roles that have it."""
    found: dict[tuple[str, str, Reason], list[str]] = {}
    for role in deployment.roles:
        filled = places(role)
        for variable in role.command.environment:
            value = word(variable.value, filled)
            found.setdefault((variable.name, value, variable.reason), []).append(role.name)
    several = sum(role.name != "router" for role in deployment.roles) > 1
    for (name, value, reason), roles in found.items():
        yield Setting(name, value, why(reason), tuple(roles) if several else ())


def _patches(choice: Choice, deployment: Deployment) -> Iterator[Setting]:
    """The patches this version needs, with the rule that asks for each."""
    facts = [choice.facts(name, layout) for name, layout in choice.roles()]
    for name in deployment.patches:
        rule = next(
            rule for rule in rules(choice.engine) if name in rule.patches and any(rule.applies(one) for one in facts)
        )
        reason = Reason(rule.id, rule.why, rule.source, rule.date.isoformat())
        yield Setting(name, "", why(reason))
