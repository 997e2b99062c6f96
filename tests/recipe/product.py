"""Every combination of what can be chosen, allowed or not."""

import itertools
from collections.abc import Iterator

from k3stack.engines.releases import versions
from k3stack.errors import NotKnownError
from k3stack.hardware.table import gpu, gpus
from k3stack.plan.layout import KvDtype, Layout, Workload
from k3stack.recipe.choice import CARD, Choice, Feature, Goal, Serving
from k3stack.recipe.suggest import suggest
from k3stack.spec.schemes import Scheme

FEATURES = [
    (),
    *((feature,) for feature in Feature),
    (Feature.DSPARK, Feature.TEXT_ONLY),
    (Feature.DSPARK, Feature.HICACHE),
]

LAYOUTS = [
    Layout(tp=8),
    Layout(tp=16),
    Layout(tp=32),
    Layout(tp=8, dcp=8),
    Layout(tp=16, dcp=16),
    Layout(tp=16, ep=True),
    Layout(tp=8, pp=2),
    Layout(tp=8, dp=2),
    Layout(tp=1, dp=16, ep=True),
    Layout(tp=8, dp=2, dcp=8, ep=True),
]

WORKLOADS = [
    Workload(kv_dtype=KvDtype.FP8),
    Workload(kv_dtype=KvDtype.BF16, prefix_caching=False, context=65_536, concurrency=8, utilization=0.85),
    Workload(kv_dtype=KvDtype.FP8, context=1_048_576, concurrency=4, state_ratio=0.05),
]


def layouts(engine: str, hardware: str, serving: Serving, goal: Goal) -> Iterator[tuple[Layout, Layout | None]]:
    """The published pair, and for one kind of server every other layout that anybody might ask for."""
    found = []
    try:
        known = suggest(engine, gpu(hardware), serving, goal)
        found.append((known.layout, known.prefill))
    except NotKnownError:
        pass
    if serving is Serving.UNIFIED:
        found += [(layout, None) for layout in LAYOUTS]
    elif not found:
        found.append((Layout(tp=8), Layout(tp=8)))
    else:  # the cache spread over both sides, as NIXL wants it, or over decode alone
        found += [(Layout(tp=8, dcp=8), prefill) for prefill in (Layout(tp=8, ep=True, dcp=8), Layout(tp=8))]
    yield from dict.fromkeys(found)


def releases(engine: str) -> tuple[str, ...]:
    return (*([CARD] if engine == "vllm" else []), *versions(engine))


def product() -> Iterator[Choice]:
    """All of them, over every release."""
    for engine, hardware, serving, goal in itertools.product(("vllm", "sglang"), gpus(), Serving, Goal):
        for (layout, prefill), scheme, features, workload in itertools.product(
            layouts(engine, hardware, serving, goal), Scheme, FEATURES, WORKLOADS
        ):
            for version in releases(engine):
                yield Choice(engine, version, gpu(hardware), scheme, layout, workload, goal, serving, prefill, features)
