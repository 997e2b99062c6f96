"""Waiting for Kimi-K3: the patches are settled right after vLLM's K3 model is imported, and never without it.

Only then are all the modules that the patches touch really there, and a process that serves another model, or no
model at all, pays for one look at a module name per import. This file is the whole cost of such a process, so it
imports nothing that Python has not imported itself.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType

__all__ = ["TRIGGER", "Waiter", "install"]

TRIGGER = "vllm.models.kimi_k3.nvidia.model"
MARK = "_k3_patches_waiting"


class Waiter:
    """A finder that finds one module, as Python would, and settles the patches once that module is complete."""

    _k3_patches_waiting = True

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        """The module's spec, with our loader around its own; None for every other name."""
        if name != TRIGGER:
            return None
        for finder in sys.meta_path:
            if getattr(finder, MARK, False) or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                # Not an importlib.abc.Loader: importing that module would cost every process more than this file.
                vars(spec)["loader"] = _SettleAfter(spec.loader)
                return spec
        return None


class _SettleAfter:
    """The module's own loader, with the patches settled after it."""

    def __init__(self, loader: "Loader") -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> object:
        return getattr(self._loader, name)

    def create_module(self, spec: "ModuleSpec") -> "ModuleType | None":
        return self._loader.create_module(spec)

    def exec_module(self, module: "ModuleType") -> None:
        self._loader.exec_module(module)
        # From here on the module is whatever its own loader makes of it; ours has done its work.
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        _settle()


def install() -> None:
    """Start to wait, once per process however often it is asked; settle now if K3's model is there already."""
    if any(getattr(finder, MARK, False) for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, Waiter())
    if TRIGGER in sys.modules:
        _settle()


def _settle() -> None:
    """Settle the patches. A fault of ours is said aloud, and stops a strict server; it never breaks the import."""
    try:
        from .process import settle_and_report

        settle_and_report()
    except Exception as error:
        import os

        text = f"Kimi-K3 runtime patches: not settled, nothing is patched: {type(error).__name__}: {error}"
        if os.environ.get("K3_PATCHES", "").strip().lower() == "strict":
            raise SystemExit(text) from error
        sys.stderr.write(f"ERROR {text}\n")
