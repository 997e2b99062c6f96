"""The wording of the known failures really is in the engines' sources."""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from pathlib import Path

import pytest

from k3stack.launch.knowledge import Failure, Wording, failures
from tests.engines.venvs import engine_python

pytestmark = pytest.mark.engines

WORDED = [(one, wording) for one in failures() for wording in one.wording]


def packages(wheel: str) -> Path:
    engine, _, release = wheel.partition("-")
    python = engine_python(engine, release)
    (folder,) = (python.parent.parent / "lib").glob("python*/site-packages")
    return folder


def _part(part: ast.expr) -> str:
    """A piece of an f-string: its text, or its expression in braces."""
    if isinstance(part, ast.FormattedValue):
        return "{" + ast.unparse(part.value) + "}"
    return str(part.value) if isinstance(part, ast.Constant) else ""


@lru_cache(maxsize=64)
def strings(path: Path) -> str:
    """Every string of a source file with neighbouring literals joined, as a running program has them."""
    said = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            said.append("".join(map(_part, node.values)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            said.append(node.value)
    return "\n".join(said) + path.read_text()


NAMES = [f"{one.id}-{wording.wheel}" for one, wording in WORDED]


@pytest.mark.parametrize(("one", "wording"), WORDED, ids=NAMES)
def test_the_wording_is_in_the_wheel(one: Failure, wording: Wording) -> None:
    text = strings(packages(wording.wheel) / wording.file)
    assert wording.text in text, f"{one.id}: {wording.file}"


FILLINGS = ("8", "-9", "CUDA out of memory.")


@pytest.mark.parametrize(("one", "wording"), WORDED, ids=NAMES)
def test_a_pattern_matches_the_message_of_the_source(one: Failure, wording: Wording) -> None:
    """The message as the source builds it, with some value in every place."""
    text = strings(packages(wording.wheel) / wording.file)
    messages = [f"RuntimeError: {line}" for line in text.splitlines() if wording.text[:30] in line]
    filled = [re.sub(r"\{[^}]*\}|%(?:\.\d+)?[sdf]", value, line) for line in messages for value in FILLINGS]
    assert any(re.search(pattern, line) for pattern in one.patterns for line in filled), filled
