from __future__ import annotations

import tempfile
from collections.abc import Iterator

import pytest

from tests.guard.scripted import Guard, ScriptedUpstream, running_guard


@pytest.fixture(scope="session")
def upstream() -> Iterator[ScriptedUpstream]:
    with ScriptedUpstream() as each:
        yield each


@pytest.fixture(scope="session")
def guard(upstream: ScriptedUpstream) -> Iterator[Guard]:
    with (
        tempfile.TemporaryFile() as log,
        running_guard([upstream.port], log, "--idle-timeout", "1", "--keep-alive", "0.2", "--max-body-mb", "8") as each,
    ):
        yield each
