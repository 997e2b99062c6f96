"""Where the engines' own environments are, and how to make them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("K3_ENGINES", Path(__file__).parents[2] / ".engines"))

REQUIREMENTS = {
    # Without the second word the resolver picks a cuda-python with which vLLM's import fails.
    "vllm-0.33.0": 'vllm==0.33.0 "cuda-python>=13,<14"',
    "sglang-0.5.23": "sglang==0.5.23",
}


def engine_python(name: str) -> Path:
    """The python of an engine's environment; skips the test, saying how to make it, if it is not there."""
    python = FOLDER / name / "bin" / "python"
    if not python.exists():
        pytest.skip(
            f"no {name}: uv venv {FOLDER / name} && "
            f"uv pip install --python {python} {REQUIREMENTS[name]}   (or set K3_ENGINES)"
        )
    return python
