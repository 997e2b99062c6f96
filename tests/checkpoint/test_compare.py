"""Comparing checkpoints: equal across schemes, and every flipped bit is found."""

import hashlib
import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from k3stack.checkpoint.compare.run import CompareReport, Receipt, compare, make_receipt
from k3stack.checkpoint.compare.store import Store
from k3stack.checkpoint.convert.attention import AttentionScale
from k3stack.checkpoint.convert.run import Conversion
from k3stack.checkpoint.tiny import TinyShape, write_tiny
from k3stack.errors import K3Error, UsageError
from k3stack.formats import fp8_block, mxfp4, nvfp4
from k3stack.spec import Encoding, ModelSpec, Scheme, families
from k3stack.values import dump, load
from tests.checkpoint.edit import edit_json, spread_scales
from tests.cli.run import k3


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A source with blocks out of range and its conversion."""
    return make_pair(tmp_path_factory.mktemp("pair"))


def make_pair(base: Path) -> tuple[Path, Path]:
    source, target = base / "a", base / "b"
    write_tiny(source, Scheme.MXFP4, seed=2, shape=TinyShape(experts=4))
    spread_scales(source, seed=3)
    (source / "tiktoken.model").write_bytes(b"tokens")
    Conversion(source, target, Scheme.NVFP4_MIXED).run()
    return source, target


def test_a_conversion_is_the_same_model(pair: tuple[Path, Path]) -> None:
    report = compare(*pair)
    assert report.same and report.strict
    kinds = {kind.kind: kind for kind in report.kinds}
    experts = kinds["block_sparse_moe.experts.w2"]
    assert experts.different == experts.other_codes == 0
    assert experts.equal + experts.converted == 16
    attention = kinds["self_attn.q_proj"]
    assert attention.converted == 3 and 0.02 < attention.relative_rms < 0.03
    assert attention.worst_note == "rounded as pow2"
    assert load(CompareReport, dump(report)) == report


def test_a_checkpoint_is_itself_in_every_scheme(pristine: Callable[[str], Path]) -> None:
    for scheme in Scheme:
        report = compare(pristine(scheme), pristine(scheme))
        assert report.same
        assert all(kind.equal and not kind.converted for kind in report.kinds)


def test_both_nvfp4_spellings_of_one_conversion_are_equal(pair: tuple[Path, Path], tmp_path: Path) -> None:
    Conversion(pair[0], tmp_path / "c", Scheme.NVFP4_EXPERTS).run()
    kinds = {kind.kind: kind for kind in compare(pair[1], tmp_path / "c").kinds}
    for name in ("w1", "w2", "w3"):
        assert kinds[f"block_sparse_moe.experts.{name}"].equal == 16


def test_exact_decoding_of_every_encoding(pristine: Callable[[str], Path]) -> None:
    """The store's float64 rows against the codecs' float32."""
    for scheme in Scheme:
        folder = pristine(scheme)
        store, spec = Store(folder), ModelSpec.from_config(folder)
        for family in families(spec):
            if family.encoding is None or family.parameters == 0:
                continue
            module = next(iter(family.names())).rpartition(".")[0]
            rows = store.raw(next(iter(family.names()))).shape[0]
            got = store.rows(module, family.encoding, 0, rows)
            if family.encoding is Encoding.BF16:
                continue
            scale = store.raw(f"{module}.weight_scale")
            match family.encoding.value:
                case "mxfp4":
                    expected = mxfp4.dequantize(store.raw(f"{module}.weight_packed"), scale)
                case "nvfp4-modelopt":
                    second = store.number(f"{module}.weight_scale_2")
                    expected = nvfp4.dequantize(store.raw(f"{module}.weight"), scale, second)
                case "fp8-128x128-modelopt":
                    expected = fp8_block.dequantize(store.raw(f"{module}.weight"), scale)
                case _:
                    continue
            assert np.array_equal(got.astype(np.float32), expected)


def flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << (bit % 8)
    path.write_bytes(data)


def found_wrong(a: Path, b: Path) -> bool:
    try:
        return not compare(a, b).same
    except K3Error:
        return True


def flipped(folder: Path, count: int, seed: int) -> Iterator[str]:
    """One bit flipped at a time, and flipped back; says which.

    Half of them anywhere, half in a file drawn first, so that small files and headers get their share.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    sizes = [path.stat().st_size for path in files]
    draw = random.Random(seed)
    for turn in range(count):
        path = draw.choices(files, sizes)[0] if turn % 2 else draw.choice(files)
        size = path.stat().st_size
        bit = draw.randrange((size if turn % 3 else min(size, 40_000)) * 8)
        flip(path, bit)
        yield f"{path.name}: bit {bit}"
        flip(path, bit)


def flips(pair: tuple[Path, Path], tmp_path: Path, count: int, seed: int) -> None:
    a, b = pair
    copy = Path(shutil.copytree(b, tmp_path / "flipped"))
    for which in flipped(copy, count, seed):
        assert found_wrong(a, copy), which
    assert compare(a, copy).same


def test_flipped_bits_are_found(pair: tuple[Path, Path], tmp_path: Path) -> None:
    flips(pair, tmp_path, count=6, seed=1)


@pytest.mark.slow
def test_two_hundred_flipped_bits_are_found(pair: tuple[Path, Path], tmp_path: Path) -> None:
    flips(pair, tmp_path, count=200, seed=2)


