"""Writing a checkpoint's files, each to a temporary name, synced, then renamed."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from k3stack.checkpoint.header import Entry, build_header
from k3stack.errors import UsageError
from k3stack.files import atomic_write, sync_folder, write_text

__all__ = ["json_text", "new_folder", "require_new", "write_index", "write_json", "write_shard"]


def require_new(folder: Path) -> None:
    """Check that a folder can be made.

    Raises:
        UsageError: it is there already, or its parent is not.
    """
    if folder.exists():
        raise UsageError("is there already", where=folder, hint="Choose another folder, or remove this one.")
    if not folder.parent.is_dir():
        raise UsageError("its parent folder is not there", where=folder, hint=f"Make it: mkdir -p {folder.parent}")


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a folder that becomes `folder` when the block ends well, and vanishes when it does not.

    Raises:
        UsageError: see `require_new`.
    """
    require_new(folder)
    building = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        yield building
        building.chmod(0o755)
        building.rename(folder)
        sync_folder(folder.parent)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise


def write_shard(path: Path, entries: Iterable[Entry], payload: Callable[[Entry], bytes]) -> int:
    """Write one safetensors file as the release's were written; one tensor at a time is in memory.

    Args:
        path: its final name.
        entries: the tensors, in any order.
        payload: gives the bytes of one tensor.

    Returns:
        The payload's bytes.
    """
    header, ordered = build_header(entries)
    total = 0
    with atomic_write(path) as file:
        file.write(header)
        for entry in ordered:
            data = payload(entry)
            if len(data) != entry.size_bytes:
                raise AssertionError(f"{entry.name}: {len(data)} bytes made, {entry.size_bytes} promised")
            file.write(data)
            total += len(data)
    return total


def write_index(folder: Path, weight_map: Mapping[str, str], payload_bytes: int) -> None:
    """Write model.safetensors.index.json."""
    index = {"metadata": {"total_size": payload_bytes}, "weight_map": dict(sorted(weight_map.items()))}
    write_json(folder / "model.safetensors.index.json", index)


def write_json(path: Path, value: Any) -> None:
    """Write JSON for people and engines: indented, UTF-8, a line feed at the end."""
    write_text(path, json_text(value))


def json_text(value: Any) -> str:
    """What `write_json` writes."""
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
