"""Runs inside an engine's Python, where pytest is not: prints what it saw as one JSON object, on the last line.

    python inside.py SECTION...

Sections: states, gate, pb_wo, situ, faults. Each leaves the engine as it found it, but for states, the last.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import vllm
import vllm.models.kimi_k3.nvidia.model

from k3stack.patches.bench import LINEAR, MODELOPT, bench
from k3stack.patches.edits import Edits, find
from k3stack.patches.p4_situ_scale import SituScale, build_experts
from k3stack.patches.p5_fp8_pb_wo import Fp8PbWo
from k3stack.patches.p6_mla_gate_scales import CLASS, MlaGateScales, put_on_grid
from k3stack.patches.projections import K3, SMALL, Mismatch, gate, kda, kv_b, latents
from k3stack.patches.registry import settle, settle_process

DEGREES = (1, 2, 4, 8, 16)


def wrong_rows(build: Callable[[], list[Mismatch]]) -> dict[str, list[int]] | str:
    """Shard name -> rows that differ from the checkpoint, or the error that building and loading ended in."""
    try:
        return {one.shard: list(one.wrong_rows) for one in build()}
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def states() -> Any:
    outcomes, first = settle_process(vllm, os.environ)
    again, second = settle_process(vllm, os.environ)
    return {
        "vllm": vllm.__version__,
        "states": {outcome.number: outcome.state.value for outcome in outcomes},
        "why": {outcome.number: outcome.why for outcome in outcomes},
        "once": (first, second, outcomes is again),
    }


def gate_rows() -> Any:
    found: dict[str, Any] = {"before": {}, "after": {}, "after_small": {}}
    for tp in DEGREES:
        with bench(tp, tp - 1):
            (shard,) = gate(K3, tp, tp - 1)
        halves = [row for row in range(shard.rows) if row % 128 < 64]
        found["before"][tp] = (shard.shard, shard.rows, len(shard.wrong_rows), list(shard.wrong_rows) == halves)
    edits = Edits()
    MlaGateScales().apply(edits)
    try:
        for tp in DEGREES:
            for rank in {0, tp - 1}:
                with bench(tp, rank):
                    found["after"][f"{tp}/{rank}"] = wrong_rows(partial(gate, K3, tp, rank))
        for tp in (1, 2, 4, 8):
            for rank in range(tp):
                with bench(tp, rank):
                    result = wrong_rows(partial(gate, SMALL, tp, rank))
                    found["after_small"][f"{tp}/{rank}"] = result
        found["plain_layer_untouched"] = plain_layer_is_untouched()
    finally:
        edits.undo()
    with bench(2, 1):
        found["undone"] = wrong_rows(lambda: gate(SMALL, 2, 1))
    return found


def plain_layer_is_untouched() -> bool:
    """A BF16 gate keeps its own method and its rows, and its output is its weight."""
    with bench(2, 1):
        layer = find(LINEAR, CLASS)(
            hidden_size=256,
            q_lora_rank=128,
            kv_lora_rank=128,
            qk_rope_head_dim=64,
            total_num_heads=8,
            v_head_dim=128,
        )
    method = layer.quant_method
    put_on_grid(layer)
    mine = {"apply", "process_weights_after_loading"} & set(vars(method))
    return not mine and layer.weight.shape[0] == 128 + 192 + 512


def pb_wo() -> Any:
    found: dict[str, Any] = {"before": Fp8PbWo().needed().why, "after": {}}
    edits = Edits()
    Fp8PbWo().apply(edits)
    try:
        for tp in DEGREES:
            for rank in {0, tp - 1} if tp == 8 else {tp - 1}:
                with bench(tp, rank):
                    found["after"][f"kda {tp}/{rank}"] = wrong_rows(partial(kda, K3, tp, rank))
                with bench(tp, rank):
                    found["after"][f"kv_b {tp}/{rank}"] = kv_b_differs(tp, rank, repacks=False)
                with bench(tp, rank, repacks=True):
                    found["after"][f"repacked kv_b {tp}/{rank}"] = kv_b_differs(tp, rank, repacks=True)
        with bench(1, 0):
            found["after"]["latents"] = wrong_rows(lambda: latents(K3))
        found["parts"] = parts_are_all_needed(edits)
    finally:
        edits.undo()
    found["undone"] = Fp8PbWo().needed().why
    return found


def kv_b_differs(tp: int, rank: int, repacks: bool) -> dict[str, int]:
    """Rows of the weight that MLA decode absorbs which differ from the checkpoint's."""
    layer, expected = kv_b(K3, tp, rank)
    dequantise = find("vllm.model_executor.layers.quantization.utils.quant_utils", "get_and_maybe_dequant_weights")
    wrong = int((dequantise(layer, out_dtype=torch.bfloat16) != expected).any(dim=1).sum())
    return {"kv_b_proj": wrong} if wrong else {}


