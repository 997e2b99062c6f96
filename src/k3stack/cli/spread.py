"""Options that several verbs take, as one value: typer sees its fields as options of their own.

A verb that has `sizes: Sizes` in its signature, where `Sizes` is a dataclass whose fields are annotated as options,
takes all of them there, in their order, and gets them as one.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, get_type_hints

__all__ = ["spread"]

Verb = Callable[..., None]


def spread(verb: Verb) -> Verb:
    """The verb with every parameter that is a dataclass replaced by the dataclass's fields."""
    signature = inspect.signature(verb, eval_str=True)
    groups: dict[str, Any] = {
        name: one.annotation for name, one in signature.parameters.items() if is_dataclass(one.annotation)
    }

    @functools.wraps(verb)
    def called(**given: Any) -> None:
        for name, kind in groups.items():
            given[name] = kind(**{field.name: given.pop(field.name) for field in fields(kind)})
        verb(**given)

    parameters = list(_parameters(signature))
    called.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {one.name: one.annotation for one in parameters}
    return called


def _parameters(signature: inspect.Signature) -> Iterator[inspect.Parameter]:
    for one in signature.parameters.values():
        if is_dataclass(one.annotation):
            hints = get_type_hints(one.annotation, include_extras=True)
            for field in fields(one.annotation):
                yield _parameter(field, hints[field.name])
        else:
            yield one.replace(kind=inspect.Parameter.KEYWORD_ONLY)


def _parameter(field: Field[Any], annotation: Any) -> inspect.Parameter:
    default = inspect.Parameter.empty if field.default is MISSING else field.default
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
