"""Tiny checkpoints, made once a session and copied where a test wants to break one."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from k3stack.checkpoint.tiny import TinyShape, write_tiny
from k3stack.spec import Scheme


@pytest.fixture(scope="session")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a sound tiny checkpoint in a scheme; not to be changed."""
    base = tmp_path_factory.mktemp("tiny")

    def get(scheme: str) -> Path:
        folder = base / scheme
        if not folder.exists():
            write_tiny(folder, Scheme(scheme), shape=TinyShape(experts=8))
        return folder

    return get


@pytest.fixture
def copy_of(pristine: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    """A copy of a tiny checkpoint that a test may break."""

    def get(scheme: str) -> Path:
        return Path(shutil.copytree(pristine(scheme), tmp_path / scheme))

    return get