def parts_are_all_needed(edits: Edits) -> dict[str, str]:
    """What the proof says when one replacement of the patch is taken back alone."""
    said = {}
    for owner, name, old in list(edits._made):
        label = f"{getattr(owner, '__name__', owner)}.{name}"
        new = getattr(owner, name)
        setattr(owner, name, old)
        try:
            finding = Fp8PbWo().verify()
            said[label] = finding.why if finding.needed else ""
        except Exception as error:
            said[label] = f"{type(error).__name__}: {error}"
        finally:
            setattr(owner, name, new)
    return said


def situ() -> Any:
    """The kernel's algebra with the class's scales, against SiTU on the dequantised values, in float64."""
    torch.manual_seed(0)
    a = torch.exp2(torch.randint(-12, 3, (16,)).float())
    a2 = torch.exp2(torch.randint(-4, 3, (16,)).float())
    raw_gate, raw_up = torch.randn(2, 16, 512, dtype=torch.float64) * 100

    def activation(g: Any, u: Any) -> Any:
        return 4 * torch.tanh(g / 4) * torch.sigmoid(g) * 25 * torch.tanh(u / 25)

    wide = a.double()[:, None]
    exact = activation(wide * raw_gate, wide * raw_up)
    expected = exact / a2.double()[:, None]

    def error() -> list[float]:
        """Relative error of one expert's whole output, the worst of 16; before and after the post-load step."""
        outputs = [exact * c.double()[:, None] for c in build_experts(a, a2)]
        return [float(((o - expected).norm(dim=1) / expected.norm(dim=1)).max()) for o in outputs]

    found = {"before": error()}
    edits = Edits()
    if SituScale().needed().needed:
        SituScale().apply(edits)
    found["after"] = error()
    edits.undo()
    return found


def faults() -> Any:
    """Break the engine in one way at a time; what state results, and is the engine as it was afterwards?"""
    cls = find(LINEAR, CLASS)
    modelopt = find(MODELOPT)
    original = cls.__init__

    def other_signature(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)

    class Raises(MlaGateScales):
        def apply(self, edits: Edits) -> None:
            super().apply(edits)
            raise ZeroDivisionError("in a later part")

    class ProvesNothing(MlaGateScales):
        def apply(self, edits: Edits) -> None:
            edits.replace(cls, "__init__", other_signature)

    found = {}
    for name, patch, breaks in (
        ("symbol renamed", MlaGateScales(), _rename),
        ("signature changed", MlaGateScales(), lambda e: e.replace(cls, "__init__", other_signature)),
        ("module missing", MlaGateScales(), lambda e: _hide(e, MODELOPT)),
        ("exception inside one part", Raises(), lambda e: None),
        ("patch without effect", ProvesNothing(), lambda e: None),
        ("no table of fused projections", MlaGateScales(), _without_table),
    ):
        damage = Edits()
        breaks(damage)
        (outcome,) = settle([patch], {})
        damage.undo()
        sys.modules[MODELOPT] = modelopt
        whole = cls.__init__ is original and getattr(find(LINEAR), CLASS, None) is cls
        found[name] = {"state": outcome.state.value, "why": outcome.why, "engine_as_before": whole}
    return found


def _rename(edits: Edits) -> None:
    linear = find(LINEAR)
    edits.add(linear, "Renamed", getattr(linear, CLASS))
    edits.replace(linear, CLASS, None)
    delattr(linear, CLASS)


def _hide(edits: Edits, module: str) -> None:
    sys.modules[module] = None  # type: ignore[assignment]


def _without_table(edits: Edits) -> None:
    import inspect

    for _, cls in inspect.getmembers(find("vllm.models.kimi_k3.nvidia.model"), inspect.isclass):
        if "in_proj_qkvgfab" in (getattr(cls, "packed_modules_mapping", None) or {}):
            edits.add(cls, "packed_modules_mapping", {})


SECTIONS = {"gate": gate_rows, "pb_wo": pb_wo, "situ": situ, "faults": faults, "states": states}


if __name__ == "__main__":
    with torch.no_grad():
        seen = {name: run() for name, run in SECTIONS.items() if name in sys.argv[1:]}
    print("\n" + json.dumps(seen))
