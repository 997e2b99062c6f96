"""Read a start-up log of vLLM or SGLang: how it was started, and every memory figure it reports.

Lines of several workers may be run together, so figures are searched in the text, not line by line; a figure that
several workers report is kept from each. What a log of its engine could report and this one does not is named absent.

Sources of the phrases: vLLM 0.27.1 to 0.33.0 and the image of July 2026 (gpu_worker.py, model_runner.py,
kv_cache_utils.py, interface.py); SGLang 0.5.23 (model_runner.py, memory_pool.py, kv_cache_configurator.py,
scheduler.py, server_args.py).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from k3stack.errors import InputError, next_step

__all__ = ["Figure", "Observed", "Setting", "parse_log", "read_log", "unit_of"]

MAX_LOG_BYTES = 256 * 2**20

Unit = Literal["GiB", "bytes", "tokens", "blocks", "requests", "times", "seconds", "%", "layers"]


@dataclass(frozen=True, slots=True)
class Figure:
    """One quantity of a log: every value reported for it, in the order of the log."""

    name: str
    unit: Unit
    values: tuple[float, ...]

    @property
    def least(self) -> float:
        """The smallest value."""
        return min(self.values)

    @property
    def greatest(self) -> float:
        """The largest value."""
        return max(self.values)


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of the run and where in the log it was found."""

    name: str
    value: str
    found_in: str


@dataclass(frozen=True, slots=True)
class Observed:
    """What a log says.

    Attributes:
        version: the engine's version as printed.
        settings: how it was started, by name (tp, pp, dp, ep, dcp, context, requests, tokens, utilization, ...).
        figures: what it reports.
        absent: quantities that this engine reports elsewhere and this log does not hold.
        errors: refusals and failures, quoted.
    """

    source: str
    engine: str
    version: str | None
    settings: tuple[Setting, ...]
    figures: tuple[Figure, ...]
    absent: tuple[str, ...]
    errors: tuple[str, ...] = ()

    def setting(self, name: str) -> str | None:
        """A setting's value, or None."""
        return next((found.value for found in self.settings if found.name == name), None)

    def number(self, name: str) -> int | None:
        """A setting as a whole number, or None."""
        value = self.setting(name)
        return int(float(value)) if value is not None and re.fullmatch(r"[\d.]+", value) else None

    def figure(self, name: str) -> Figure | None:
        """A quantity, or None."""
        return next((found for found in self.figures if found.name == name), None)


_NUMBER = r"(-?\d[\d,]*(?:\.\d+)?)"

_VLLM: dict[str, tuple[Unit, str]] = {
    "checkpoint": ("GiB", rf"Checkpoint size: {_NUMBER} GiB"),
    "host memory free": ("GiB", rf"Available RAM: {_NUMBER} GiB"),
    "weights loaded in": ("seconds", rf"Loading weights took {_NUMBER} seconds"),
    "model load memory": ("GiB", rf"Model loading took {_NUMBER} GiB"),
    "model load time": ("seconds", rf"Model loading took {_NUMBER} GiB(?: memory)? and (-?[\d.]+) seconds"),
    "block size": ("tokens", rf"Setting attention block size to {_NUMBER} tokens"),
    "state padding": ("%", rf"Padding mamba page size by {_NUMBER}%"),
    "padding layers": ("layers", rf"Add {_NUMBER} padding layers"),
    "device memory": ("GiB", rf"Free memory on device \([\d.]+/{_NUMBER} GiB\)"),
    "device memory free at start": ("GiB", rf"(?:Free memory on device \(|Initial free memory ){_NUMBER}(?:/| GiB)"),
    "memory budget": ("GiB", rf"Desired GPU memory utilization is \([\d.]+, {_NUMBER} GiB\)"),
    "consumed before cache": ("GiB", rf"Actual usage is {_NUMBER} GiB for consumed"),
    "peak activations": ("GiB", rf"consumed memory \(weights \+ non-torch\), {_NUMBER} GiB for peak"),
    "CUDA graphs": ("GiB", rf"(?:Graph capturing finished in \d+ secs, took|peak activation, and) {_NUMBER} GiB"),
    "available cache memory": ("GiB", rf"Available KV cache memory: {_NUMBER} GiB"),
    "cache memory in use": ("GiB", rf"Current kv cache memory in use is {_NUMBER} GiB"),
    "cache memory set by hand": ("GiB", rf"reserved {_NUMBER} GiB memory for KV Cache"),
    "GPU KV cache size": ("tokens", rf"KV cache size: {_NUMBER} tokens"),
    "maximum concurrency": ("times", rf"Maximum concurrency for [\d,]+ tokens per request: {_NUMBER}x"),
    "blocks": ("blocks", rf"(?:# GPU blocks: |num_gpu_blocks(?: is|=|:)? ?){_NUMBER}"),
    "needed cache memory": ("GiB", rf"\({_NUMBER} GiB KV cache is needed"),
    "longest context offered": ("tokens", rf"estimated maximum model length is {_NUMBER}(?!\d)"),
    "requests offered": ("requests", rf"exceeds available Mamba cache blocks \({_NUMBER}\)"),
    "cache memory that keeps to the budget": (
        "bytes",
        rf"`--kv-cache-memory={_NUMBER}` \([^)]*\) to fit into requested",
    ),
    "cache memory that fills the device": ("bytes", rf"`--kv-cache-memory={_NUMBER}` \([^)]*\) to fully utilize"),
    "engine start": ("seconds", rf"init engine \([^)]*\) took {_NUMBER} s"),
}

