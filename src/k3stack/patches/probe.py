"""`python -m <this package>.probe`: settle the patches on the vLLM of this interpreter, on the CPU, print JSON.

Run as a process of its own, because it imports vLLM and changes it.
"""

from __future__ import annotations

import json
import os
import sys
import time

__all__ = ["main"]


def main() -> int:
    """Print one JSON object: the release, and for each patch its state and why. Returns the exit code.

    The lines of the engine's own start-up go to stderr, so that stdout is the object alone.
    """
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        import vllm
    except ImportError as error:
        json.dump({"error": f"this Python has no vLLM ({error})"}, out)
        return 3
    try:
        import vllm.models.kimi_k3.nvidia.model
    except ImportError as error:
        json.dump({"error": f"vLLM {vllm.__version__} has no Kimi-K3 model ({error})"}, out)
        return 3
    from .registry import settle_process

    start = time.perf_counter()
    try:
        outcomes, _ = settle_process(vllm, os.environ)
    except ValueError as error:
        json.dump({"error": str(error)}, out)
        return 2
    patches = [
        {"number": o.number, "title": o.title, "switch": o.switch, "state": o.state.value, "why": o.why}
        for o in outcomes
    ]
    seconds = time.perf_counter() - start
    json.dump({"vllm": vllm.__version__, "python": sys.version.split()[0], "seconds": seconds, "patches": patches}, out)
    out.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