@pytest.mark.parametrize(
    ("suffix", "said"),
    [
        ("weight", "different"),
        ("weight_scale", "different"),
        ("weight_scale_2", "different"),
        ("input_scale", "input_scale"),
    ],
)
def test_each_part_of_an_expert_is_watched(pair: tuple[Path, Path], tmp_path: Path, suffix: str, said: str) -> None:
    copy = Path(shutil.copytree(pair[1], tmp_path / "c"))
    name = f"language_model.model.layers.2.block_sparse_moe.experts.1.w2.{suffix}"
    shard, offset, tensor = Store(copy).places[name]
    flip(copy / shard, (offset + tensor.end - tensor.begin - 1) * 8 + 2)
    report = compare(pair[0], copy)
    assert not report.same
    kind = next(kind for kind in report.kinds if kind.kind == "block_sparse_moe.experts.w2")
    assert kind.different + kind.other_codes == 1
    assert kind.worst.endswith("layers.2.block_sparse_moe.experts.1.w2")
    ran = k3("compare", str(pair[0]), str(copy))
    assert ran.code == 1 and said in ran.out and "layers.2" in ran.out


def test_a_code_of_minus_zero_is_other_codes(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """Model Optimizer turns -0 into +0: equal values, so it passes, unless B claims to be our conversion."""
    copy = Path(shutil.copytree(pair[1], tmp_path / "c"))
    name = "language_model.model.layers.1.block_sparse_moe.experts.0.w1.weight"
    shard, offset, _ = Store(copy).places[name]
    data = bytearray((copy / shard).read_bytes())
    assert data[offset + 8 : offset + 16] == b"\x88" * 8
    data[offset + 8 : offset + 16] = bytes(8)
    (copy / shard).write_bytes(data)
    assert not compare(pair[0], copy).same
    (copy / "conversion_report.json").unlink()
    report = compare(pair[0], copy)
    assert report.same and not report.strict
    assert sum(kind.other_codes for kind in report.kinds) == 1


@pytest.mark.parametrize("how", AttentionScale)
def test_every_rounding_rule_is_recognised(pair: tuple[Path, Path], tmp_path: Path, how: AttentionScale) -> None:
    Conversion(pair[0], tmp_path / "c", Scheme.NVFP4_MIXED, how).run()
    report = compare(pair[0], tmp_path / "c")
    assert report.same
    notes = {kind.worst_note for kind in report.kinds if kind.kind.startswith("self_attn.") and kind.converted}
    assert notes == {f"rounded as {how}"}


def test_a_missing_tensor_is_a_fault(pair: tuple[Path, Path], tmp_path: Path) -> None:
    from tests.checkpoint.edit import drop, edit_shard

    copy = Path(shutil.copytree(pair[1], tmp_path / "c"))
    name = "language_model.model.layers.0.input_layernorm.weight"
    edit_shard(copy / "model-00001-of-000008.safetensors", lambda listing, payload: drop(listing, payload, name))
    report = compare(pair[0], copy)
    assert not report.same
    assert [fault.kind.value for fault in report.faults] == ["missing tensor"]


def test_another_model_is_refused(pair: tuple[Path, Path], pristine: Callable[[str], Path]) -> None:
    with pytest.raises(UsageError, match="another model"):
        compare(pair[0], pristine("mxfp4"))


def test_another_seed_is_different(pristine: Callable[[str], Path], tmp_path: Path) -> None:
    write_tiny(tmp_path / "other", Scheme.MXFP4, seed=9, shape=TinyShape(experts=8))
    report = compare(pristine("mxfp4"), tmp_path / "other")
    assert all(kind.different for kind in report.kinds)


def test_a_sample_is_a_part_and_says_so(pair: tuple[Path, Path]) -> None:
    whole, part = compare(*pair), compare(*pair, sample=0.2)
    count = sum(kind.equal + kind.converted for kind in part.kinds)
    assert 0 < count < sum(kind.equal + kind.converted for kind in whole.kinds) / 2
    ran = k3("compare", *map(str, pair), "--sample", "20%")
    assert ran.code == 0 and "a sample of 20.00%" in ran.out
    assert k3("compare", *map(str, pair), "--sample", "0").code == 2
    assert k3("compare", *map(str, pair), "--sample", "much").code == 2


def test_processes_give_the_same_report(pristine: Callable[[str], Path], tmp_path: Path) -> None:
    Conversion(pristine("mxfp4"), tmp_path / "c", Scheme.NVFP4_MIXED).run()
    assert compare(pristine("mxfp4"), tmp_path / "c", jobs=2) == compare(pristine("mxfp4"), tmp_path / "c")


def test_a_receipt_can_be_checked_by_somebody_else(pair: tuple[Path, Path], tmp_path: Path) -> None:
    path = tmp_path / "receipt.json"
    assert k3("compare", *map(str, pair), "--receipt", str(path)).code == 0
    receipt = load(Receipt, json.loads(path.read_text()))
    assert receipt.same and receipt == make_receipt(receipt.report)
    for folder, files in zip(pair, (receipt.files_a, receipt.files_b), strict=True):
        for file in files:
            assert file.sha256 == hashlib.sha256((folder / file.name).read_bytes()).hexdigest()


def test_documents_are_part_of_a_conversion(pair: tuple[Path, Path], tmp_path: Path) -> None:
    copy = Path(shutil.copytree(pair[1], tmp_path / "c"))
    edit_json(copy / "hf_quant_config.json", lambda data: data["quantization"].update(group_size=32))
    (copy / "tiktoken.model").unlink()
    report = compare(pair[0], copy)
    assert not report.same
    assert len(report.documents) == 2
