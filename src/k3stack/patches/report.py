"""The lines that the patches leave in a server's log; `serverlog` reads them back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .patch import Outcome, State
from .registry import all_patches

__all__ = ["HEAD", "applied_lines", "failure_lines", "front_end_lines", "summary_line"]

HEAD = "Kimi-K3 runtime patches:"


def applied_lines(outcomes: Iterable[Outcome]) -> list[str]:
    """One line for each patch that was applied and verified; for 2, 4 and 5 the words of NVIDIA's patch file."""
    return [outcome.line for outcome in outcomes if outcome.state is State.APPLIED]


def failure_lines(outcomes: Iterable[Outcome]) -> list[str]:
    """One line for each patch that cannot apply."""
    return [
        f"{HEAD} patch {outcome.number} ({outcome.title}) cannot apply: {outcome.why}"
        for outcome in outcomes
        if outcome.state is State.CANNOT
    ]


def front_end_lines(outcomes: Iterable[Outcome], environ: Mapping[str, str]) -> list[str]:
    """What the Rust front-end keeps from being patched, if it is on."""
    if environ.get("VLLM_USE_RUST_FRONTEND", "0") in ("", "0"):
        return []
    concerned = {patch.number for patch in all_patches() if patch.front_end}
    missing = [o for o in outcomes if o.number in concerned and o.state in (State.APPLIED, State.CANNOT)]
    return [
        f"{HEAD} VLLM_USE_RUST_FRONTEND is on: patch {o.number} ({o.title}) acts in the API server and cannot "
        "reach a front-end that is not Python; set VLLM_USE_RUST_FRONTEND=0"
        for o in missing
    ]


def summary_line(outcomes: Iterable[Outcome], vllm: str, process: str, pid: int) -> str:
    """Everything in one line, for `k3 patches log`."""
    states = " ".join(f"{outcome.number}={outcome.state.value}" for outcome in outcomes)
    return f"{HEAD} process={process} pid={pid} vllm={vllm} {states}"
