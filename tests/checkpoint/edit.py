"""Breaking checkpoints on purpose."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Listing = dict[str, dict[str, Any]]


def load_shard(path: Path) -> tuple[Listing, bytes]:
    blob = path.read_bytes()
    length = int.from_bytes(blob[:8], "little")
    return json.loads(blob[8 : 8 + length]), blob[8 + length :]


def save_shard(path: Path, listing: Listing, payload: bytes) -> None:
    text = json.dumps(listing, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + payload)


def edit_shard(path: Path, change: Callable[[Listing, bytes], bytes]) -> None:
    listing, payload = load_shard(path)
    save_shard(path, listing, change(listing, payload))


def edit_json(path: Path, change: Callable[[Any], None]) -> None:
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def drop(listing: Listing, payload: bytes, name: str) -> bytes:
    """Take a tensor out of a shard and close the gap."""
    begin, end = listing.pop(name)["data_offsets"]
    for entry in listing.values():
        if entry["data_offsets"][0] >= end:
            entry["data_offsets"] = [offset - (end - begin) for offset in entry["data_offsets"]]
    return payload[:begin] + payload[end:]


def add(listing: Listing, payload: bytes, name: str, dtype: str, shape: list[int], data: bytes) -> bytes:
    """Append a tensor to a shard."""
    listing[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(payload), len(payload) + len(data)]}
    return payload + data


def spread_scales(folder: Path, seed: int) -> None:
    """Give experts' MXFP4 blocks scales up to 30 powers of two apart, and make one block zero."""
    random = np.random.default_rng(seed)

    def change(listing: Listing, payload: bytes) -> bytes:
        data = bytearray(payload)
        for name, entry in listing.items():
            begin, end = entry["data_offsets"]
            if name.endswith("weight_scale"):
                scale = np.frombuffer(data, np.uint8)[begin:end].astype(int)
                far = random.random(scale.size) < 0.05
                scale[far] -= random.integers(10, 31, int(far.sum()))
                data[begin:end] = scale.astype(np.uint8).tobytes()
            elif name.endswith(".0.w1.weight_packed"):
                data[begin : begin + 16] = bytes(8) + b"\x88" * 8
        return bytes(data)

    for path in sorted(folder.glob("*.safetensors")):
        if any(name.endswith("weight_packed") for name in load_shard(path)[0]):
            edit_shard(path, change)
