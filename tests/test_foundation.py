"""The foundation: the error tree, JSON of values, writing files, names that stay in their folder."""

import doctest
import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3stack import errors, files, values
from k3stack.errors import CheckpointError, InputError, K3Error
from k3stack.files import atomic_write, inside, json_value
from k3stack.hardware.table import Gpu
from k3stack.plan import Layout, Workload
from k3stack.values import dump, format_bytes, load


def test_the_public_errors_are_these() -> None:
    assert set(errors.__all__) == {
        "CheckpointError", "ConfigError", "FormatError", "InputError", "K3Error", "NotKnownError", "UnavailableError",
        "UsageError", "next_step",
    }  # fmt: skip
    for name in set(errors.__all__) - {"next_step"}:
        kind = getattr(errors, name)
        assert issubclass(kind, K3Error) and kind.exit_code in (2, 3)


def test_an_error_says_what_where_and_what_next() -> None:
    error = CheckpointError("is cut short", where="a.safetensors", hint="Download it again.")
    assert str(error) == "a.safetensors: is cut short. Download it again."
    assert isinstance(error, InputError)


def test_doctests() -> None:
    assert doctest.testmod(files).failed == 0


@given(st.builds(Layout, tp=st.integers(1, 96), pp=st.integers(1, 93), dp=st.integers(1, 8), ep=st.booleans()))
def test_values_survive_json(layout: Layout) -> None:
    assert load(Layout, dump(layout)) == layout


def test_wrong_json_names_the_field() -> None:
    data = dump(Workload())
    data["context"] = "many"
    with pytest.raises(InputError, match=r"Workload\.context"):
        load(Workload, data)
    with pytest.raises(InputError, match=r"Gpu\."):
        load(Gpu, {})


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1_560_936_091_448, "1.56 TB"), (-84_249_711_097, "-84.25 GB")]
)
def test_sizes_for_people(count: int, text: str) -> None:
    assert format_bytes(count) == text
    assert values.GB == 10**9


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "x"
    target.write_text("old")

    def write_and_fail() -> None:
        with atomic_write(target) as file:
            file.write(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write_and_fail()
    assert target.read_text() == "old"
    with atomic_write(target) as file:
        file.write(b"new")
    assert target.read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    assert target.stat().st_mode & 0o777 in (0o644, 0o664, 0o600)


@given(st.text(st.sampled_from("ab./\\\0"), max_size=8))
def test_a_name_that_stays_inside_really_does(name: str) -> None:
    folder = Path("/base/folder")
    if inside(name):
        resolved = Path(str(folder / name).replace("/./", "/"))
        assert ".." not in resolved.parts and str(resolved).startswith(str(folder))
    else:
        assert (
            name in ("", "/")
            or name.startswith("/")
            or ".." in name
            or "\0" in name
            or "\\" in name
            or set(name) <= set("./")
        )


def test_a_full_disk_names_the_file_and_leaves_none(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with pytest.raises(OSError, match="No space") as caught, atomic_write(path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # as writing to a full disk does, without a name
    assert caught.value.filename == str(path) and not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["{", b"\xff\xfe\x00", "[" * 100_000, "1" * 5_000, ""])
def test_json_that_cannot_be_read_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError):
        json_value(text)
