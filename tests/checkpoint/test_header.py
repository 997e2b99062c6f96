"""The header reader never trusts a file: any bytes give a header or a ShardError, and reading is bounded."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors import deserialize as _deserialize

from k3stack.checkpoint.faults import ShardError
from k3stack.checkpoint.header import Entry, build_header, read_header
from k3stack.spec import DType

entries = st.lists(
    st.builds(
        Entry,
        st.text(min_size=1, max_size=20).filter(lambda name: name != "__metadata__"),
        st.sampled_from(DType),
        st.lists(st.integers(0, 5), max_size=3).map(tuple),
    ),
    max_size=8,
    unique_by=lambda entry: entry.name,
)


def deserialize(blob: bytes) -> list[tuple[str, object]]:
    """The library's own reading of a file."""
    found: list[tuple[str, object]] = _deserialize(blob)  # type: ignore[no-untyped-call]
    return found


def read(blob: bytes) -> object:
    return read_header(lambda begin, end: blob[begin:end], len(blob))


@given(entries)
def test_what_is_written_is_read_back(wanted: list[Entry]) -> None:
    header, ordered = build_header(wanted)
    blob = header + bytes(sum(entry.size_bytes for entry in ordered))
    found = read_header(lambda begin, end: blob[begin:end], len(blob))
    assert [(n, t.dtype, t.shape) for n, t in found.tensors.items() if t.begin != t.end] == [
        (e.name, e.dtype, e.shape) for e in ordered if e.size_bytes
    ]
    assert found.payload_start == len(header) and len(header) % 8 == 0
    assert {name for name, _ in deserialize(blob)} == {entry.name for entry in wanted}


@given(st.binary(max_size=300))
def test_any_bytes_are_a_header_or_a_shard_error(blob: bytes) -> None:
    try:
        read(blob)
    except ShardError:
        return
    deserialize(blob)  # what we accept, the library accepts


@given(st.binary(max_size=60), st.integers(0, 80), st.integers(-3, 3))
def test_damaged_headers(noise: bytes, at: int, shift: int) -> None:
    header, _ = build_header([Entry("a", DType.F32, (2, 2)), Entry("b", DType.BF16, (3,))])
    blob = bytearray(header + bytes(22))
    blob[0] = (blob[0] + shift) % 256
    blob[at : at + len(noise)] = noise
    try:
        read(bytes(blob))
    except ShardError as error:
        assert error.what
        return
    deserialize(bytes(blob))


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"dtype": "F7", "shape": [1], "data_offsets": [0, 4]}, "F7"),
        ({"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}, "-1"),
        ({"dtype": "F32", "shape": [1.0], "data_offsets": [0, 4]}, "1.0"),
        ({"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}, "True"),
        ({"dtype": "F32", "shape": [1], "data_offsets": [0, 8]}, "8 bytes"),
        ({"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}, "gap"),
        ({"dtype": "F32", "shape": [1]}, "dtype"),
        (3, "3"),
    ],
)
def test_bad_entries_name_the_tensor(entry: object, said: str) -> None:
    text = json.dumps({"x": entry}).encode()
    blob = len(text).to_bytes(8, "little") + text + bytes(8)
    with pytest.raises(ShardError, match=said) as caught:
        read(blob)
    assert caught.value.tensor == "x"
    with pytest.raises(SafetensorError):
        deserialize(blob)


def test_duplicate_keys_are_refused() -> None:
    entry = '{"dtype":"U8","shape":[1],"data_offsets":[0,1]}'
    text = f'{{"x":{entry},"x":{entry}}}'.encode()
    with pytest.raises(ShardError, match="twice"):
        read(len(text).to_bytes(8, "little") + text + bytes(1))


def test_metadata_is_no_tensor() -> None:
    text = b'{"__metadata__":{"format":"pt"},"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'
    found = read_header(lambda b, e: (len(text).to_bytes(8, "little") + text + b"\0")[b:e], 8 + len(text) + 1)
    assert list(found.tensors) == ["x"]
