from __future__ import annotations

import json
from pathlib import Path

import pytest

from k3stack.errors import InputError
from k3stack.patches.export import PLUGIN, export

from .conftest import Run

MODEL = "import vllm.models.kimi_k3.nvidia.model as model; print(model.LOADED_BY, model.__loader__)"
FINDERS = "import sys; print(sum(hasattr(finder, '_k3_patches_waiting') for finder in sys.meta_path))"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    export(tmp_path / "patches")
    return tmp_path / "patches"


def test_the_entry_point_is_found_without_pip(folder: Path, run: Run) -> None:
    code = (
        "from importlib.metadata import entry_points\n"
        "points = entry_points(group='vllm.general_plugins')\n"
        "ours = [point for point in points if point.value.startswith('k3stack_patches')]\n"
        "print([point.name for point in ours]); ours[0].load()()"
    )
    done = run(code, folder)
    assert done.stdout.strip() == str([PLUGIN]), done.stderr


def test_the_folder_needs_nothing_but_python(folder: Path, run: Run) -> None:
    code = "import sys, json; print(json.dumps(sorted(m for m in sys.modules if 'k3' in m or m == 'typing')))"
    done = run(code, folder)
    assert json.loads(done.stdout) == [], done.stderr
    for file in (folder / "k3stack_patches").glob("*.py"):
        assert "from k3stack" not in file.read_text()


def test_patches_are_settled_once_the_model_is_there(folder: Path, fake_vllm: Path, run: Run) -> None:
    done = run(MODEL, folder, fake_vllm)
    assert done.returncode == 0
    assert "INFO Kimi-K3 runtime patches: process=MainProcess pid=" in done.stderr
    assert done.stderr.count("cannot apply: its probe failed") == 6
    assert "vllm=0.99.0 1=cannot-apply" in done.stderr
    assert done.stdout.count("SourceFileLoader") == 1  # while loading ours wraps it, afterwards it is its own again


def test_strict_mode_stops_with_a_reason(folder: Path, fake_vllm: Path, run: Run) -> None:
    code = f"try:\n    {MODEL}\nexcept Exception:\n    print('swallowed')"  # as vLLM's model registry does
    done = run(code, folder, fake_vllm, K3_PATCHES="strict")
    assert done.returncode == 1
    assert "K3_PATCHES=strict and a patch cannot apply" in done.stderr
    assert done.stdout == ""


def test_a_switch_that_means_nothing_stops_the_process(folder: Path, fake_vllm: Path, run: Run) -> None:
    done = run(MODEL, folder, fake_vllm, KIMI_K3_FP8_PB="perhaps")
    assert done.returncode == 1
    assert "KIMI_K3_FP8_PB=perhaps is none of 0, 1, auto" in done.stderr


def test_off_touches_nothing_and_says_so(folder: Path, fake_vllm: Path, run: Run) -> None:
    done = run(MODEL, folder, fake_vllm, K3_PATCHES="off")
    assert "6=disabled" in done.stderr
    assert "cannot apply" not in done.stderr


def test_plugin_and_start_file_together_settle_once(folder: Path, fake_vllm: Path, run: Run) -> None:
    register = "from k3stack_patches.plugin import register; register(); register()"
    done = run(f"{register}\n{MODEL}\nregister()\n{FINDERS}", folder, fake_vllm)
    assert done.stderr.count("INFO Kimi-K3 runtime patches: process=") == 1
    assert done.stdout.strip().splitlines()[-1] == "1"


def test_an_installed_and_an_exported_copy_settle_once(folder: Path, fake_vllm: Path, run: Run) -> None:
    code = f"from k3stack.patches.plugin import register; register()\n{MODEL}\n{FINDERS}"
    done = run(code, folder, fake_vllm, Path(__file__).parents[2] / "src")
    assert done.stderr.count("INFO Kimi-K3 runtime patches: process=") == 1, done.stderr
    assert done.stdout.strip().splitlines()[-1] == "1"


def test_a_plugin_that_comes_late_settles_at_once(folder: Path, fake_vllm: Path, run: Run) -> None:
    (folder / "sitecustomize.py").unlink()
    done = run(f"{MODEL}\nfrom k3stack_patches.plugin import register; register()", folder, fake_vllm)
    assert done.stderr.count("INFO Kimi-K3 runtime patches: process=") == 1


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_child_processes_have_them_too(folder: Path, fake_vllm: Path, run: Run, tmp_path: Path, method: str) -> None:
    script = tmp_path / "server.py"
    script.write_text(
        "import multiprocessing\n"
        "def work():\n"
        "    import vllm, vllm.models.kimi_k3.nvidia.model\n"
        "    print(multiprocessing.current_process().name, len(vllm.__k3_patches__), flush=True)\n"
        "if __name__ == '__main__':\n"
        f"    context = multiprocessing.get_context('{method}')\n"
        "    worker = context.Process(target=work, name='VllmWorker-0')\n"
        "    worker.start(); worker.join()\n"
    )
    done = run(f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')", folder, fake_vllm, tmp_path)
    assert done.stdout.strip() == "VllmWorker-0 6", done.stderr
    assert "process=VllmWorker-0" in done.stderr


def test_a_hidden_sitecustomize_still_runs(folder: Path, run: Run, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text("print('theirs')\n")
    assert run(FINDERS, folder, theirs).stdout.split() == ["theirs", "1"]


def test_a_broken_folder_is_never_silent(folder: Path, fake_vllm: Path, run: Run) -> None:
    (folder / "k3stack_patches" / "hook.py").unlink()
    code = f"{MODEL}; print('on')"
    loose, strict = run(code, folder, fake_vllm), run(code, folder, fake_vllm, K3_PATCHES="strict")
    assert "is broken, nothing is patched" in loose.stderr
    assert loose.returncode == 0
    assert loose.stdout.endswith("on\n")
    assert (strict.returncode, strict.stdout) == (1, "")


def test_a_missing_part_is_never_silent(folder: Path, fake_vllm: Path, run: Run) -> None:
    (folder / "k3stack_patches" / "report.py").unlink()
    loose, strict = run(MODEL, folder, fake_vllm), run(MODEL, folder, fake_vllm, K3_PATCHES="strict")
    assert "not settled, nothing is patched: ModuleNotFoundError" in loose.stderr
    assert loose.returncode == 0
    assert strict.returncode == 1


def test_exporting_again_replaces_the_folder(folder: Path) -> None:
    (folder / "k3stack_patches" / "stale.py").touch()
    export(folder)
    assert not (folder / "k3stack_patches" / "stale.py").exists()
    assert not list(folder.parent.glob(".*"))


def test_a_foreign_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="is there already and is no export"):
        export(tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"
