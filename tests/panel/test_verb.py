"""`k3 panel` as a user runs it."""

from pathlib import Path

from tests.cli.run import k3


def test_options_of_an_export_need_one() -> None:
    ran = k3("panel", "--hardware", "b300")
    assert ran.code == 2 and "--export" in ran.err


def test_an_export_touches_no_folder_of_other_files(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    ran = k3("panel", "--export", str(tmp_path))
    assert ran.code == 3 and "other files" in ran.err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_an_export_of_what_cannot_be_deployed_is_refused(tmp_path: Path) -> None:
    ran = k3("panel", "--export", str(tmp_path / "site"), "--hardware", "mi300x")
    assert ran.code == 2 and "mi300x" in ran.err
    assert not (tmp_path / "site").exists()


def test_an_unknown_gpu_is_named(tmp_path: Path) -> None:
    ran = k3("panel", "--export", str(tmp_path / "site"), "--hardware", "b900")
    assert ran.code == 2 and "b900" in ran.err
