"""Planted faults: each must be named exactly, once, with no echoes, through the command line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from k3stack.checkpoint.faults import FaultKind
from k3stack.checkpoint.inspect import inspect
from k3stack.checkpoint.scan import Depth
from k3stack.checkpoint.source import open_source
from k3stack.errors import K3Error
from tests.checkpoint.edit import add, drop, edit_json, edit_shard, load_shard
from tests.cli.run import k3

SHARD_1, SHARD_2, SHARD_5 = (f"model-{number:05d}-of-000008.safetensors" for number in (1, 2, 5))
INDEX = "model.safetensors.index.json"
L0, L1, L4 = (f"language_model.model.layers.{number}" for number in (0, 1, 4))
EXPERT = f"{L1}.block_sparse_moe.experts.3.w1"


def truncate(folder: Path) -> None:
    blob = (folder / SHARD_2).read_bytes()
    (folder / SHARD_2).write_bytes(blob[: len(blob) // 2])


def flip_header_length(bit: int) -> Callable[[Path], None]:
    def flip(folder: Path) -> None:
        blob = bytearray((folder / SHARD_2).read_bytes())
        blob[bit // 8] ^= 1 << (bit % 8)
        (folder / SHARD_2).write_bytes(blob)

    return flip


def wrong_dtype(folder: Path) -> None:
    def change(listing: Any, payload: bytes) -> bytes:
        listing[f"{L0}.mlp.up_proj.weight"]["dtype"] = "F16"
        return payload

    edit_shard(folder / SHARD_1, change)


def wrong_shape(folder: Path) -> None:
    def change(listing: Any, payload: bytes) -> bytes:
        listing[f"{L0}.mlp.up_proj.weight"]["shape"].reverse()
        return payload

    edit_shard(folder / SHARD_1, change)


def missing_scale(folder: Path) -> None:
    name = f"{EXPERT}.weight_scale"
    edit_shard(folder / SHARD_2, lambda listing, payload: drop(listing, payload, name))
    edit_json(folder / INDEX, lambda index: index["weight_map"].pop(name))


def missing_scale_still_in_the_index(folder: Path) -> None:
    edit_shard(folder / SHARD_2, lambda listing, payload: drop(listing, payload, f"{EXPERT}.weight_scale"))


def extra_tensor(folder: Path) -> None:
    name = f"{L1}.self_attn.q_norm.weight"
    edit_shard(folder / SHARD_2, lambda listing, payload: add(listing, payload, name, "BF16", [4], bytes(8)))


def extra_tensor_in_both(folder: Path) -> None:
    extra_tensor(folder)
    edit_json(folder / INDEX, lambda index: index["weight_map"].update({f"{L1}.self_attn.q_norm.weight": SHARD_2}))


def duplicate_in_two_shards(folder: Path) -> None:
    name = f"{L0}.input_layernorm.weight"
    listing, payload = load_shard(folder / SHARD_1)
    begin, end = listing[name]["data_offsets"]
    shape, data = listing[name]["shape"], payload[begin:end]
    edit_shard(folder / SHARD_2, lambda listing, payload: add(listing, payload, name, "BF16", shape, data))


def path_outside(folder: Path) -> None:
    edit_json(folder / INDEX, lambda index: index["weight_map"].update({f"{L0}.input_layernorm.weight": "../x"}))


def header_of_2_gb(folder: Path) -> None:
    with (folder / SHARD_2).open("wb") as file:
        file.write((2 * 10**9).to_bytes(8, "little"))
        file.truncate(2 * 10**9 + 8)  # sparse: nothing is read of it


def not_json(folder: Path) -> None:
    (folder / SHARD_2).write_bytes((64).to_bytes(8, "little") + b"<html>404: not found</html>".ljust(64) + bytes(100))


def config_of_more_layers(folder: Path) -> None:
    def change(config: Any) -> None:
        config["text_config"]["num_hidden_layers"] += 1
        config["text_config"]["linear_attn_config"]["kda_layers"].append(6)

    edit_json(folder / "config.json", change)


def config_of_another_scheme(folder: Path) -> None:
    edit_json(folder / "config.json", lambda config: config["text_config"].pop("quantization_config"))


def config_of_other_attention(folder: Path) -> None:
    def change(config: Any) -> None:
        linear = config["text_config"]["linear_attn_config"]
        linear["kda_layers"].remove(2)
        linear["full_attn_layers"].insert(0, 2)

    edit_json(folder / "config.json", change)


def config_of_more_experts(folder: Path) -> None:
    edit_json(folder / "config.json", lambda config: config["text_config"].update(num_experts=24))


def config_of_another_width(folder: Path) -> None:
    def change(config: Any) -> None:
        config["text_config"]["hidden_size"] = 768
        config["vision_config"]["text_hidden_size"] = 768

    edit_json(folder / "config.json", change)


def nan_scale(folder: Path) -> None:
    def change(listing: Any, payload: bytes) -> bytes:
        at = listing[f"{EXPERT}.weight_scale"]["data_offsets"][0] + 5
        return payload[:at] + b"\x7f" + payload[at + 1 :]

    edit_shard(folder / SHARD_2, change)


def nan_e8m0_scale(folder: Path) -> None:
    def change(listing: Any, payload: bytes) -> bytes:
        at = listing[f"{EXPERT}.weight_scale"]["data_offsets"][0] + 5
        return payload[:at] + b"\xff" + payload[at + 1 :]

    edit_shard(folder / SHARD_2, change)


def missing_shard(folder: Path) -> None:
    (folder / SHARD_5).unlink()


def index_names_the_wrong_shard(folder: Path) -> None:
    edit_json(folder / INDEX, lambda index: index["weight_map"].update({f"{L0}.input_layernorm.weight": SHARD_2}))


def wrong_total_size(folder: Path) -> None:
    edit_json(folder / INDEX, lambda index: index["metadata"].update(total_size=1))


def bytes_after_the_payload(folder: Path) -> None:
    with (folder / SHARD_2).open("ab") as file:
        file.write(b"x")


def gap_in_the_payload(folder: Path) -> None:
    def change(listing: Any, payload: bytes) -> bytes:
        last = max(listing.values(), key=lambda entry: entry["data_offsets"][1])
        last["data_offsets"] = [offset + 8 for offset in last["data_offsets"]]
        return payload + bytes(8)

    edit_shard(folder / SHARD_2, change)


CASES = [
    ("mxfp4", truncate, FaultKind.TRUNCATED, SHARD_2),
    *(("mxfp4", flip_header_length(bit), FaultKind.HEADER_LENGTH, SHARD_2) for bit in (0, 2, 3, 5, 8, 12, 15, 20)),
    ("mxfp4", flip_header_length(40), FaultKind.HEADER_TOO_LARGE, SHARD_2),
    ("mxfp4", wrong_dtype, FaultKind.WRONG_DTYPE, f"{L0}.mlp.up_proj.weight"),
    ("mxfp4", wrong_shape, FaultKind.WRONG_SHAPE, f"{L0}.mlp.up_proj.weight"),
    ("mxfp4", missing_scale, FaultKind.MISSING_SCALE, f"{EXPERT}.weight_scale"),
    ("mxfp4", missing_scale_still_in_the_index, FaultKind.MISSING_SCALE, f"{EXPERT}.weight_scale"),
    ("nvfp4-mixed", missing_scale, FaultKind.MISSING_SCALE, f"{EXPERT}.weight_scale"),
    ("mxfp4", extra_tensor, FaultKind.UNEXPECTED_TENSOR, f"{L1}.self_attn.q_norm.weight"),
    ("mxfp4", extra_tensor_in_both, FaultKind.UNEXPECTED_TENSOR, f"{L1}.self_attn.q_norm.weight"),
    ("mxfp4", duplicate_in_two_shards, FaultKind.DUPLICATE, f"{L0}.input_layernorm.weight"),
    ("mxfp4", path_outside, FaultKind.OUTSIDE_PATH, f"{L0}.input_layernorm.weight"),
    ("mxfp4", header_of_2_gb, FaultKind.HEADER_TOO_LARGE, SHARD_2),
    ("mxfp4", not_json, FaultKind.NOT_JSON, SHARD_2),
    ("mxfp4", config_of_more_layers, FaultKind.CONFIG_MISMATCH, "6 layers, the tensors have 5"),
    ("mxfp4", config_of_another_scheme, FaultKind.CONFIG_MISMATCH, "declares bf16, the experts are stored as mxfp4"),
    ("mxfp4", config_of_other_attention, FaultKind.CONFIG_MISMATCH, "layer 1 is MLA in config.json and KDA"),
    ("mxfp4", config_of_more_experts, FaultKind.CONFIG_MISMATCH, "24 experts per layer, the tensors have 8"),
    ("mxfp4", config_of_another_width, FaultKind.CONFIG_MISMATCH, "shapes it does not imply"),
    ("nvfp4-mixed", nan_scale, FaultKind.NAN_SCALE, f"{EXPERT}.weight_scale"),
    ("mxfp4", nan_e8m0_scale, FaultKind.NAN_SCALE, f"{EXPERT}.weight_scale"),
    ("mxfp4", missing_shard, FaultKind.MISSING_SHARD, SHARD_5),
    ("mxfp4", index_names_the_wrong_shard, FaultKind.INDEX_MISMATCH, f"{L0}.input_layernorm.weight"),
    ("mxfp4", wrong_total_size, FaultKind.INDEX_MISMATCH, "total_size"),
    ("mxfp4", bytes_after_the_payload, FaultKind.TRAILING, SHARD_2),
    ("mxfp4", gap_in_the_payload, FaultKind.BAD_ENTRY, SHARD_2),
]


def name_of(case: Any) -> str:
    return str(getattr(case, "__name__", case))


@pytest.mark.parametrize(("scheme", "plant", "kind", "named"), CASES, ids=name_of)
def test_a_planted_fault_is_named_exactly(
    copy_of: Callable[[str], Path], scheme: str, plant: Callable[[Path], None], kind: FaultKind, named: str
) -> None:
    folder = copy_of(scheme)
    plant(folder)
    report = inspect(open_source(str(folder)))
    assert [fault.kind for fault in report.faults] == [kind], report.faults
    fault = report.faults[0]
    assert named in f"{fault.where} {fault.what}"


def test_the_command_line_names_the_fault_and_exits_1(copy_of: Callable[[str], Path]) -> None:
    folder = copy_of("mxfp4")
    truncate(folder)
    ran = k3("inspect", str(folder))
    assert ran.code == 1
    assert "truncated shard" in ran.out and SHARD_2 in ran.out
    ran = k3("inspect", str(folder), "--json")
    assert ran.code == 1
    assert [fault["kind"] for fault in json.loads(ran.out)["faults"]] == ["truncated shard"]


@pytest.mark.parametrize("text", ["", "[]", '{"weight_map": 3}', '{"weight_map": {"a": 1}}', "{"])
def test_an_index_that_is_none_is_an_error_that_names_it(copy_of: Callable[[str], Path], text: str) -> None:
    folder = copy_of("mxfp4")
    (folder / INDEX).write_text(text)
    ran = k3("inspect", str(folder))
    assert ran.code == 3
    assert INDEX in ran.err and "Traceback" not in ran.err


def test_a_folder_without_anything_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(K3Error, match=r"config\.json"):
        inspect(open_source(str(tmp_path)))


def test_reading_everything_finds_a_nan_weight(copy_of: Callable[[str], Path]) -> None:
    folder = copy_of("mxfp4")

    def change(listing: Any, payload: bytes) -> bytes:
        at = listing[f"{L0}.mlp.up_proj.weight"]["data_offsets"][0]
        return payload[:at] + b"\xff\x7f" + payload[at + 2 :]

    edit_shard(folder / SHARD_1, change)
    assert inspect(open_source(str(folder))).sound
    report = inspect(open_source(str(folder)), Depth.ALL)
    assert [fault.kind for fault in report.faults] == [FaultKind.NAN_WEIGHT]


def test_two_faults_are_two(copy_of: Callable[[str], Path]) -> None:
    folder = copy_of("mxfp4")
    wrong_dtype(folder)
    missing_shard(folder)
    kinds = {fault.kind for fault in inspect(open_source(str(folder))).faults}
    assert kinds == {FaultKind.WRONG_DTYPE, FaultKind.MISSING_SHARD}
