"""What `k3 patches export` writes as sitecustomize.py: Python runs it at the start of every process.

It waits for vLLM's Kimi-K3 model, and lets the sitecustomize that it hides run as well.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib costs every process a millisecond


class _Waiter:
    """Hands K3's model to the patches' own finder; one name compared is all that any other import pays."""

    _k3_patches_waiting = True

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name != "vllm.models.kimi_k3.nvidia.model":
            return None
        try:
            from k3stack_patches.hook import Waiter  # type: ignore[import-not-found]
        except Exception as error:
            # vLLM would go on with the model as it is; a strict server must not start without its patches.
            if os.environ.get("K3_PATCHES", "").strip().lower() == "strict":
                sys.exit(f"Kimi-K3 runtime patches: {_HERE} is broken: {error}")
            sys.stderr.write(f"ERROR Kimi-K3 runtime patches: {_HERE} is broken, nothing is patched: {error}\n")
            return None
        return Waiter().find_spec(name, path, target)


def _run_the_hidden_one() -> None:
    # The frozen modules are there already; importlib.machinery would cost every process a millisecond.
    from _frozen_importlib import module_from_spec
    from _frozen_importlib_external import PathFinder

    path = [entry for entry in sys.path if os.path.abspath(entry or ".") != _HERE]  # noqa: PTH100
    spec = PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


if __name__ == "sitecustomize":
    sys.meta_path.insert(0, _Waiter())
    _run_the_hidden_one()
