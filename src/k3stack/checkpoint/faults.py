"""What can be wrong with a checkpoint: one kind per cause, so that a fault is named once and not by its echoes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from k3stack.errors import CheckpointError

__all__ = ["Fault", "FaultKind", "ShardError"]


class FaultKind(StrEnum):
    """The cause of a fault."""

    MISSING_SHARD = "missing shard"
    TRUNCATED = "truncated shard"
    TRAILING = "bytes after the payload"
    HEADER_LENGTH = "header length"
    HEADER_TOO_LARGE = "header too large"
    NOT_JSON = "header is not JSON"
    BAD_ENTRY = "bad header entry"
    DUPLICATE = "duplicate tensor"
    MISSING_TENSOR = "missing tensor"
    MISSING_SCALE = "missing scale"
    UNEXPECTED_TENSOR = "unexpected tensor"
    WRONG_SHAPE = "wrong shape"
    WRONG_DTYPE = "wrong dtype"
    OUTSIDE_PATH = "path leaves the folder"
    INDEX_MISMATCH = "index and shards disagree"
    CONFIG_MISMATCH = "config.json and tensors disagree"
    NAN_SCALE = "NaN scale"
    BAD_SCALE = "scale is negative or infinite"
    NAN_WEIGHT = "NaN or infinite weight"


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong.

    Attributes:
        kind: the cause.
        where: the file, or the tensor, that it was found in.
        what: one sentence.
        count: how many tensors or files have this fault; `where` is the first of them.
    """

    kind: FaultKind
    where: str
    what: str
    count: int = 1


class ShardError(CheckpointError):
    """A shard that is no complete safetensors file.

    Args:
        kind: in which way.
        what: the sentence, its subject is the file (or the tensor, when `tensor` is given).
        tensor: the tensor's name, where one is to blame.
    """

    def __init__(self, kind: FaultKind, what: str, tensor: str | None = None) -> None:
        super().__init__(what, where=tensor)
        self.kind = kind
        self.tensor = tensor

    def as_fault(self, shard: str) -> Fault:
        """The fault, once it is known which file this is about."""
        where = shard if self.tensor is None else f"{shard}: {self.tensor}"
        return Fault(self.kind, where, self.what)
