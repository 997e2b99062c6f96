"""Every error a user can meet, in one tree.

    K3Error                 something is wrong that the user can act on
    +-- UsageError          the arguments make no sense (exit code 2)
    +-- InputError          a file, a field or an answer is not what it must be (exit code 3)
    |   +-- ConfigError     config.json: unknown, missing or contradictory field
    |   +-- FormatError     bytes or numbers that a number format cannot hold
    |   +-- CheckpointError safetensors files, index, shards
    +-- NotKnownError       we have no data for this (GPU, engine release, ...): says what is known
    +-- UnavailableError    the network, a hub, a device or an optional package is not there

"Does not fit" is not an error: it is a verdict, an ordinary value (exit code 1).
A bug in k3stack is not a K3Error either: it ends in a traceback, so that it gets reported.
"""

from __future__ import annotations

import errno
from pathlib import Path

__all__ = [
    "CheckpointError",
    "ConfigError",
    "FormatError",
    "InputError",
    "K3Error",
    "NotKnownError",
    "UnavailableError",
    "UsageError",
    "next_step",
]


class K3Error(Exception):
    """Something is wrong that the user can act on.

    Args:
        what: what is wrong, one sentence without a full stop.
        where: the file and, behind a colon, the field; or the argument.
        hint: the next thing to do, an imperative sentence or a command.
    """

    exit_code = 3

    def __init__(self, what: str, *, where: str | Path | None = None, hint: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.where = None if where is None else str(where)
        self.hint = hint

    def __str__(self) -> str:
        text = self.what if self.where is None else f"{self.where}: {self.what}"
        return text if self.hint is None else f"{text}. {self.hint}"


class UsageError(K3Error):
    """The arguments make no sense, alone or together."""

    exit_code = 2


class InputError(K3Error):
    """A file, a field or an answer is not what it must be."""


class ConfigError(InputError):
    """config.json has an unknown, missing or contradictory field; `where` names it."""


class FormatError(InputError):
    """Bytes or numbers that a number format cannot hold."""


class CheckpointError(InputError):
    """A safetensors file, an index or a folder of shards is broken or incomplete."""


class NotKnownError(K3Error):
    """k3stack has no data for what was asked; the message lists what it does know."""

    exit_code = 2


class UnavailableError(K3Error):
    """The network, a hub, a device or an optional package is not there."""


_FREE = "Free some space there, or choose another folder."
_PERMITTED = "Check its permissions, or choose another."
_STEPS = {
    errno.ENOENT: "Check its name.",
    errno.EISDIR: "It is a folder: name a file.",
    errno.ENOTDIR: "A part of its path is a file: check it.",
    errno.EEXIST: "Choose another name.",
    errno.ENAMETOOLONG: "Give a shorter name.",
    errno.ELOOP: "Its links lead in a circle: check them.",
    errno.EACCES: _PERMITTED,
    errno.EPERM: _PERMITTED,
    errno.EROFS: "Choose a folder that can be written.",
    errno.ENOSPC: _FREE,
    errno.EDQUOT: _FREE,
    errno.EMFILE: "Raise the limit of open files: ulimit -n 65536",
}


def next_step(error: OSError) -> str:
    """What to do about a file that the system refuses: the hint of the error that says so."""
    return _STEPS.get(error.errno or 0, "Check the disk that it is on.")
