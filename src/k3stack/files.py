"""Writing files so that a final name never holds half a file, and names that stay in their folder."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any

from k3stack.errors import UsageError

__all__ = ["atomic_write", "inside", "json_value", "ordinary_mode", "require_place", "sync_folder", "write_text"]


@contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """Yield a binary file that becomes `path` when the block ends well, and vanishes when it does not.

    The bytes go to a temporary name in the same folder, are synced, then renamed; the folder is synced last, so
    that the name survives a power loss too.

    Raises:
        OSError: it cannot be written; its `filename` is `path`, also where the system names none.
    """
    try:
        with _renamed_at_the_end(path) as file:
            yield file
    except OSError as error:
        if error.filename is None and error.errno in _WRITING:
            error.filename = str(path)
        raise


_WRITING = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)


@contextmanager
def _renamed_at_the_end(path: Path) -> Iterator[IO[bytes]]:
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(ordinary_mode())  # mkstemp makes private files; ours are ordinary ones
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def require_place(path: Path, where: str | Path) -> None:
    """Check, before the work, that a file can have this name when the work is done.

    Args:
        where: what to call it in the error, such as an option.

    Raises:
        UsageError: its folder is not there, or it is a folder itself.
    """
    if path.is_dir():
        raise UsageError(f"{path} is a folder", where=where, hint="Name a file in it.")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"there is no folder {path.parent}", where=where, hint=f"mkdir -p {path.parent}")


def ordinary_mode() -> int:
    """The permissions that a file made by open() would get."""
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask


def sync_folder(folder: Path) -> None:
    """Make renames in `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text through `atomic_write`."""
    with atomic_write(path) as file:
        file.write(text.encode())


def json_value(text: str | bytes, **options: Any) -> Any:
    """The JSON value of a text that is not trusted.

    Args:
        options: of `json.loads`.

    Raises:
        ValueError: no JSON, no UTF-8, or nested too deeply to be read.
    """
    try:
        return json.loads(text, **options)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def inside(name: str) -> bool:
    """Whether `name`, read from a file we do not trust, is a plain relative path that stays in its folder.

    >>> [inside(n) for n in ("model-00001.safetensors", "a/b", "../x", "/etc/x", "a/../../x", "", "a\\\\b")]
    [True, True, False, False, False, False, False]
    """
    if not name or "\0" in name or "\\" in name:
        return False
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and path.parts != ()
