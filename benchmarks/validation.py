"""How many of our commands the engines' own validation takes.

    python benchmarks/validation.py

The commands are a sample in which every rule that shapes one is used. Each goes through the parser, the checks of
`serve`, the engine's configuration and its choice of kernels, as if on the GPU that it is written for; only a GPU's
capability, memory, count and name are stood in for. Needs vLLM 0.33.0 and SGLang 0.5.23 in environments of their own,
which are made on first use (tests/engines/venvs.py). The peer is vLLM's recipes page: benchmarks/recipes_site.py.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.engines import test_validation as sglang
from tests.engines import test_validation_vllm as vllm
from tests.engines.validate_vllm import VERSION, Folders


def main() -> None:
    """Print the figures."""
    with tempfile.TemporaryDirectory() as home:
        taken = [answer["error"] is None for _, answer in vllm.validated(Folders(Path(home)))]
        print(f"vLLM {VERSION}: {sum(taken)} of {len(taken)} commands taken")
    with tempfile.TemporaryDirectory() as home:
        taken = [answer["error"] is None for _, answer in sglang.validated(sglang.config_folders(Path(home)))]
        print(f"SGLang {sglang.VERSION}: {sum(taken)} of {len(taken)} commands taken")


if __name__ == "__main__":
    main()
