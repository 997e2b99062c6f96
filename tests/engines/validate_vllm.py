"""vLLM's own validation of a command without a GPU: parser, checks of `serve`, configuration, choice of kernels.

The one home of what is stood in for: folders for checkpoints and draft, a driver's library that answers "no device",
and a GPU's capability, memory, count and name (resolve_vllm.py). Used by tests and by benchmarks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from k3stack.hardware.table import gpu
from k3stack.spec.schemes import Scheme
from tests.engines.k3_folder import draft_folder, k3_folder
from tests.engines.stub_driver import stub_driver
from tests.engines.venvs import engine_python, resident

__all__ = ["DRAFT", "FOLDERS", "NOT_HERE", "VERSION", "Folders", "resolved"]

VERSION = "0.33.0"
CAPABILITY = {"sm90": [9, 0], "sm100": [10, 0], "sm103": [10, 3], "sm120": [12, 0], "sm121": [12, 1]}
MULTIPROCESSORS = {"sm90": 132, "sm100": 148, "sm103": 148, "sm120": 188, "sm121": 48}
DRAFT = "RedHatAI/Kimi-K3-speculator.dspark"
FOLDERS = {
    "moonshotai/Kimi-K3": Scheme.MXFP4,
    "nvidia/Kimi-K3-NVFP4": Scheme.NVFP4_MIXED,
    "RedHatAI/Kimi-K3-NVFP4": Scheme.NVFP4_EXPERTS,
}

NOT_HERE = {
    "amd": "vLLM's ROCm platform imports amdsmi and ROCm kernels, which the CUDA wheel does not have: parsed only",
}
"""What cannot go through, and why. Rows of this table are counted and printed; everything else must pass."""


class Folders:
    """What stands for the checkpoints and the draft, and for the driver's library."""

    def __init__(self, home: Path) -> None:
        self.models = {name: k3_folder(home / scheme.value, scheme) for name, scheme in FOLDERS.items()}
        self.draft = draft_folder(home / "draft", str(self.models["moonshotai/Kimi-K3"]))
        self.driver = stub_driver(home / "driver")

    def words(self, words: list[str]) -> list[str]:
        """The words with folders for names; what is asked of a model's configuration is asked of the same one."""
        named = [str(self.models.get(words[0], words[0])), *words[1:]]
        return [text.replace(DRAFT, str(self.draft)) for text in named]


def resolved(
    folders: Folders,
    hardware: str,
    asked: list[tuple[list[str], dict[str, str]]],
    version: str = VERSION,
    layers: bool = False,
    python: str | None = None,
) -> list[dict[str, Any]]:
    """What vLLM says about commands as if on this hardware; one process for each capability, which it remembers.

    Args:
        layers: whether to ask for the kernels of KDA, pictures, draft and block FP8 too (0.33.0).
        python: of an environment that has vLLM, in place of the one made for `version`.
    """
    kind = gpu(hardware)
    stated = {
        "capability": CAPABILITY[kind.architecture],
        "memory_bytes": kind.memory_bytes,
        "multiprocessors": MULTIPROCESSORS[kind.architecture],
        "per_node": kind.gpus_per_node,
        "name": kind.name,
    }
    cases = [
        {"gpu": stated, "words": folders.words(words), "variables": variables, "layers": layers}
        for words, variables in asked
    ]
    environment = {
        "LD_LIBRARY_PATH": str(folders.driver),
        "CUDA_VISIBLE_DEVICES": "",  # vLLM then takes Triton for usable although no driver is active yet
        "HF_HUB_OFFLINE": "1",
    }
    inside = Path(python) if python else engine_python("vllm", version)
    asked_of = resident(inside, "resolve_vllm.py", environment, kind.architecture)
    answers: list[dict[str, Any]] = asked_of.ask(cases, 3_000)
    return answers
