"""A choice as a link's query, and back: what a saved page or a message carries. Reading one never trusts it."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, urlencode

from k3stack.errors import UsageError
from k3stack.hardware.table import gpu
from k3stack.plan.layout import KvDtype, Layout, Workload
from k3stack.recipe.choice import Choice, Feature, Goal, Parsers, Serving
from k3stack.spec.schemes import Scheme

__all__ = ["from_query", "to_query"]

_WORKLOAD = (
    "context",
    "concurrency",
    "batched_tokens",
    "kv",
    "prefix",
    "utilization",
    "prefill_utilization",
    "state_ratio",
)
_COUNTS = ("context", "concurrency", "batched_tokens")
_FIELDS = (
    *("engine", "version", "hardware", "scheme", "goal", "serving"),
    *("layout", "prefill", "features", "parsers", "model"),
)


def to_query(choice: Choice) -> str:
    """The choice as `engine=...&hardware=...`."""
    work = choice.workload
    pairs: dict[str, Any] = {
        "engine": choice.engine,
        "version": choice.version,
        "hardware": choice.gpu.id,
        "scheme": choice.scheme.value,
        "goal": choice.goal.value,
        "serving": choice.serving.value,
        "layout": _layout_text(choice.layout),
        **({"prefill": _layout_text(choice.prefill)} if choice.prefill else {}),
        "features": ",".join(feature.value for feature in choice.features),
        **({} if choice.parsers is Parsers.KIMI_K3 else {"parsers": choice.parsers.value}),
        "context": work.context,
        "concurrency": work.concurrency,
        "batched_tokens": work.batched_tokens,
        "kv": work.kv_dtype.value,
        "prefix": int(work.prefix_caching),
        "utilization": work.utilization,
        **({} if choice.prefill_utilization is None else {"prefill_utilization": choice.prefill_utilization}),
        **({} if work.state_ratio is None else {"state_ratio": work.state_ratio}),
        "model": choice.model,
    }
    return urlencode(pairs)


def from_query(text: str) -> Choice:
    """The choice that a query stands for. Whether it is allowed, `build` decides, as for any other.

    Raises:
        UsageError: a field is missing, unknown or has a value that it cannot have; names the field.
        NotKnownError: there is no such GPU.
    """
    pairs = dict(parse_qsl(text.lstrip("#?"), keep_blank_values=True))
    known = {*_FIELDS, *_WORKLOAD}
    for name in pairs:
        if name not in known:
            raise UsageError("is no field of a choice", where=name)
    return Choice(
        engine=_field(pairs, "engine", str),
        version=_field(pairs, "version", str),
        gpu=gpu(_field(pairs, "hardware", str)),
        scheme=_field(pairs, "scheme", Scheme),
        layout=_field(pairs, "layout", _layout),
        workload=_workload(pairs),
        goal=_field(pairs, "goal", Goal),
        serving=_field(pairs, "serving", Serving),
        prefill=_field(pairs, "prefill", _layout) if "prefill" in pairs else None,
        prefill_utilization=_field(pairs, "prefill_utilization", float) if "prefill_utilization" in pairs else None,
        features=tuple(_field(pairs, "features", _features)),
        model=pairs.get("model", ""),
        parsers=_field(pairs, "parsers", Parsers) if "parsers" in pairs else Parsers.KIMI_K3,
    )


def _workload(pairs: dict[str, str]) -> Workload:
    counts = {name: _field(pairs, name, int) for name in _COUNTS if name in pairs}
    more: dict[str, Any] = {}
    if "kv" in pairs:
        more["kv_dtype"] = _field(pairs, "kv", KvDtype)
    if "prefix" in pairs:
        more["prefix_caching"] = _field(pairs, "prefix", int) == 1
    if "utilization" in pairs:
        more["utilization"] = _field(pairs, "utilization", float)
    if "state_ratio" in pairs:
        more["state_ratio"] = _field(pairs, "state_ratio", float)
    return Workload(**counts, **more)


def _field(pairs: dict[str, str], name: str, kind: Any) -> Any:
    if name not in pairs:
        raise UsageError("is missing", where=name)
    try:
        return kind(pairs[name])
    except ValueError as error:
        raise UsageError(f"cannot be {pairs[name]!r}", where=name) from error


def _features(text: str) -> list[Feature]:
    return [Feature(name) for name in text.split(",") if name]


def _layout_text(layout: Layout) -> str:
    return f"tp{layout.tp},pp{layout.pp},dp{layout.dp},dcp{layout.dcp}" + (",ep" if layout.ep else "")


def _layout(text: str) -> Layout:
    sizes: dict[str, Any] = {}
    for part in text.split(","):
        if part == "ep":
            sizes["ep"] = True
            continue
        name = part.rstrip("0123456789")
        if name not in ("tp", "pp", "dp", "dcp") or not part[len(name) :]:
            raise ValueError(text)
        sizes[name] = int(part[len(name) :])
    return Layout(**sizes)
