"""How fast experts and attention are converted, beside Model Optimizer and `cp`, on matrices of Kimi-K3's real size.

    .venv/bin/python benchmarks/convert.py --modelopt PYTHON [--folder DIR] [--turns N]

PYTHON is an interpreter that has nvidia-modelopt 0.47.0 and torch; without it that column is left out. The expert shard
holds 32 experts (0.56 GB). "End to end" is reading, writing, fsync, reading back and a digest of the source; `cp` is
followed by `sync` of the same file, so both end with the bytes on the disk. All in turn, medians and ratios of pairs.
"""

import argparse
import os
import resource
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from k3stack.checkpoint.convert.attention import AttentionScale, quantize_attention
from k3stack.checkpoint.convert.experts import recode, scale_2, shared_top
from k3stack.checkpoint.convert.shard import ShardJob, convert_shard
from k3stack.checkpoint.header import Entry
from k3stack.checkpoint.write import write_shard
from k3stack.formats import bf16
from k3stack.formats.arrays import Bytes, Words
from k3stack.spec import DType, Scheme

EXPERTS = 32
SHAPES = {"w1": (3072, 3584), "w2": (3584, 3072), "w3": (3072, 3584)}
SHARD = "model-00001-of-000001.safetensors"
ATTENTION = (12288, 7168)  # q_proj of a KDA layer

PEER = Path(__file__).parent / "peers" / "modelopt_quantize.py"


def make_shard(folder: Path) -> tuple[int, Bytes, Bytes]:
    """Write 32 experts of random codes with plausible scales; returns payload bytes and one matrix."""
    random = np.random.default_rng(0)
    made: dict[str, Bytes] = {}
    for expert in range(EXPERTS):
        for name, (out, into) in SHAPES.items():
            module = f"language_model.model.layers.1.block_sparse_moe.experts.{expert}.{name}"
            made[f"{module}.weight_packed"] = random.integers(0, 256, (out, into // 2), np.uint8)
            made[f"{module}.weight_scale"] = random.integers(112, 122, (out, into // 32), np.uint8)
    entries = [Entry(name, DType.U8, array.shape) for name, array in made.items()]
    size = write_shard(folder / SHARD, entries, lambda entry: made[entry.name].tobytes())
    first = "language_model.model.layers.1.block_sparse_moe.experts.0.w1"
    return size, made[f"{first}.weight_packed"], made[f"{first}.weight_scale"]


def seconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def copy(source: Path, target: Path) -> None:
    subprocess.run(["cp", "--reflink=never", source, target], check=True)
    subprocess.run(["sync", target], check=True)


def ask_peer(python: str, folder: Path, packed: Bytes, scale: Bytes, words: Words) -> dict[str, list[float]]:
    """Seconds that Model Optimizer takes for one expert matrix and one attention matrix; its results must be ours."""
    given, made = folder / "given.npz", folder / "made.npz"
    np.savez(given, packed=packed, scale=scale, top=scale, words=words)
    subprocess.run([python, str(PEER), str(given), str(made), "3"], check=True)
    found = np.load(made)
    ours = recode(packed, scale, shared_top(scale))
    minus_zero = ((packed & 0x0F) == 8) | ((packed >> 4) == 8)  # becomes +0 there
    assert np.array_equal(found["scales"], ours.scale)
    assert np.array_equal(found["codes"][~minus_zero], packed[~minus_zero])
    assert found["scale_2"] == scale_2(shared_top(scale))
    same_rule = quantize_attention(words, AttentionScale.NVIDIA)
    assert np.array_equal(found["fp8"], same_rule.weight)
    return {name: list(found[f"{name}_seconds"]) for name in ("expert", "attention")}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--modelopt", metavar="PYTHON")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--turns", type=int, default=7)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        source, target = folder / "source", folder / "target"
        source.mkdir()
        target.mkdir()
        size, packed, scale = make_shard(source)
        os.sync()
        job = ShardJob(str(source), str(target), SHARD, Scheme.NVFP4_MIXED, AttentionScale.POW2, frozenset(), {})
        copies, conversions = [], []
        for _ in range(options.turns):
            copies.append(seconds(lambda: copy(source / SHARD, target / "copy")))
            (target / "copy").unlink()
            conversions.append(seconds(lambda: convert_shard(job)))
            (target / SHARD).unlink()
        matrix = packed.nbytes + scale.nbytes
        recoded = [seconds(lambda: (packed.copy(), recode(packed, scale, shared_top(scale)))) for _ in range(50)]
        random = np.random.default_rng(1)
        words = bf16.encode((random.standard_normal(ATTENTION) * 0.02).astype(np.float32))
        attention = {
            how: [seconds(partial(quantize_attention, words, how, 2)) for _ in range(3)] for how in AttentionScale
        }
        peer = ask_peer(options.modelopt, folder, packed, scale, words) if options.modelopt else None

    def rate(count: int, taken: list[float]) -> float:
        return count / statistics.median(taken) / 1e6

    ratio = statistics.median(a / b for a, b in zip(copies, conversions, strict=True))
    print(f"expert shard, {EXPERTS} experts, {size / 1e9:.2f} GB (measured, median of {options.turns}):")
    print(f"  cp and sync               {rate(size, copies):9,.0f} MB/s")
    print(f"  k3 convert, end to end    {rate(size, conversions):9,.0f} MB/s   {ratio:.2f} of cp (median of pairs)")
    print(f"  k3, one matrix            {rate(matrix, recoded):9,.0f} MB/s   in memory, one thread, codes copied")
    if peer is not None:
        theirs = rate(matrix, peer["expert"])
        print(f"  Model Optimizer 0.47.0    {theirs:9,.1f} MB/s   in memory, two threads")
        print(f"  k3 / Model Optimizer, both in memory: {rate(matrix, recoded) / theirs:,.0f} x")
        print(f"  k3 end to end / Model Optimizer in memory: {rate(size, conversions) / theirs:,.0f} x")
    print(f"attention {ATTENTION}, {words.nbytes / 1e6:.0f} MB of BF16, two threads (measured, median of 3):")
    for how, taken in attention.items():
        print(f"  k3 {how:8}               {rate(words.nbytes, taken):9,.0f} MB/s")
    if peer is not None:
        theirs = rate(words.nbytes, peer["attention"])
        print(f"  Model Optimizer 0.47.0    {theirs:9,.0f} MB/s   two threads")
        ours = rate(words.nbytes, attention[AttentionScale.POW2])
        print(f"  pow2 / Model Optimizer: {ours / theirs:.2f} x")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"peak memory of this process: {peak:.2f} GB, most of it the inputs that were made here")


if __name__ == "__main__":
    main()
