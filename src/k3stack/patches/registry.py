"""The patches, and the one place that decides how each of them ends in this process."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .edits import Edits
from .patch import CannotApplyError, Outcome, Patch, State
from .switches import MASTER, Mode, Switch, mode, switch

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["MARK", "all_patches", "settle", "settle_process", "stops_the_server"]

MARK = "__k3_patches__"
"""Where the outcomes are kept, on the module `vllm`: one place per process, whoever asks and however often."""


def all_patches() -> tuple[Patch, ...]:
    """Every patch, by number. Imports no engine."""
    from .p1_mxfp8_kv_b import Mxfp8KvB
    from .p2_image_placeholders import ImagePlaceholders
    from .p3_per_token_scales import PerTokenScales
    from .p4_situ_scale import SituScale
    from .p5_fp8_pb_wo import Fp8PbWo
    from .p6_mla_gate_scales import MlaGateScales

    return (Mxfp8KvB(), ImagePlaceholders(), PerTokenScales(), SituScale(), Fp8PbWo(), MlaGateScales())


def settle(patches: Sequence[Patch], environ: Mapping[str, str]) -> tuple[Outcome, ...]:
    """Bring each patch to its state: probe, apply all parts or none, prove. One that fails leaves the others."""
    if mode(environ) is Mode.OFF:
        return tuple(_outcome(patch, State.DISABLED, f"{MASTER}=off") for patch in patches)
    return tuple(_settle_one(patch, switch(environ, patch.switch)) for patch in patches)


def settle_process(vllm: ModuleType, environ: Mapping[str, str]) -> tuple[tuple[Outcome, ...], bool]:
    """Settle every patch once per process; the second value says whether this call was the first."""
    done: tuple[Outcome, ...] | None = vars(vllm).get(MARK)
    if done is not None:
        return done, False
    with _plain_torch():
        outcomes = settle(all_patches(), environ)
    setattr(vllm, MARK, outcomes)
    return outcomes, True


def stops_the_server(outcomes: Sequence[Outcome], environ: Mapping[str, str]) -> bool:
    """Whether the process must not go on: strict mode, and a patch that is or may be needed cannot apply."""
    return mode(environ) is Mode.STRICT and any(outcome.state is State.CANNOT for outcome in outcomes)


def _settle_one(patch: Patch, wanted: Switch) -> Outcome:
    if wanted is Switch.OFF:
        return _outcome(patch, State.DISABLED, f"{patch.switch}=0")
    try:
        finding = patch.needed()
    except Exception as error:
        return _outcome(patch, State.CANNOT, f"its probe failed: {_say(error)}")
    if not finding.needed:
        return _outcome(patch, State.NOT_NEEDED, finding.why)
    if patch.optional and wanted is not Switch.ON:
        return _outcome(patch, State.NOT_NEEDED, f"optional, set {patch.switch}=1 to have it")
    edits = Edits()
    try:
        patch.apply(edits)
        proof = patch.verify()
        if proof.needed:
            raise CannotApplyError(f"applied, but its proof failed: {proof.why}")
    except Exception as error:
        edits.undo()
        return _outcome(patch, State.CANNOT, f"needed ({finding.why}), but {_say(error)}")
    return _outcome(patch, State.APPLIED, finding.why, line=patch.line)


def _outcome(patch: Patch, state: State, why: str, line: str = "") -> Outcome:
    return Outcome(patch.number, patch.title, patch.switch, state, why, line)


def _say(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, CannotApplyError) else f"{type(error).__name__}: {text}"


@contextmanager
def _plain_torch() -> Iterator[None]:
    """Probes work on small CPU tensors, whatever device and dtype the engine has made the default by then.

    They also build a few of the engine's own configurations, whose start-up warnings would puzzle a reader of the
    log, so logging below ERROR is off meanwhile.
    """
    import logging

    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    before, level = torch.get_default_dtype(), logging.root.manager.disable
    torch.set_default_dtype(torch.float32)
    logging.disable(logging.WARNING)
    try:
        with torch.device("cpu"), torch.no_grad():
            yield
    finally:
        logging.disable(level)
        torch.set_default_dtype(before)