_SGLANG: dict[str, tuple[Unit, str]] = {
    "memory before load": ("GiB", rf"Load weight begin\. avail mem={_NUMBER} GB"),
    "model load time": ("seconds", rf"Load weight end\. elapsed={_NUMBER} s"),
    "memory after load": ("GiB", rf"Load weight end\.[^\n]*?avail mem={_NUMBER} GB"),
    "model load memory": ("GiB", rf"Load weight end\.[^\n]*?mem usage={_NUMBER} GB"),
    "state slots": ("requests", rf"max_mamba_cache_size: {_NUMBER}"),
    "convolution state": ("GiB", rf"conv_state size: {_NUMBER} ?GB"),
    "recurrent state": ("GiB", rf"ssm_state size: {_NUMBER} ?GB"),
    "kept states for drafts": ("GiB", rf"intermediate_ssm_state_cache size: {_NUMBER} ?GB"),
    "cache memory": ("GiB", rf"KV size: {_NUMBER} GB"),
    "memory after pools": ("GiB", rf"Memory pool end\. avail mem={_NUMBER} GB"),
    "CUDA graphs": ("GiB", rf"Capture [^\n]*? end\.[^\n]*?mem usage={_NUMBER} GB"),
    "KV tokens": ("tokens", rf"max_total_num_tokens={_NUMBER}"),
    "running requests": ("requests", rf"max_running_requests={_NUMBER}, context_len"),
    "memory left": ("GiB", rf"available_gpu_mem={_NUMBER} GB"),
}

_VLLM_SETTINGS = {
    "tp": r"tensor_parallel_size'?[=:] ?(\d+)|\bTP=(\d+)",
    "pp": r"pipeline_parallel_size'?[=:] ?(\d+)|\bPP=(\d+)",
    "dp": r"data_parallel_size'?[=:] ?(\d+)|\bDP=(\d+)",
    "dcp": r"decode_context_parallel_size'?[=:] ?(\d+)",
    "ep": r"enable_expert_parallel'?[=:] ?(True|False)",
    "context": r"max_seq_len=(\d+)|Using max model len (\d+)|max_model_len'?[=:] ?(\d+)|max-model-len=(\d+)",
    "requests": r"max_num_seqs'?[=:] ?(\d+)|max-num-seqs=(\d+)",
    "tokens": r"max_num_batched_tokens'?[=:] ?(\d+)",
    "utilization": r"gpu_memory_utilization'?[=:] ?([\d.]+)|Desired GPU memory utilization is \(([\d.]+),",
    "cache_bytes": r"kv_cache_memory_bytes'?[=:] ?(\d+)",
    "kv_dtype": r"kv_cache_dtype'?[=:] ?'?(\w+)",
    "prefix_caching": r"enable_prefix_caching'?[=:] ?(True|False)",
    "draft_tokens": r"num_spec(?:ulative)?_tokens'?\"?[=:] ?(\d+)",
    "quantization": r"\bquantization='?(\w+)",
    "model": r"\bmodel='([^']+)'|'model': '([^']+)'|\bMODEL=(\S+)",
    "world": r"world_size=(\d+)|in world size (\d+)",
}

_SGLANG_SETTINGS = {
    "tp": r"\btp_size=(\d+)",
    "pp": r"\bpp_size=(\d+)",
    "dp": r"\b(?:attn_dp_size|dp_size)=(\d+)",
    "dcp": r"\b(?:attn_)?dcp_size=(\d+)",
    "ep": r"\bep_size=(\d+)",
    "context": r"\bcontext_len(?:gth)?=(\d+)",
    "requests": r"\bmax_running_requests=(\d+)",
    "tokens": r"\bchunked_prefill_size=(\d+)",
    "utilization": r"\bmem_fraction_static=([\d.]+)",
    "state_ratio": r"\bmamba_full_memory_ratio=([\d.]+)",
    "slot_strategy": r"\bmamba_radix_cache_strategy='(\w+)'",
    "kv_dtype": r"\bkv_cache_dtype='(\w+)'",
    "radix_off": r"\bdisable_radix_cache=(True|False)",
    "replay_ssm": r"\benable_linear_replayssm_spec=(True|False)",
    "model": r"\bmodel_path='([^']+)'",
}

