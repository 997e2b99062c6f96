"""What could be chosen instead: every value of every dimension, with the reason where it is not allowed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from k3stack.engines.releases import versions
from k3stack.hardware.table import Gpu, gpus
from k3stack.recipe.choice import CARD, Choice, Feature, Goal, Parsers, Serving, refused
from k3stack.spec.schemes import Scheme

__all__ = ["Option", "options"]


@dataclass(frozen=True, slots=True)
class Option:
    """One value of one dimension of a choice.

    Attributes:
        chosen: whether the choice has it now.
        reason: why it is not allowed with the rest of the choice; empty when it is.
        fix: what would make it so.
    """

    dimension: str
    value: str
    chosen: bool
    reason: str
    fix: str


def options(choice: Choice) -> tuple[Option, ...]:
    """Every single change of a choice, judged. Layouts stay as they are."""
    return tuple(_judge(*change) for change in _changes(choice))


def _changes(choice: Choice) -> Iterator[tuple[str, str, bool, Choice]]:
    for gpu in gpus().values():
        yield "hardware", gpu.id, gpu.id == choice.gpu.id, _on(choice, gpu)
    for scheme in Scheme:
        yield "scheme", scheme.value, scheme is choice.scheme, replace(choice, scheme=scheme, model="")
    for goal in Goal:
        yield "goal", goal.value, goal is choice.goal, replace(choice, goal=goal)
    for serving in Serving:
        prefill = choice.layout if serving is Serving.DISAGGREGATED else None
        changed = choice if serving is choice.serving else replace(choice, serving=serving, prefill=prefill)
        yield "serving", serving.value, serving is choice.serving, changed
    for version in (*([CARD] if choice.engine == "vllm" else []), *versions(choice.engine)):
        yield "version", version, version == choice.version, replace(choice, version=version)
    for feature in Feature:
        on = feature in choice.features
        yield "feature", feature.value, on, choice if on else replace(choice, features=(*choice.features, feature))
    for parsers in Parsers:
        yield "parsers", parsers.value, parsers is choice.parsers, replace(choice, parsers=parsers)


def _on(choice: Choice, gpu: Gpu) -> Choice:
    return replace(choice, gpu=gpu)


def _judge(dimension: str, value: str, chosen: bool, changed: Choice) -> Option:
    against = refused(changed)
    first = against[0] if against else None
    return Option(dimension, value, chosen, first.reason.why if first else "", first.fix if first else "")
