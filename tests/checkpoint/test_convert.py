"""Whole conversions: in one go, in parts, killed and resumed, on a full disk, from a broken source."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from k3stack.checkpoint.compare.run import compare
from k3stack.checkpoint.convert.attention import AttentionScale
from k3stack.checkpoint.convert.files import write_all
from k3stack.checkpoint.convert.proof import DigestKind, ReadBack
from k3stack.checkpoint.convert.run import Conversion
from k3stack.checkpoint.convert.shard import convert_shard
from k3stack.checkpoint.inspect import inspect
from k3stack.checkpoint.scan import Depth
from k3stack.checkpoint.source import FolderSource
from k3stack.checkpoint.tiny import TinyShape, write_tiny
from k3stack.errors import CheckpointError, UnavailableError, UsageError
from k3stack.spec import Scheme
from tests.checkpoint.edit import add, drop, edit_shard, load_shard, save_shard, spread_scales
from tests.cli.run import k3

K3 = [sys.executable, "-c", "from k3stack.cli.main import main; main()"]


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with blocks that lie far below their matrix's largest, a block of zeros, and other files."""
    folder = tmp_path_factory.mktemp("wide") / "source"
    write_tiny(folder, Scheme.MXFP4, seed=5, shape=TinyShape(experts=4))
    spread_scales(folder, seed=1)
    (folder / "tiktoken.model").write_bytes(b"tokens")
    (folder / "code").mkdir()
    (folder / "code" / "modeling.py").write_text("raise SystemExit('never run')")
    return folder


def convert(source: Path, target: Path, to: str = "nvfp4-mixed", how: str = "pow2", **options: Any) -> Any:
    return Conversion(source, target, Scheme(to), AttentionScale(how)).run(**options)


