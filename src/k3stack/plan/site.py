"""Reserves measured on this site: what `k3 plan --from-log --save` keeps, and later plans use instead of estimates.

One JSON file, `reserves.json` in k3stack's configuration folder, one entry per engine and kind of GPU.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from k3stack.errors import InputError
from k3stack.files import json_value, write_text
from k3stack.hardware.table import gpus
from k3stack.plan.compare import Run
from k3stack.plan.logs import Observed
from k3stack.plan.reserves import Reserves
from k3stack.values import GIB, dump, load

__all__ = ["gpu_of", "reserves_of", "save", "saved", "site_file"]


def site_file() -> Path:
    """Where this site's measurements are kept."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "k3stack" / "reserves.json"


def reserves_of(seen: Observed, run: Run) -> Reserves:
    """The reserves that a log reports; of several workers the greatest.

    Raises:
        InputError: the log lacks one of the figures; names it.
    """
    need = {
        "vllm": ("model load memory", "consumed before cache", "peak activations", "CUDA graphs"),
        "sglang": ("memory before load", "memory after load", "model load memory", "CUDA graphs"),
    }[seen.engine]
    figures = {name: seen.figure(name) for name in need}
    absent = [name for name, figure in figures.items() if figure is None]
    if absent:
        raise InputError(
            f"does not report {', '.join(absent)}",
            where=seen.source,
            hint="Nothing was saved. Use a complete start-up log.",
        )
    most = {name: figure.greatest for name, figure in figures.items() if figure is not None}
    if seen.engine == "vllm":
        other, peak = most["consumed before cache"] - most["model load memory"], most["peak activations"]
        if run.release.graphs_in_budget:  # such releases print the graphs they expect as part of the peak
            peak = max(peak - most["CUDA graphs"], 0.0)
    else:
        other = most["memory before load"] - most["memory after load"] - most["model load memory"]
        after = seen.figure("memory after pools")
        left = seen.figure("memory left")
        peak = max((after.least - left.least if after and left else 0.0) - most["CUDA graphs"], 0.0)
    tokens = run.workload.batched_tokens
    return Reserves(
        round(max(other, 0) * GIB), round(peak * GIB), tokens, round(most["CUDA graphs"] * GIB), _title(seen, run)
    )


def _title(seen: Observed, run: Run) -> str:
    return f"{seen.engine} {seen.version or 'of unknown version'}, {run.layout.describe()}, {Path(seen.source).name}"


def gpu_of(seen: Observed) -> str | None:
    """The kind of GPU that a log ran on, by its memory; None when it fits none of the table, or several."""
    figure = seen.figure("device memory") or seen.figure("memory before load")
    if figure is None:
        return None
    size = figure.greatest * GIB
    close = [name for name, kind in gpus().items() if abs(kind.memory_bytes - size) < 0.01 * size]
    return close[0] if len(close) == 1 else None


def saved(engine: str, gpu: str) -> Reserves | None:
    """This site's reserves for an engine and a kind of GPU, if they were measured.

    Raises:
        InputError: the site's file is damaged.
    """
    row = _entries(site_file()).get(f"{engine}/{gpu}")
    return None if row is None else load(Reserves, row)


def save(engine: str, gpu: str, reserves: Reserves) -> Path:
    """Keep reserves for later plans; returns the file.

    Raises:
        InputError: the site's file is damaged; it is left as it is.
    """
    path = site_file()
    entries = _entries(path)
    entries[f"{engine}/{gpu}"] = dump(reserves)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(entries, indent=2) + "\n")
    return path


def _entries(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        entries = json_value(path.read_text())
    except (OSError, ValueError) as error:
        raise InputError(
            f"cannot be read ({error})", where=path, hint="Remove it, then save again from a log."
        ) from error
    if not isinstance(entries, dict):
        raise InputError("is not an object of engine/gpu entries", where=path, hint="Remove it, then save again.")
    return entries
