"""How many flipped bits `k3 compare` finds in a converted checkpoint, beside loading it with safetensors.

    python benchmarks/compare.py [BITS]

A small Kimi-K3 is converted to NVFP4; then one bit at a time is flipped anywhere in the converted folder. The peer
reads every tensor of the folder with the safetensors library, which is what an engine's loader does.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from safetensors import SafetensorError, safe_open
from tests.checkpoint.test_compare import flipped, found_wrong, make_pair


def loads(folder: Path) -> bool:
    """Whether safetensors reads every tensor."""
    try:
        for path in sorted(folder.glob("*.safetensors")):
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118  # it has no iterator
                    file.get_tensor(name)
    except (SafetensorError, OSError, ValueError, TypeError):
        return False
    return True


def main() -> None:
    """Print the figures."""
    bits = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    with tempfile.TemporaryDirectory() as home:
        source, target = make_pair(Path(home))
        ours = theirs = 0
        for _ in flipped(target, bits, seed=2):
            ours += found_wrong(source, target)
            theirs += not loads(target)
        whole = not found_wrong(source, target) and loads(target)
    print(f"k3 compare: {ours} of {bits} flipped bits found")
    print(f"peer: safetensors finds {theirs} of the same {bits} when it loads every tensor")
    print(f"both call the folder whole without a flipped bit: {'yes' if whole else 'NO'}")


if __name__ == "__main__":
    main()
