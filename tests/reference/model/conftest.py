"""Tiny checkpoints and models, made once a session; one thread, since several fight over a busy machine."""

from collections.abc import Callable
from pathlib import Path

import pytest

from k3stack.checkpoint.tiny import TinyShape, write_tiny
from k3stack.checkpoint.tiny_draft import write_tiny_draft
from k3stack.reference.model import K3, load_model
from k3stack.spec import Scheme

SHAPE = TinyShape(
    heads=2, hidden=256, experts=8, experts_per_token=2, expert_width=128, dense_width=256, q_lora_rank=64
)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a tiny checkpoint in a scheme, or of its draft ("draft"); not to be changed."""
    base = tmp_path_factory.mktemp("reference")

    def get(scheme: str) -> Path:
        path = base / scheme
        if not path.exists():
            if scheme == "draft":
                write_tiny_draft(path, shape=SHAPE)
            else:
                write_tiny(path, Scheme(scheme), shape=SHAPE)
        return path

    return get


@pytest.fixture(scope="session")
def model(folder: Callable[[str], Path]) -> K3:
    """A tiny K3 in float32, steady."""
    return load_model(folder("mxfp4"))
