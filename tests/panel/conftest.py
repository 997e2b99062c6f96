"""One browser and one served panel for the tests of a module."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.panel.browser import Tab, chromium, serving


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    with serving() as address:
        yield address


@pytest.fixture
def tab(browser: Any, served: str) -> Iterator[Tab]:
    made = Tab(browser, served)
    yield made
    made.close()
