"""Our memory arithmetic against every public measurement of a K3 deployment.

    python benchmarks/plan_points.py FOLDER

FOLDER holds memory_points.json and logs/. Each point is predicted from its own inputs by the same code that
`k3 plan --from-log` uses; exact means the integer that the engine printed, within the few integers that the rounding of
the memory it printed leaves. Points that lack an input are listed with what they lack.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from k3stack.plan.compare import Comparison, compare
from k3stack.plan.logs import Figure, Observed, Setting
from k3stack.spec.model import Attention, ModelSpec
from k3stack.spec.published import kimi_k3

__all__ = ["Checked", "check_points", "observe", "spec_of"]

SETTINGS = {
    "tp": "tp", "pp": "pp", "dp": "dp", "dcp": "dcp", "max_model_len": "context", "max_num_seqs": "requests",
    "max_num_batched_tokens": "tokens", "gpu_memory_utilization": "utilization", "kv_cache_memory_bytes": "cache_bytes",
    "mem_fraction_static": "utilization", "mamba_full_memory_ratio": "state_ratio",
    "mamba_radix_cache_strategy": "slot_strategy",
}  # fmt: skip
FIGURES: dict[str, tuple[str, Any]] = {
    "model_load_gib": ("model load memory", "GiB"), "consumed_before_kv_gib": ("consumed before cache", "GiB"),
    "peak_activation_gib": ("peak activations", "GiB"), "available_kv_gib": ("available cache memory", "GiB"),
    "gpu_kv_cache_tokens": ("GPU KV cache size", "tokens"), "max_concurrency": ("maximum concurrency", "times"),
    "num_gpu_blocks": ("blocks", "blocks"), "cuda_graph_gib": ("CUDA graphs", "GiB"),
}  # fmt: skip
WEAKER = "no memory figure"
EXACT = ("GPU KV cache size", "maximum concurrency", "needed cache memory", "longest context offered")

# What a point cannot be predicted from. The rest is tried.
LACKS = {
    "mn-tp8-oom": "an out-of-memory error while loading: weights alone are more than the GPU has (see the load column)",
    "mad-mi300x-weights": "experts requantized to int4 by a fork: other bytes than any scheme here",
    "mad-mi300x-seqs32": "an out-of-resources error of a fork's transport heap",
    "ix-b200-tp8pp2": "no figure of the cache",
    "ix-mi355x-tp8": "no figure of the cache",
    "atom-1959": "bytes per token only (26 KB for SGLang: 24 x 576 x 2 / 1,024 = 27)",
    "ts-905": "another engine",
    "whn-lowlat": "SGLang; memory after loading is only 'about', and the draft is of a shape not covered",
    "sgl-32834": "SGLang; memory after loading is not stated",
    "sgl-h200-2x8": "SGLang; no memory and no ratio stated",
    "sgl-gb200-tp16": "SGLang; no memory and no ratio stated",
    "vcruz-dspark": "max-model-len is not stated, weights are GGUF",
    "vcruz-target": "weights are GGUF, no figure of the cache",
    "vcruz-spark": "another engine",
    "lil-239": "a fork that cuts every tensor: 1,453.7 / 16 = 90.85 GiB, 90.96 reported; vLLM 0.33.0 would hold 129.74",
    "lil-238": "'physical KV tokens' of a fork: no whole number of blocks gives 1,057,049 for max-model-len 1,048,576",
    "llamacpp-q2k": "another engine", "unsloth-70": "another engine", "colibri": "another engine",
    "lmcache-4278": "2,874 blocks without the memory they came from",
    "redhat-nvfp4": "a checkpoint's size only", "fp8-block": "a checkpoint's size only",
    "k2-tp8": "another model (Kimi-K2)", "kl-28228": "another model (Kimi-Linear)",
    "k2-sgl-13466": "another model (Kimi-K2)",
    "weights-model": "a summary of other points",
    "mad-mi325x-kv": "a pool size that was set, nothing the engine computed",
}  # fmt: skip


@dataclass(frozen=True)
class Checked:
    """A point, its comparisons, or what it lacks."""

    id: str
    comparisons: tuple[Comparison, ...]
    lacks: str = ""

    @property
    def exact(self) -> bool | None:
        """Whether everything that must be exact is; None if there is nothing of the kind."""
        hits = [
            one.agrees
            for one in self.comparisons
            if one.quantity in EXACT and one.agrees is not None and WEAKER not in one.why
        ]
        return all(hits) if hits else None

    @property
    def whole_blocks(self) -> bool:
        """Whether the printed tokens are a whole number of blocks, memory unknown: weaker than exact."""
        return any(WEAKER in one.why and one.agrees for one in self.comparisons)


def observe(point: dict[str, Any]) -> Observed:
    """A point of memory_points.json as if it had been read from a log."""
    config, measured = point["config"], point["measured"]
    settings = [
        Setting(ours, str(config[theirs]), "point")
        for theirs, ours in SETTINGS.items()
        if config.get(theirs) is not None
    ]
    settings.append(Setting("ep", str(bool(config.get("ep"))), "point"))
    settings.append(Setting("prefix_caching", str(bool(config.get("prefix_caching"))), "point"))
    settings.append(Setting("kv_dtype", str(config.get("kv_dtype", "auto")).split("(")[0].split()[0], "point"))
    if any(key.endswith("_rank1") for key in measured) and config.get("pp", 1) > 1:
        settings.append(Setting("stage", "1", "point"))
    figures = [_figure(name, unit, [measured[key]]) for key, (name, unit) in FIGURES.items() if key in measured]
    device = re.search(r"([\d.]+) GiB", str(config.get("gpu")))
    if device and config.get("gpu_memory_utilization") and "consumed_before_kv_gib" in measured:
        figures.append(_figure("memory budget", "GiB", [config["gpu_memory_utilization"] * float(device[1])]))
    ranks = [value for key, value in sorted(measured.items()) if key.startswith("available_kv_gib_rank")]
    if ranks:
        figures.append(_figure("available cache memory", "GiB", ranks))
    version = str(config.get("engine_version", ""))
    day0 = "0.1.dev19262" if "kimi-k3" in version or "fork" in str(config.get("engine")) else None
    return Observed(
        point["id"], "vllm", day0, tuple(settings), tuple(figure for figure in figures if figure.values), ()
    )


def _figure(name: str, unit: Any, values: list[Any]) -> Figure:
    return Figure(name, unit, tuple(float(value) for value in values if isinstance(value, int | float)))


def spec_of(point: dict[str, Any]) -> ModelSpec:
    """K3, or the cut-down K3 that a point ran with random weights."""
    spec = kimi_k3()
    overrides = dict(pair.split("=") for pair in str(point["config"].get("hf_overrides", "")).split(",") if "=" in pair)
    if "num_hidden_layers" in overrides:
        spec = replace(spec, layers=spec.layers[: int(overrides["num_hidden_layers"])])
        assert spec.layers_of(Attention.MLA)
    return spec


def refusal_figures(point: dict[str, Any]) -> tuple[Figure, ...]:
    """Numbers in a quoted refusal that our arithmetic gives too."""
    text = str(point["measured"].get("error", ""))
    found = []
    if match := re.search(r"([\d.]+) (?:GiB|GB)(?: KV cache)? needed", text):
        found.append(Figure("needed cache memory", "GiB", (float(match[1]),)))
    if match := re.search(r"estimated maximum model length (\d+)", text):
        found.append(Figure("longest context offered", "tokens", (float(match[1]),)))
    return tuple(found)


def check_points(folder: Path) -> list[Checked]:
    """Every point of a data folder."""
    checked = []
    for point in json.loads((folder / "memory_points.json").read_text()):
        if point["id"] in LACKS:
            checked.append(Checked(point["id"], (), LACKS[point["id"]]))
            continue
        seen = observe(point)
        refused = refusal_figures(point)
        if refused and seen.number("cache_bytes") is None:  # GB in that source are GiB: 12.0 available
            seen = replace(seen, settings=(*seen.settings, Setting("cache_bytes", str(int(12.0 * 2**30)), "point")))
        seen = replace(seen, figures=(*seen.figures, *refused))
        checked.append(Checked(point["id"], tuple(_of_its_rank(one, seen) for one in compare(seen, spec_of(point)))))
    return checked


def _of_its_rank(one: Comparison, seen: Observed) -> Comparison:
    """Available memory of the rank whose consumption the point states: not rank 0, which profiles vision."""
    figure = seen.figure("available cache memory")
    if one.quantity != "available cache memory" or figure is None or one.predicted is None:
        return one
    agrees = abs(one.predicted - figure.greatest) <= 0.05 * figure.greatest
    return replace(one, reported=figure.greatest, agrees=agrees)


def main() -> None:
    """Print the table."""
    folder = Path(sys.argv[1])
    checked = check_points(folder)
    for point in checked:
        for one in point.comparisons:
            if one.agrees is None or one.reported is None:
                continue
            mark = "exact" if one.agrees and one.quantity in EXACT else "ok" if one.agrees else "off"
            mark = "whole blocks" if WEAKER in one.why else "estimate" if one.origin == "estimated" else mark
            span = f" ({one.low:,.10g} to {one.high:,.10g})" if one.low is not None and one.low != one.high else ""
            print(f"{point.id:26} {one.quantity:24} {one.predicted:>16,.10g}{span} | {one.reported:>14,.10g} {mark}")
    for point in checked:
        if point.lacks:
            print(f"{point.id:26} not predicted: {point.lacks}")
    hits = [point.id for point in checked if point.exact]
    misses = [point.id for point in checked if point.exact is False]
    print(f"whole blocks, memory unknown: {[point.id for point in checked if point.whole_blocks]}")
    lacking = sum(bool(point.lacks) for point in checked)
    print(f"exact: {len(hits)} points; missed: {misses or 'none'}; without enough inputs: {lacking}")


if __name__ == "__main__":
    main()