def assert_sound(source: Path, target: Path) -> None:
    found = inspect(FolderSource(target), Depth.ALL)
    assert found.faults == ()
    assert compare(source, target).same
    assert not [path for path in target.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("to", ["nvfp4-mixed", "nvfp4-experts"])
@pytest.mark.parametrize("how", AttentionScale)
def test_a_converted_checkpoint_is_sound_and_equal(wide: Path, tmp_path: Path, to: str, how: str) -> None:
    outcome = convert(wide, tmp_path / "out", to, how)
    assert_sound(wide, tmp_path / "out")
    report = outcome.report
    assert report.matrices == 4 * 4 * 3
    assert report.modules == (36 if to == "nvfp4-mixed" else 0)
    assert 0 < report.moved_blocks < report.blocks
    assert report.blocks - report.moved_blocks <= report.lossless_blocks < report.blocks
    assert [kind.kind for kind in report.attention_error] == sorted(kind.kind for kind in report.attention_error)
    brought = tmp_path / "out" / "tiktoken.model"
    assert brought.read_bytes() == b"tokens" and brought.stat().st_nlink == 1, "editing it must not edit the source's"
    assert (tmp_path / "out" / "code" / "modeling.py").exists()


def test_the_report_proves_the_source(wide: Path, tmp_path: Path) -> None:
    import hashlib

    import xxhash

    for name, kind, digest in (("a", DigestKind.XXH3_128, xxhash.xxh3_128), ("b", DigestKind.SHA256, hashlib.sha256)):
        report = Conversion(wide, tmp_path / name, Scheme.NVFP4_MIXED, digest=kind).run().report
        assert report is not None and report.digest_kind is kind
        for shard in report.source:
            assert shard.digest == digest((wide / shard.name).read_bytes()).hexdigest()
    convert(wide, tmp_path / "out")
    quant = json.loads((tmp_path / "out" / "hf_quant_config.json").read_text())["quantization"]
    assert quant["quant_algo"] == "MIXED_PRECISION"
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["quantization_config"]["quant_method"] == "modelopt_mixed"
    assert "quantization_config" not in config["text_config"]
    assert config["quantization_config"]["quantized_layers"] == quant["quantized_layers"]


def test_processes_and_parts_give_the_same_bytes(wide: Path, tmp_path: Path) -> None:
    convert(wide, tmp_path / "one")
    convert(wide, tmp_path / "many", jobs=3)
    for part in ((2, 3), (1, 3)):
        outcome = convert(wide, tmp_path / "parts", part=part)
        assert outcome.report is None and outcome.remaining
    conversion = Conversion(wide, tmp_path / "parts", Scheme.NVFP4_MIXED)
    with pytest.raises(CheckpointError, match="are not converted yet"):
        conversion.finish()
    assert not (tmp_path / "parts" / "config.json").exists()
    conversion.run(part=(3, 3))
    conversion.finish()
    names = sorted(path.name for path in (tmp_path / "one").rglob("*"))
    for other in ("many", "parts"):
        assert sorted(path.name for path in (tmp_path / other).rglob("*")) == names
        for name in names:
            if (tmp_path / "one" / name).is_file():
                assert (tmp_path / "one" / name).read_bytes() == (tmp_path / other / name).read_bytes()


def test_running_again_changes_nothing(wide: Path, tmp_path: Path) -> None:
    convert(wide, tmp_path / "out")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    outcome = convert(wide, tmp_path / "out")
    assert (outcome.converted, outcome.resumed) == (0, 8)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")} == before


def test_gate_and_up_in_different_shards(wide: Path, tmp_path: Path) -> None:
    """w3 of one expert is moved to another shard: the pair must still share its second scale."""
    source = Path(shutil.copytree(wide, tmp_path / "source"))
    shard_2, shard_5 = (f"model-{number:05d}-of-000008.safetensors" for number in (2, 5))
    for suffix in ("weight_packed", "weight_scale"):
        name = f"language_model.model.layers.1.block_sparse_moe.experts.0.w3.{suffix}"
        listing, payload = load_shard(source / shard_2)
        begin, end = listing[name]["data_offsets"]
        shape, data = listing[name]["shape"], payload[begin:end]
        save_shard(source / shard_2, listing, drop(listing, payload, name))
        listing, payload = load_shard(source / shard_5)
        save_shard(source / shard_5, listing, add(listing, payload, name, "U8", shape, data))
        index = json.loads((source / "model.safetensors.index.json").read_text())
        index["weight_map"][name] = shard_5
        (source / "model.safetensors.index.json").write_text(json.dumps(index))
    convert(source, tmp_path / "out")
    assert_sound(source, tmp_path / "out")


# Refusals


def test_folders_must_be_apart(wide: Path, tmp_path: Path) -> None:
    for target in (wide, wide / "inside", wide.parent):
        with pytest.raises(UsageError, match="apart"):
            Conversion(wide, target, Scheme.NVFP4_MIXED)
    (tmp_path / "link").symlink_to(wide)
    with pytest.raises(UsageError, match="apart"):
        Conversion(wide, tmp_path / "link", Scheme.NVFP4_MIXED)
    with pytest.raises(UsageError, match="mkdir"):
        Conversion(wide, tmp_path / "no" / "such", Scheme.NVFP4_MIXED)
    with pytest.raises(UsageError, match="not supported"):
        Conversion(wide, tmp_path / "out", Scheme.BF16)


def test_a_strange_target_is_left_alone(wide: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    with pytest.raises(CheckpointError, match=r"thesis\.txt"):
        convert(wide, tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.txt"]


def test_a_source_with_faults_is_refused(wide: Path, tmp_path: Path) -> None:
    source = Path(shutil.copytree(wide, tmp_path / "source"))
    (source / "model-00004-of-000008.safetensors").unlink()
    with pytest.raises(CheckpointError, match="missing shard"):
        convert(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_source_in_another_scheme_is_refused(pristine: Callable[[str], Path], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not mxfp4"):
        convert(pristine("bf16"), tmp_path / "out")


def test_a_nan_scale_names_the_tensor(wide: Path, tmp_path: Path) -> None:
    source = Path(shutil.copytree(wide, tmp_path / "source"))

    def change(listing: Any, payload: bytes) -> bytes:
        at = listing["language_model.model.layers.1.block_sparse_moe.experts.3.w1.weight_scale"]["data_offsets"][0]
        return payload[:at] + b"\xff" + payload[at + 1 :]

    edit_shard(source / "model-00002-of-000008.safetensors", change)
    with pytest.raises(CheckpointError, match=r"experts\.3\.w1.*NaN scale"):
        convert(source, tmp_path / "out")
    assert not (tmp_path / "out" / "model-00002-of-000008.safetensors").exists()


def begun(wide: Path, target: Path) -> None:
    """A conversion with one of three parts done."""
    convert(wide, target, part=(1, 3))


def test_resuming_onto_another_source_or_other_options_is_refused(wide: Path, tmp_path: Path) -> None:
    begun(wide, tmp_path / "out")
    other = tmp_path / "other"
    write_tiny(other, Scheme.MXFP4, seed=6, shape=TinyShape(experts=8))
    for source, to, how, said in (
        (other, "nvfp4-mixed", "pow2", "source"),
        (wide, "nvfp4-experts", "pow2", "scheme"),
        (wide, "nvfp4-mixed", "fp32", "attention scale"),
    ):
        with pytest.raises(CheckpointError, match=said):
            convert(source, tmp_path / "out", to, how)
    convert(wide, tmp_path / "out")
    assert_sound(wide, tmp_path / "out")


def test_a_finished_folder_is_not_overwritten_by_another_conversion(wide: Path, tmp_path: Path) -> None:
    convert(wide, tmp_path / "out")
    other = tmp_path / "other"
    write_tiny(other, Scheme.MXFP4, seed=6, shape=TinyShape(experts=8))
    with pytest.raises(CheckpointError, match="another finished"):
        convert(other, tmp_path / "out")


def test_a_removed_or_cut_result_is_made_again(wide: Path, tmp_path: Path) -> None:
    begun(wide, tmp_path / "out")
    done = sorted((tmp_path / "out").glob("*.safetensors"))
    done[0].unlink()
    done[1].write_bytes(done[1].read_bytes()[:-1])
    convert(wide, tmp_path / "out")
    assert_sound(wide, tmp_path / "out")


def test_a_damaged_journal_says_so(wide: Path, tmp_path: Path) -> None:
    begun(wide, tmp_path / "out")
    record = next((tmp_path / "out" / ".k3-convert").glob("model*.json"))
    record.write_text("{")
    with pytest.raises(CheckpointError, match="is damaged"):
        convert(wide, tmp_path / "out")


def test_a_read_only_target_is_a_clear_error(wide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("k3stack.checkpoint.convert.shard.tempfile.mkstemp", refuse)
    with pytest.raises(UnavailableError, match="Permission denied"):
        convert(wide, tmp_path / "out")


def test_what_is_read_back_differs(wide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that lies: one byte of every write is changed on its way."""
    import k3stack.checkpoint.convert.shard as module

    honest = write_all

    def lie(file: int, data: bytes, begin: int) -> None:
        honest(file, data[:-1] + bytes([data[-1] ^ 1]) if len(data) > 4096 else data, begin)

    monkeypatch.setattr(module, "write_all", lie)
    with pytest.raises(CheckpointError, match="read back differs"):
        convert(wide, tmp_path / "out")
    assert not list((tmp_path / "out").glob("*.safetensors"))
    monkeypatch.undo()
    convert(wide, tmp_path / "out")
    assert_sound(wide, tmp_path / "out")


def test_a_source_that_changes_between_writing_and_reading_back(
    wide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Path(shutil.copytree(wide, tmp_path / "source"))
    used = ReadBack.used

    def flip_then_hand_over(self: ReadBack, name: str, begin: int, size: int, checksum: int | None = None) -> None:
        if name.endswith("self_attn.v_proj.weight"):
            data = bytearray(self.path.read_bytes())
            data[begin] ^= 1
            self.path.write_bytes(data)
        used(self, name, begin, size, checksum)

    monkeypatch.setattr(ReadBack, "used", flip_then_hand_over)
    with pytest.raises(CheckpointError, match="read back differs"):
        convert(source, tmp_path / "out")
    assert not (tmp_path / "out" / "model-00001-of-000008.safetensors").exists()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MB; the converted checkpoint needs 29."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if (
        os.geteuid()
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "none", folder], check=False).returncode
    ):
        pytest.skip("mounting a small file system needs root")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_full_disk_is_named_and_resumed_after(wide: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = small_disk / "out"
    with pytest.raises(UnavailableError, match="bytes free"):
        convert(wide, target)
    plan = Conversion.plan

    def hopeful(self: Conversion, part: tuple[int, int] = (1, 1)) -> Any:
        from dataclasses import replace

        return replace(plan(self, part), free_bytes=10**12)

    monkeypatch.setattr(Conversion, "plan", hopeful)  # somebody else fills the disk while we write
    with pytest.raises(UnavailableError, match="No space left") as caught:
        convert(wide, target)
    assert "resumes" in str(caught.value)
    assert not list(target.glob(".*.part"))
    subprocess.run(["mount", "-o", "remount,size=64m", small_disk], check=True)
    outcome = convert(wide, target)
    assert outcome.resumed > 0
    assert_sound(wide, target)


# Kill -9


def kill_at_random_moments(source: Path, target: Path, moments: int, seed: int) -> int:
    """Start `k3 convert` again and again and kill it after a random time; returns how often it was still running."""
    draw = random.Random(seed)
    killed = 0
    for _ in range(moments):
        command = [*K3, "convert", str(source), str(target), "--to", "nvfp4-mixed", "--jobs", "2"]
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        time.sleep(draw.uniform(0.2, 2.5))
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            killed += 1
        process.wait()
        for path in target.glob("*.safetensors"):  # whatever has a final name is whole
            found = inspect(FolderSource(source), Depth.HEADERS)
            assert found.sound
            size = path.stat().st_size
            job = Conversion(source, target, Scheme.NVFP4_MIXED)._job(path.name)
            again = target.parent / "again"
            again.mkdir(exist_ok=True)
            from dataclasses import replace

            convert_shard(replace(job, target=str(again)))
            assert size == (again / path.name).stat().st_size
            assert path.read_bytes() == (again / path.name).read_bytes()
    return killed


def test_killed_and_resumed(wide: Path, tmp_path: Path) -> None:
    kill_at_random_moments(wide, tmp_path / "out", moments=2, seed=1)
    convert(wide, tmp_path / "out")
    assert_sound(wide, tmp_path / "out")


@pytest.mark.slow
def test_killed_at_twenty_random_moments(tmp_path: Path) -> None:
    source = tmp_path / "source"
    write_tiny(source, Scheme.MXFP4, shape=TinyShape(layers=12, experts=96))
    target = tmp_path / "out"
    killed = 0
    for seed in range(20):
        killed += kill_at_random_moments(source, target, moments=1, seed=seed)
        if (target / "conversion_report.json").exists():
            assert_sound(source, target)
            shutil.rmtree(target)
    assert killed >= 10
    convert(source, target)
    assert_sound(source, target)


def test_memory_does_not_grow_with_the_shard(wide: Path, tmp_path: Path) -> None:
    """Peak memory of converting one shard in a process of its own, under 1 GiB by far."""
    code = (
        "import re, sys; from pathlib import Path; from k3stack.checkpoint.convert.run import Conversion; "
        "from k3stack.spec import Scheme; Conversion(Path(sys.argv[1]), Path(sys.argv[2]), Scheme.NVFP4_MIXED).run(); "
        # Not getrusage: its peak begins with that of the process that started this one, which may hold torch.
        "print(re.search(r'VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text())[1])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, str(wide), str(tmp_path / "out")], capture_output=True, text=True, check=True
    )
    assert int(ran.stdout) * 1024 < 2**30 / 3


# The command line


def test_the_command_line_converts_compares_and_plans(wide: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    dry = k3("convert", str(wide), out, "--to", "nvfp4-mixed", "--dry-run")
    assert dry.code == 0 and "8 shards to convert" in dry.out and not Path(out).exists()
    ran = k3("convert", str(wide), out, "--to", "nvfp4-mixed", "--json")
    assert ran.code == 0 and json.loads(ran.out)["report"]["modules"] == 36
    ran = k3("compare", str(wide), out)
    assert ran.code == 0 and "the same model" in ran.out
    assert k3("convert", str(wide), str(wide), "--to", "nvfp4-mixed").code == 2
    assert k3("convert", str(wide), out + "2", "--to", "nvfp4-mixed", "--part", "3/2").code == 2
    assert k3("convert", str(wide), out + "2", "--to", "nvfp4-mixed", "--part", "x").code == 2


def test_nothing_of_the_checkpoint_is_executed(wide: Path, tmp_path: Path) -> None:
    convert(wide, tmp_path / "out")
    compare(wide, tmp_path / "out")
    assert "modeling" not in sys.modules


def test_scales_that_are_powers_of_two(wide: Path, tmp_path: Path) -> None:
    from k3stack.checkpoint.compare.store import Store

    convert(wide, tmp_path / "out")
    store = Store(tmp_path / "out")
    scales = [store.plain(name) for name in store.places if name.endswith(("_proj.weight_scale", "weight_scale_2"))]
    mantissas = {float(m) for scale in scales for m in np.frexp(scale.ravel())[0]}
    assert mantissas == {0.5}
