"""Values: how every stage's result is labelled, printed as JSON and read back.

A value is a frozen dataclass. `dump` and `load` are the only way in and out, so the command line, the files and
the tests all see one JSON form. Integers stay integers: sizes here pass 2^53 only in theory, and JSON keeps them.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

from k3stack.errors import InputError

if TYPE_CHECKING:
    from pydantic import ValidationError

__all__ = ["GB", "GIB", "Origin", "dump", "first_fault", "format_bytes", "load"]

GB = 10**9
GIB = 2**30

T = TypeVar("T")


class Origin(StrEnum):
    """Where a number comes from. Every number that reaches a user carries one."""

    READ = "read"
    COMPUTED = "computed"
    MEASURED = "measured"
    ESTIMATED = "estimated"


_adapters: dict[Any, Any] = {}


def _adapter(kind: Any) -> Any:
    """The pydantic adapter of a dataclass, made once: making one costs milliseconds."""
    if kind not in _adapters:
        from pydantic import TypeAdapter

        _adapters[kind] = TypeAdapter(kind)
    return _adapters[kind]


def dump(value: object) -> Any:
    """The value as plain JSON types (dict, list, str, int, float, bool, None)."""
    return _adapter(type(value)).dump_python(value, mode="json")


def load(kind: type[T], data: Any) -> T:
    """The inverse of `dump`: `load(Plan, dump(plan)) == plan`.

    Raises:
        InputError: the data does not have this kind's fields; names the first one that is wrong.
    """
    from pydantic import ValidationError

    try:
        # Lax on purpose: JSON has no tuples, enums or sets. Types that JSON does have are still checked.
        value: T = _adapter(kind).validate_python(data)
    except ValidationError as error:
        field, what = first_fault(error)
        raise InputError(what, where=f"{kind.__name__}.{field or 'value'}") from error
    return value


def first_fault(error: ValidationError) -> tuple[str, str]:
    """The first field that is wrong in data from outside, its parts joined by dots, and what is wrong with it."""
    first = error.errors(include_url=False, include_context=False)[0]
    return ".".join(map(str, first["loc"])), first["msg"]


def format_bytes(count: int) -> str:
    """A size for people: decimal GB as disks and vendors count, KiB-exact sizes are in the JSON."""
    for unit, size in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if abs(count) >= size:
            return f"{count / size:,.2f} {unit}"
    return f"{count} B"
