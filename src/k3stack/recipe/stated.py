"""What rules may look at of a copied command: the facts that it states, and none that it leaves open."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from k3stack.hardware.table import Gpu
from k3stack.recipe.choice import Choice, Serving
from k3stack.recipe.copied import Copied
from k3stack.recipe.meaning import (
    features_of,
    layout_of,
    number_of,
    role_of,
    scheme_of,
    sizes_known,
    workload_of,
)
from k3stack.spec.schemes import Scheme

__all__ = ["facts_of"]


def facts_of(copied: Copied, values: Mapping[str, Any], model: str, version: str, gpu: Gpu | None) -> dict[str, Any]:
    """What conditions of rules are about, without what the command leaves open.

    Args:
        values: of the command's flags.
        gpu: None where nobody says which it is for.
    """
    layout = layout_of(copied.engine, values)
    scheme = scheme_of(model, values)
    role = role_of(values, copied.words, copied.place)
    serving = Serving.UNIFIED if role == "server" else Serving.DISAGGREGATED
    choice = Choice(
        engine=copied.engine,
        version=version,
        gpu=gpu or _ANY_GPU,
        scheme=scheme or Scheme.MXFP4,
        layout=layout,
        workload=workload_of(copied.engine, values),
        serving=serving,
        prefill=layout if serving is Serving.DISAGGREGATED else None,
        features=features_of(copied.engine, values),
    )
    facts = choice.facts(role, layout)
    dcp = number_of(values, "decode-context-parallel-size" if copied.engine == "vllm" else "dcp-size")
    facts |= {"dcp": dcp, "tp_mod_dcp": layout.tp % dcp, "dcp_is_tp": dcp == layout.tp}
    facts["nodes"] = max(number_of(values, "nnodes"), facts["nodes"] if gpu else 1)
    unsaid = {"goal"}
    if scheme is None:
        unsaid.add("scheme")
    if gpu is None:
        unsaid |= {"gpu", "vendor", "architecture", "inside_nvlink", "replica_crosses_nodes"}
    if not sizes_known(copied.engine, values):
        unsaid |= {"gpus", "strategy", "inside_nvlink", "replica_crosses_nodes", "dcp_is_tp", "tp_mod_dcp"}
    facts |= _step_facts(values)
    return {key: value for key, value in facts.items() if key not in unsaid}


def _step_facts(values: Mapping[str, Any]) -> dict[str, bool | None]:
    """Whether a step has room for its requests, as each replica's own flags say; None where they do not."""
    sequences, batched = number_of(values, "max-num-seqs", 0), number_of(values, "max-num-batched-tokens", 0)
    if not sequences or not batched:
        return {"batched_below_sequences": None, "drafts_fill_step": None}
    draft = values.get("speculative-config")
    drafted = number_of(draft, "num_speculative_tokens", 0) if isinstance(draft, dict) else 0
    parallel = isinstance(draft, dict) and draft.get("method") in ("dspark", "dflash")
    return {
        "batched_below_sequences": batched < sequences,
        "drafts_fill_step": parallel and batched <= sequences * (drafted - 1),
    }


_ANY_GPU = Gpu(
    id="",
    name="",
    vendor="nvidia",
    architecture="",
    sold_bytes=0,
    memory_bytes=0,
    memory_origin="estimated",  # type: ignore[arg-type]
    gpus_per_node=8,
    nvlink_gpus=8,
    source="",
)
