"""Reading the payload for values that no sound checkpoint holds: NaN, negative or infinite scales, NaN weights."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING

from k3stack.checkpoint.faults import FaultKind
from k3stack.spec.dtypes import DType
from k3stack.spec.model import ModelSpec
from k3stack.spec.schemes import Encoding

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from k3stack.checkpoint.header import Header
    from k3stack.checkpoint.source import Source

__all__ = ["Depth", "Looked", "scan_payload"]

CHUNK_BYTES = 1 << 26
AUTO_LIMIT_BYTES = 2 * 10**9
"""With `Depth.AUTO`, scales are read where they are local and no larger than this (seconds, on any disk)."""


class Depth(StrEnum):
    """How much of the payload to read."""

    AUTO = "auto"
    HEADERS = "headers"
    SCALES = "scales"
    ALL = "all"


class Looked(StrEnum):
    """How deep an inspection went."""

    INDEX = "index only"
    HEADERS = "headers"
    SCALES = "headers and scales"
    ALL = "headers and all data"


FaultSink = Callable[[FaultKind, str, str, int], None]


def scan_payload(
    source: Source,
    headers: dict[str, Header],
    spec: ModelSpec,
    depth: Depth,
    fault: FaultSink,
    report: Callable[[int, int | None, str], None],
) -> Looked | None:
    """Read scales, or everything, and report what cannot be right; None when nothing was read.

    Args:
        source: where the shards are.
        headers: their checked headers.
        spec: the model; tells E8M0 scale bytes from packed weights.
        depth: AUTO reads the scales of a local checkpoint when they are small.
        fault: called with (kind, where, what, count).
        report: told (done bytes, total, what).
    """
    wanted = [
        (shard, name, tensor)
        for shard, header in headers.items()
        for name, tensor in header.tensors.items()
        if depth is Depth.ALL or "scale" in name.rpartition(".")[2]
    ]
    total = sum(tensor.end - tensor.begin for _, _, tensor in wanted)
    if depth is Depth.AUTO and (not source.local or total > AUTO_LIMIT_BYTES):
        return None
    e8m0 = spec.scheme.expert is Encoding.MXFP4
    done = 0
    for shard, name, tensor in wanted:
        start = headers[shard].payload_start
        is_scale = "scale" in name.rpartition(".")[2]
        checks = _checks(tensor.dtype, is_scale, e8m0)
        for begin in range(tensor.begin, tensor.end, CHUNK_BYTES) if checks else ():
            end = min(tensor.end, begin + CHUNK_BYTES)
            data = source.read(shard, start + begin, start + end)
            for kind, what, count in _bad_values(data, tensor.dtype, checks):
                fault(kind, f"{shard}: {name}", what, count)
        done += tensor.end - tensor.begin
        report(done, total, shard)
    return Looked.ALL if depth is Depth.ALL else Looked.SCALES


def _checks(dtype: DType, is_scale: bool, e8m0: bool) -> str:
    if dtype is DType.U8:
        return "e8m0" if is_scale and e8m0 else ""
    if dtype not in (DType.F8_E4M3, DType.BF16, DType.F32):
        return ""
    return "scale" if is_scale else "weight"


def _bad_values(data: bytes, dtype: DType, checks: str) -> list[tuple[FaultKind, str, int]]:
    import numpy as np

    from k3stack.formats import bf16, e8m0

    raw = np.frombuffer(data, np.uint8)
    if checks == "e8m0":
        return _counted(FaultKind.NAN_SCALE, "NaN (byte 255)", raw == e8m0.NAN)
    if dtype is DType.F8_E4M3:
        nan = (raw & 0x7F) == 0x7F
        if checks == "weight":
            return _counted(FaultKind.NAN_WEIGHT, "NaN", nan)
        negative = (raw > 0x80) & ~nan
        return _counted(FaultKind.NAN_SCALE, "NaN", nan) + _counted(FaultKind.BAD_SCALE, "negative", negative)
    values = bf16.decode(raw.view(np.uint16)) if dtype is DType.BF16 else raw.view(np.float32)
    if checks == "weight":
        return _counted(FaultKind.NAN_WEIGHT, "NaN or infinite", ~np.isfinite(values))
    nan = np.isnan(values)
    wrong = ~nan & ((values < 0) | np.isinf(values))
    return _counted(FaultKind.NAN_SCALE, "NaN", nan) + _counted(FaultKind.BAD_SCALE, "negative or infinite", wrong)


def _counted(kind: FaultKind, what: str, bad: NDArray[np.bool_]) -> list[tuple[FaultKind, str, int]]:
    count = int(bad.sum())
    return [(kind, f"{count:,} of {bad.size:,} values are {what}", 1)] if count else []
