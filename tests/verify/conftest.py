"""Scripted endpoints, each a real server on a port of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.verify.fake_k3 import FakeK3, serving


@pytest.fixture(scope="session")
def trained() -> Iterator[str]:
    with serving(FakeK3().app()) as url:
        yield url


@pytest.fixture(scope="session")
def untrained() -> Iterator[str]:
    with serving(FakeK3(untrained=True).app()) as url:
        yield url
