"""Changing a running engine so that it can be changed back: every replacement of one patch, all or none."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from typing import Any

from .patch import CannotApplyError

__all__ = ["Edits", "find", "require_parameters"]

_ABSENT = object()


def find(module: str, path: str = "") -> Any:
    """The object `path` (dots allowed) of a module, importing it if need be.

    Raises:
        CannotApplyError: the module or the object is not there; names the one that is missing.
    """
    try:
        found: Any = importlib.import_module(module)
    except ImportError as error:
        raise CannotApplyError(f"the module {module} cannot be imported ({error})") from error
    for name in path.split(".") if path else ():
        if not hasattr(found, name):
            raise CannotApplyError(f"{module} has no {path}")
        found = getattr(found, name)
    return found


def require_parameters(function: Callable[..., Any], *names: str) -> None:
    """Check that a function still takes the parameters that a patch of it relies on.

    Raises:
        CannotApplyError: one is gone.
    """
    taken = inspect.signature(function).parameters
    for name in names:
        if name not in taken:
            where = f"{function.__module__}.{function.__qualname__}"
            raise CannotApplyError(f"{where} no longer takes the parameter {name!r}")


class Edits:
    """Replacements that were made, newest last, and how to undo them."""

    def __init__(self) -> None:
        self._made: list[tuple[Any, str, Any]] = []

    def replace(self, owner: Any, name: str, new: Any) -> Any:
        """Set `owner.name` and return what was there.

        Raises:
            CannotApplyError: there is no such attribute to replace.
        """
        if not hasattr(owner, name):
            raise CannotApplyError(f"{getattr(owner, '__qualname__', owner)} has no {name}")
        old = getattr(owner, name)
        self._set(owner, name, new)
        return old

    def add(self, owner: Any, name: str, new: Any) -> None:
        """Set `owner.name`, whether or not it was there."""
        self._set(owner, name, new)

    def replace_function(self, module: str, name: str, wrap: Callable[[Any], Any]) -> None:
        """Replace a module's function by `wrap(function)`, and every copy that `from module import name` made.

        Raises:
            CannotApplyError: the module or the function is not there.
        """
        old = find(module, name)
        new = wrap(old)
        for holder in list(sys.modules.values()):
            # Only the module dictionary is looked at: getattr would trigger lazy imports of unrelated packages.
            if getattr(holder, "__dict__", {}).get(name) is old:
                self._set(holder, name, new)

    def undo(self) -> None:
        """Put everything back, newest first."""
        while self._made:
            owner, name, old = self._made.pop()
            if old is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, old)

    def __len__(self) -> int:
        return len(self._made)

    def _set(self, owner: Any, name: str, new: Any) -> None:
        # vars(), not getattr: undoing must restore a static method as such, and remove what was only inherited.
        self._made.append((owner, name, vars(owner).get(name, _ABSENT)))
        setattr(owner, name, new)
