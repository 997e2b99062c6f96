"""On a file system that shares blocks, the experts' codes of a converted shard take no room."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from k3stack.checkpoint.convert.attention import AttentionScale
from k3stack.checkpoint.convert.files import shares_blocks
from k3stack.checkpoint.convert.shard import ShardJob, convert_shard
from k3stack.checkpoint.header import Entry
from k3stack.checkpoint.write import write_shard
from k3stack.spec import DType, Scheme

SHARD = "model-00001-of-000001.safetensors"


@pytest.fixture
def xfs(tmp_path: Path) -> Iterator[Path]:
    """A small XFS with shared blocks, in a file."""
    image, folder = tmp_path / "image", tmp_path / "xfs"
    folder.mkdir()
    image.touch()
    os.truncate(image, 400 << 20)
    try:
        subprocess.run(["mkfs.xfs", "-q", "-m", "reflink=1", image], check=True, capture_output=True)
        subprocess.run(["mount", "-o", "loop", image, folder], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no XFS can be made and mounted here (needs root, xfsprogs and a loop device)")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def used_bytes(folder: Path) -> int:
    os.sync()
    state = os.statvfs(folder)
    return (state.f_blocks - state.f_bfree) * state.f_frsize


def test_codes_are_shared_and_not_copied(xfs: Path) -> None:
    source, target = xfs / "source", xfs / "target"
    source.mkdir()
    target.mkdir()
    random = np.random.default_rng(0)
    made: dict[str, np.ndarray] = {}
    for expert in range(3):
        for name, (out, into) in {"w1": (3072, 3584), "w2": (3584, 3072), "w3": (3072, 3584)}.items():
            module = f"language_model.model.layers.1.block_sparse_moe.experts.{expert}.{name}"
            made[f"{module}.weight_packed"] = random.integers(0, 256, (out, into // 2), np.uint8)
            made[f"{module}.weight_scale"] = random.integers(112, 122, (out, into // 32), np.uint8)

    entries = [Entry(name, DType.U8, array.shape) for name, array in made.items()]
    write_shard(source / SHARD, entries, lambda entry: made[entry.name].tobytes())
    assert shares_blocks(source / SHARD, target)
    before = used_bytes(xfs)
    job = ShardJob(
        str(source), str(target), SHARD, Scheme.NVFP4_MIXED, AttentionScale.POW2, frozenset(), {}, share=True
    )
    result = convert_shard(job)
    codes = sum(array.nbytes for name, array in made.items() if name.endswith("packed"))
    taken = used_bytes(xfs) - before
    assert result.target_bytes > codes
    assert taken < (result.target_bytes - codes) * 1.2, f"{taken:,} bytes for {result.target_bytes - codes:,} new ones"


def test_ordinary_file_systems_copy(tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(b"x")
    assert not shares_blocks(tmp_path / "small", tmp_path)
    assert not shares_blocks(tmp_path / "small", tmp_path / "none")