_ERRORS = re.compile(
    r"[^\n]*(?:OutOfMemoryError|CUDA out of memory|KV cache is needed, which is larger|exceeds available Mamba cache"
    r"|Not enough (?:GPU )?memory|leave no GPU memory|Worker failed with error)[^\n]*"
)


def read_log(path: Path) -> Observed:
    """Read a log file.

    Raises:
        InputError: it cannot be read, is far too large, or is no log of vLLM or SGLang.
    """
    try:
        if path.stat().st_size > MAX_LOG_BYTES:
            raise InputError(
                f"is larger than {MAX_LOG_BYTES // 2**20} MiB", where=path, hint="Give the start-up part: head -c 50M."
            )
        text = path.read_text(errors="replace")
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=path, hint=next_step(error)) from error
    return parse_log(text, str(path))


def parse_log(text: str, source: str) -> Observed:
    """What a log's text says; `source` names it in errors.

    Raises:
        InputError: it is no log of vLLM or SGLang.
    """
    engine = _engine(text, source)
    phrases, settings = (_VLLM, _VLLM_SETTINGS) if engine == "vllm" else (_SGLANG, _SGLANG_SETTINGS)
    found = {name: _settings(name, pattern, text) for name, pattern in settings.items()}
    if engine == "vllm":
        found.update(_from_workers(text, found))
        found["stage"] = _settings("stage", r"Worker_(?:DP\d+_)?PP(\d+)_", text)
    figures = [_figure(name, unit, pattern, text) for name, (unit, pattern) in phrases.items()]
    kept = tuple(figure for figure in figures if figure.values)
    return Observed(
        source=source,
        engine=engine,
        version=_version(text, engine),
        settings=tuple(setting for setting in found.values() if setting is not None),
        figures=kept,
        absent=tuple(name for name in phrases if name not in {figure.name for figure in kept}),
        errors=tuple(dict.fromkeys(line.strip()[:300] for line in _ERRORS.findall(text)))[:10],
    )


def _engine(text: str, source: str) -> str:
    vllm = text.count("vllm") + text.count("vLLM") + len(re.findall(r"gpu_worker\.py|kv_cache_utils\.py", text))
    sglang = text.count("sglang") + text.count("SGLang") + len(re.findall(r"Load weight (?:begin|end)\.", text))
    if not vllm and not sglang:
        raise InputError(
            "is no start-up log of vLLM or SGLang",
            where=source,
            hint="Give what the server printed, from its first line.",
        )
    return "vllm" if vllm >= sglang else "sglang"


def _version(text: str, engine: str) -> str | None:
    pattern = r"\bversion (\d[\w.+]*)|\(v(\d[\w.+]*)\)|vLLM version v?(\d[\w.+]*)"
    if engine == "sglang":
        pattern = r"sglang(?:==|[ _]version[ =:]+'?)v?(\d[\w.+]*)"
    match = re.search(pattern, text)
    return None if match is None else next(group for group in match.groups() if group)


def _settings(name: str, pattern: str, text: str) -> Setting | None:
    match = re.search(pattern, text)
    if match is None:
        return None
    value = next(group for group in match.groups() if group is not None)
    return Setting(name, value, match.group(0)[:80])


def _from_workers(text: str, found: dict[str, Setting | None]) -> dict[str, Setting]:
    """Sizes that a headless node does not print, from how its workers are called (Worker_PP1_TP3)."""
    world = found["world"]
    if world is None or found["tp"] is not None:
        return {}
    ranks = re.findall(r"Worker(?:_DP(\d+))?(?:_PP(\d+))?_TP(\d+)", text)
    if not ranks:
        return {}
    staged = any(pp for _, pp, _ in ranks)
    tp = max(int(rank) for _, _, rank in ranks) + 1 if staged else int(world.value)
    said = "names of the workers and the world size"
    return {"tp": Setting("tp", str(tp), said), "pp": Setting("pp", str(int(world.value) // tp), said)}


def _figure(name: str, unit: Unit, pattern: str, text: str) -> Figure:
    values = []
    for match in re.finditer(pattern, text):
        values.append(float(match.groups()[-1].replace(",", "")))
    return Figure(name, unit, tuple(values))


def unit_of(engine: str, name: str) -> Unit:
    """The unit in which an engine reports a quantity."""
    return (_VLLM if engine == "vllm" else _SGLANG)[name][0]
