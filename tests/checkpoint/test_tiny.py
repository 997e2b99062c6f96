"""Tiny checkpoints: sound in every scheme, the same model from the same seed, readable by the library."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from k3stack.checkpoint.inspect import inspect
from k3stack.checkpoint.scan import Depth, Looked
from k3stack.checkpoint.source import open_source
from k3stack.checkpoint.tiny import TinyShape, write_tiny
from k3stack.checkpoint.tiny_draft import write_tiny_draft
from k3stack.errors import UsageError
from k3stack.formats import bf16, e8m0, mxfp4, nvfp4
from k3stack.spec import ModelSpec, Scheme, measure, tensors
from k3stack.spec.draft import DraftSpec, draft_families, shared_families
from tests.checkpoint.edit import load_shard
from tests.cli.run import k3

EXPERT = "language_model.model.layers.1.block_sparse_moe.experts.5"


@pytest.mark.parametrize("scheme", list(Scheme))
def test_every_scheme_passes_inspection(pristine: Callable[[str], Path], scheme: Scheme) -> None:
    folder = pristine(scheme)
    report = inspect(open_source(str(folder)), Depth.ALL)
    assert report.faults == ()
    assert report.scheme is scheme
    assert report.looked is Looked.ALL
    assert report.read_bytes == report.sizes.file_bytes


@pytest.mark.parametrize("scheme", list(Scheme))
def test_the_safetensors_library_reads_what_the_spec_lists(pristine: Callable[[str], Path], scheme: Scheme) -> None:
    folder = pristine(scheme)
    expected = {tensor.name: tensor for tensor in tensors(ModelSpec.from_config(folder))}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="np") as file:
            for name in file.keys():  # noqa: SIM118 - not a mapping
                tensor = expected.pop(name)
                view = file.get_slice(name)
                assert (tuple(view.get_shape()), view.get_dtype()) == (tensor.shape, tensor.dtype.value)
    assert not expected


def test_header_bytes_are_exact_for_every_shard(pristine: Callable[[str], Path]) -> None:
    for scheme in Scheme:
        folder = pristine(scheme)
        for shard in measure(ModelSpec.from_config(folder)).shards:
            assert (folder / shard.name).stat().st_size == shard.file_bytes


def tensor_bytes(folder: Path, name: str) -> bytes:
    shard = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"][name]
    listing, payload = load_shard(folder / shard)
    begin, end = listing[name]["data_offsets"]
    return payload[begin:end]


def test_the_same_seed_is_the_same_model_in_every_scheme(pristine: Callable[[str], Path]) -> None:
    name = f"{EXPERT}.w1"
    exact = bf16.decode(np.frombuffer(tensor_bytes(pristine("bf16"), f"{name}.weight"), np.uint16)).reshape(256, 256)
    packed = np.frombuffer(tensor_bytes(pristine("mxfp4"), f"{name}.weight_packed"), np.uint8).reshape(256, 128)
    scale = np.frombuffer(tensor_bytes(pristine("mxfp4"), f"{name}.weight_scale"), np.uint8).reshape(256, 8)
    mx = mxfp4.dequantize(packed, scale)
    step = e8m0.decode(scale).repeat(32, axis=-1)
    assert (np.abs(mx - exact) <= 2 * step).all()
    assert 0.05 < np.linalg.norm(mx - exact) / np.linalg.norm(exact) < 0.2
    nv_folder = pristine("nvfp4-mixed")
    packed = np.frombuffer(tensor_bytes(nv_folder, f"{name}.weight"), np.uint8).reshape(256, 128)
    scale = np.frombuffer(tensor_bytes(nv_folder, f"{name}.weight_scale"), np.uint8).reshape(256, 16)
    second = np.frombuffer(tensor_bytes(nv_folder, f"{name}.weight_scale_2"), np.float32)[0]
    nv = nvfp4.dequantize(packed, scale, second)
    assert 0.03 < np.linalg.norm(nv - exact) / np.linalg.norm(exact) < 0.15


def test_gate_and_up_share_their_second_scale(pristine: Callable[[str], Path]) -> None:
    """SiTU kernels take one scale for both; it is a power of two and the input scale is 1."""
    folder = pristine("nvfp4-mixed")
    w1, w3 = (tensor_bytes(folder, f"{EXPERT}.{name}.weight_scale_2") for name in ("w1", "w3"))
    assert w1 == w3
    assert np.frexp(np.frombuffer(w1, np.float32))[0] == 0.5
    assert tensor_bytes(folder, f"{EXPERT}.w1.input_scale") == np.float32(1).tobytes()


def test_seed_decides_every_byte(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        write_tiny(tmp_path / name, Scheme.MXFP4, seed, TinyShape(experts=4))
    shards = [path.name for path in (tmp_path / "a").glob("*.safetensors")]
    assert all((tmp_path / "a" / s).read_bytes() == (tmp_path / "b" / s).read_bytes() for s in shards)
    assert all((tmp_path / "a" / s).read_bytes() != (tmp_path / "c" / s).read_bytes() for s in shards)


def test_an_existing_folder_is_left_alone(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is there already"):
        write_tiny(tmp_path, Scheme.MXFP4)
    with pytest.raises(UsageError, match="mkdir"):
        write_tiny(tmp_path / "no" / "such", Scheme.MXFP4)
    with pytest.raises(UsageError, match="at least 4 layers"):
        TinyShape(layers=3)


def test_a_failure_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("k3stack.checkpoint.tiny.write_index", fail)
    with pytest.raises(OSError, match="No space"):
        write_tiny(tmp_path / "x", Scheme.MXFP4)
    assert list(tmp_path.iterdir()) == []


def test_more_layers_keep_the_pattern(tmp_path: Path) -> None:
    write_tiny(tmp_path / "x", Scheme.BF16, shape=TinyShape(layers=9, experts=4))
    kinds = [layer.attention.value for layer in ModelSpec.from_config(tmp_path / "x").layers]
    assert kinds == ["kda", "kda", "kda", "mla", "kda", "kda", "kda", "mla", "mla"]


def test_a_draft_can_be_made_beside(tmp_path: Path) -> None:
    """The draft copies the target's embedding, has the shapes its config says, and nothing is written by halves."""
    shape = TinyShape(experts=4)
    made = write_tiny_draft(tmp_path / "draft", seed=3, shape=shape)
    write_tiny(tmp_path / "target", Scheme.MXFP4, 3, shape)
    spec = DraftSpec.from_config(tmp_path / "draft")
    expected = {family.name: family for family in (*draft_families(spec), *shared_families(spec))}
    with safe_open(tmp_path / "draft" / "model.safetensors", framework="np") as file:
        names = set(file.keys())
        assert names == set(expected) - {"lm_head.weight"} and len(names) == made.tensors
        for name in names:
            view = file.get_slice(name)
            assert (tuple(view.get_shape()), view.get_dtype()) == (expected[name].shape, "BF16")
    listing, payload = load_shard(tmp_path / "draft" / "model.safetensors")
    begin, end = listing["embed_tokens.weight"]["data_offsets"]
    assert payload[begin:end] == tensor_bytes(tmp_path / "target", "language_model.model.embed_tokens.weight")
    with pytest.raises(UsageError, match="is there already"):
        write_tiny_draft(tmp_path / "draft")


def test_the_verb_makes_both_or_neither(tmp_path: Path) -> None:
    both = ["tiny", str(tmp_path / "t"), "--experts", "4", "--draft", str(tmp_path / "d")]
    done = k3(*both)
    assert done.code == 0 and "its draft" in done.out
    assert {path.name for path in tmp_path.iterdir()} == {"t", "d"}
    both[1] = str(tmp_path / "other")
    assert k3(*both).code == 2
    assert not (tmp_path / "other").exists()
