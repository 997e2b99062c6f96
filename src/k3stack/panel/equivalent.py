"""The command lines that print what the page shows: everything on it can be had without it."""

from __future__ import annotations

import shlex

from k3stack.plan.layout import Layout, StateDtype, Workload
from k3stack.plan.plan import Plan
from k3stack.recipe.choice import Choice
from k3stack.recipe.link import to_query
from k3stack.recipe.render import Form

__all__ = ["plan_words", "recipe_words"]


def recipe_words(choice: Choice, form: Form) -> str:
    """`k3 recipe` for a choice."""
    return shlex.join(["k3", "recipe", "--link", to_query(choice), "--format", form.value])


def plan_words(plan: Plan) -> str:
    """`k3 plan` for one role's plan, with every setting that its command says."""
    work = plan.workload
    words = ["k3", "plan", "--hardware", plan.gpu.id, "--gpus", str(plan.layout.gpus), "--engine", plan.engine]
    words += ["--scheme", plan.scheme.value, "--release", plan.release, *_layout(plan.layout)]
    words += ["--context", str(work.context), "--concurrency", str(work.concurrency)]
    words += ["--kv-dtype", work.kv_dtype.value, "--utilization", f"{work.utilization:g}"]
    words += ["--batched-tokens", str(work.batched_tokens), *_more(work)]
    return shlex.join(words)


def _layout(layout: Layout) -> list[str]:
    words = ["--tp", str(layout.tp)]
    for name in ("pp", "dp", "dcp"):
        size = getattr(layout, name)
        words += [f"--{name}", str(size)] if size > 1 else []
    return [*words, *(["--ep"] if layout.ep else [])]


def _more(work: Workload) -> list[str]:
    words: list[str] = []
    if not work.prefix_caching:
        words.append("--no-prefix-caching")
    if work.speculative_tokens:
        words += ["--draft-tokens", str(work.speculative_tokens)]
    if work.replay_ssm:
        words.append("--replay-ssm")
    if not work.verifies:
        words.append("--no-verifies")
    if not work.vision:
        words.append("--no-vision")
    if work.state_dtype is not StateDtype.FP32:
        words += ["--state-dtype", work.state_dtype.value]
    if work.state_slots is not None:
        words += ["--state-slots", str(work.state_slots)]
    if work.state_ratio is not None:
        words += ["--state-ratio", repr(work.state_ratio)]
    return words
