"""Which of a machine's NVIDIA GPUs programs here may use: what CUDA_VISIBLE_DEVICES leaves of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = ["VARIABLE", "visible"]

VARIABLE = "CUDA_VISIBLE_DEVICES"


def visible(devices: Sequence[tuple[int, str]], environment: Mapping[str, str]) -> frozenset[int] | None:
    """The indices that are left, or None where the variable is not set and all are.

    Read as CUDA reads it (CUDA programming guide, "CUDA Environment Variables"): indices or starts of UUIDs, and
    from the first that names no GPU on, nothing more is used. Indices count as nvidia-smi does, which is CUDA's own
    order for GPUs of one kind.

    Args:
        devices: index and UUID of each GPU.
    """
    asked = environment.get(VARIABLE)
    if asked is None:
        return None
    left: list[int] = []
    for word in asked.split(","):
        index = _named(word.strip(), devices)
        if index is None or index in left:
            break
        left.append(index)
    return frozenset(left)


def _named(word: str, devices: Sequence[tuple[int, str]]) -> int | None:
    if word.isdigit():
        return next((index for index, _ in devices if index == int(word)), None)
    if not word.startswith("GPU-"):
        return None  # a slice of a GPU (MIG) is none that a plan knows
    found = [index for index, uuid in devices if uuid.startswith(word)]
    return found[0] if len(found) == 1 else None
