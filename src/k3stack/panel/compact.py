"""Values over the sliders' grid, written by the axes they depend on: exact, and a fraction of the size.

A grid holds one JSON value for each stop of the context slider (rows) and of the concurrency slider (columns):

    {"k": value}             the same everywhere
    {"o": {...}}             an object; each field is a grid of its own
    {"l": [...]}             a list; each element is a grid of its own
    {"c": [...]}             depends on the context alone
    {"n": [...]}             depends on the concurrency alone
    {"s": [[...], [...]]}    whole numbers: one from the context plus one from the concurrency
    {"w": [...]}             a text; each word is a grid of its own
    {"v": [grid, [...]]}     of several shapes: which one in each cell, and a grid for each
    {"t": [[...], [...]]}    anything else: the values that occur, and for each cell which of them

`pooled` writes what several grids have in common once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

__all__ = ["cell", "compact", "pooled"]

Grid = list[list[Any]]


class _Absent:
    """A cell that another shape holds: anything may stand there."""

    def __repr__(self) -> str:
        return "-"


_ABSENT = _Absent()


def compact(grid: Grid) -> dict[str, Any]:
    """A grid in its shortest form; `cell` gives every value back as it was."""
    first = next(value for _, _, value in _cells(grid))
    if all(_same(value, first) for _, _, value in _cells(grid)):
        return {"k": first}
    shapes = {_shape(value): value for _, _, value in _cells(grid)}
    if len(shapes) > 1 and any(isinstance(value, dict | list) for value in shapes.values()):
        return _by_shape(grid, list(shapes))
    if isinstance(first, dict):
        return {"o": {name: compact(_each(grid, lambda value, at=name: value[at])) for name in first}}
    if isinstance(first, list):
        return {"l": [compact(_each(grid, lambda value, at=at: value[at])) for at in range(len(first))]}
    return _by_axis(grid) or _by_words(grid) or _by_value(grid)


def _cells(grid: Grid) -> Iterator[tuple[int, int, Any]]:
    for row, values in enumerate(grid):
        for column, value in enumerate(values):
            if value is not _ABSENT:
                yield row, column, value


def _same(one: Any, other: Any) -> bool:
    """Equal, and of the same kind all the way down: 1, 1.0 and true are three values in JSON."""
    if type(one) is not type(other) or one != other:
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(map(_same, one.values(), other.values()))
    return not isinstance(one, list) or all(map(_same, one, other))


def _shape(value: Any) -> Hashable:
    if isinstance(value, dict):
        return ("object", *value)
    return ("list", len(value)) if isinstance(value, list) else "plain"


def _each(grid: Grid, get: Callable[..., Any]) -> Grid:
    return [[value if value is _ABSENT else get(value) for value in row] for row in grid]


def _by_shape(grid: Grid, shapes: list[Hashable]) -> dict[str, Any]:
    which = compact([[0 if value is _ABSENT else shapes.index(_shape(value)) for value in row] for row in grid])
    held = [
        [[value if value is not _ABSENT and _shape(value) == shape else _ABSENT for value in row] for row in grid]
        for shape in shapes
    ]
    return {"v": [which, [compact(one) for one in held]]}


def _by_axis(grid: Grid) -> dict[str, Any] | None:
    rows: dict[int, Any] = {}
    columns: dict[int, Any] = {}
    by_row = by_column = True
    for row, column, value in _cells(grid):
        by_row = by_row and _same(value, rows.setdefault(row, value))
        by_column = by_column and _same(value, columns.setdefault(column, value))
        if not by_row and not by_column:
            break
    if by_row:
        return {"c": [rows.get(row) for row in range(len(grid))]}
    if by_column:
        return {"n": [columns.get(column) for column in range(len(grid[0]))]}
    return _by_sum(grid)


def _by_sum(grid: Grid) -> dict[str, Any] | None:
    first = grid[0][0]
    if type(first) is not int or any(type(value) is not int for row in grid for value in row):
        return None
    down, along = [row[0] for row in grid], [value - first for value in grid[0]]
    if all(value == down[row] + along[column] for row, column, value in _cells(grid)):
        return {"s": [down, along]}
    return None


def _by_words(grid: Grid) -> dict[str, Any] | None:
    """Texts word by word, where that is shorter."""
    counts = {value.count(" ") if isinstance(value, str) else 0 for _, _, value in _cells(grid)}
    if len(counts) > 1 or counts == {0}:
        return None
    (count,) = counts
    words = _each(grid, lambda value: value.split(" "))
    return {"w": [compact(_each(words, lambda value, at=at: value[at])) for at in range(count + 1)]}


def _by_value(grid: Grid) -> dict[str, Any]:
    numbers: dict[str, int] = {}
    which = [
        [0 if value is _ABSENT else numbers.setdefault(json.dumps(value), len(numbers)) for value in row]
        for row in grid
    ]
    return {"t": [[json.loads(value) for value in numbers], which]}


_SHORT = 24
"""Characters below which a part is not worth a number of its own."""


def pooled(packed: dict[str, Any], add: Callable[[Any], int]) -> dict[str, Any] | int:
    """The grid with its parts, and then itself, as numbers of a pool.

    Args:
        add: gives the number of a value.
    """
    ((kind, held),) = packed.items()
    if kind == "o":
        packed = {kind: {name: pooled(value, add) for name, value in held.items()}}
    elif kind in ("l", "w"):
        packed = {kind: [pooled(value, add) for value in held]}
    elif kind == "v":
        packed = {kind: [pooled(held[0], add), [pooled(value, add) for value in held[1]]]}
    short = len(json.dumps(packed, ensure_ascii=False)) < _SHORT
    return packed if short else add(packed)


def cell(packed: dict[str, Any] | int, row: int, column: int, pool: Sequence[Any] = ()) -> Any:
    """The value of one cell; what the page does."""
    if isinstance(packed, int):
        return cell(pool[packed], row, column, pool)
    ((kind, held),) = packed.items()
    match kind:
        case "k":
            return held
        case "c":
            return held[row]
        case "n":
            return held[column]
        case "s":
            return held[0][row] + held[1][column]
        case "o":
            return {name: cell(value, row, column, pool) for name, value in held.items()}
        case "l":
            return [cell(value, row, column, pool) for value in held]
        case "w":
            return " ".join(cell(value, row, column, pool) for value in held)
        case "v":
            return cell(held[1][cell(held[0], row, column, pool)], row, column, pool)
    return held[0][held[1][row][column]]
