"""What `k3 patches export` writes as sitecustomize.py: Python runs it at the start of every process.

It waits for vLLM's Kimi-K3 model, and lets the sitecustomize that it hides run as well.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib costs every process a millisecond


def _wait() -> None:
    try:
        from k3stack_patches.hook import install  # type: ignore[import-not-found]

        install()
    except Exception as error:
        # Python would print one line and go on; a strict server must not start without its patches.
        if os.environ.get("K3_PATCHES", "").strip().lower() == "strict":
            sys.exit(f"Kimi-K3 runtime patches: {_HERE} is broken: {error}")
        sys.stderr.write(f"ERROR Kimi-K3 runtime patches: {_HERE} is broken, nothing is patched: {error}\n")


def _run_the_hidden_one() -> None:
    # The frozen modules are there already; importlib.machinery would cost every process a millisecond.
    from _frozen_importlib import module_from_spec
    from _frozen_importlib_external import PathFinder

    path = [entry for entry in sys.path if os.path.abspath(entry or ".") != _HERE]  # noqa: PTH100
    spec = PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


if __name__ == "sitecustomize":
    _wait()
    _run_the_hidden_one()
