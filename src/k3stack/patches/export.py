"""`k3 patches export DIR`: the patches as a folder that a stock vLLM image takes on its PYTHONPATH, without pip.

DIR/k3stack_patches/                          this package, under a name of its own
DIR/k3stack_patches-VERSION.dist-info/        makes the entry point discoverable: Python looks on PYTHONPATH too
DIR/sitecustomize.py                          the way in where an allow-list hides the entry point
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from k3stack import __version__
from k3stack.errors import InputError, UnavailableError, next_step

__all__ = ["PACKAGE", "PLUGIN", "export"]

PACKAGE = "k3stack_patches"
PLUGIN = "k3stack_patches"
"""The entry point's name: what VLLM_PLUGINS must list if it is set."""

_ONLY_HERE = {"export.py", "listing.py", "serverlog.py", "start.py"}
"""Files that need the rest of k3stack and stay out of the folder."""


def export(folder: Path) -> tuple[Path, ...]:
    """Write the folder, whole or not at all, and return what it holds.

    Raises:
        InputError: `folder` is there and holds something else than an earlier export.
        UnavailableError: it cannot be written.
    """
    folder = folder.absolute()
    if folder.exists() and not _is_an_export(folder):
        hint = "Name a new folder, or an earlier export to replace"
        raise InputError("is there already and is no export of the patches", where=folder, hint=hint)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}.", suffix=".part"))
    except OSError as error:
        raise UnavailableError(f"cannot be written: {error.strerror}", where=folder, hint=next_step(error)) from error
    try:
        _write(fresh)
        fresh.chmod(0o755)  # mkdtemp makes private folders; a container's user must be able to read this one
        if folder.exists():
            old = fresh.with_suffix(".old")
            folder.rename(old)
            fresh.rename(folder)
            shutil.rmtree(old)
        else:
            fresh.rename(folder)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    return tuple(sorted(folder.iterdir()))


def _is_an_export(folder: Path) -> bool:
    if not folder.is_dir():
        return False
    foreign = [
        item.name
        for item in folder.iterdir()
        if item.name not in (PACKAGE, "sitecustomize.py", "__pycache__") and not item.name.startswith(f"{PACKAGE}-")
    ]
    return not foreign


def _write(folder: Path) -> None:
    package = folder / PACKAGE
    package.mkdir()
    for source in sorted(Path(__file__).parent.glob("*.py")):
        if source.name not in _ONLY_HERE:
            shutil.copyfile(source, package / source.name)
    info = folder / f"{PACKAGE}-{__version__}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: {__version__}\n")
    (info / "entry_points.txt").write_text(f"[vllm.general_plugins]\n{PLUGIN} = {PACKAGE}.plugin:register\n")
    (info / "INSTALLER").write_text("k3stack\n")
    shutil.copyfile(Path(__file__).with_name("start.py"), folder / "sitecustomize.py")
