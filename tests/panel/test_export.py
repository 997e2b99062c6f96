"""An export goes on where it was, keeps what is the same, and leaves an earlier site whole until all is made."""

import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import pytest

from k3stack.panel.export import export
from k3stack.panel.follow import against
from k3stack.panel.rows import selection
from k3stack.panel.template import MARKERS, Template
from k3stack.panel.walk import Coverage, beginning, covered, reachable
from k3stack.recipe.choice import Choice
from tests.panel.states import follow

K3 = str(Path(sys.executable).with_name("k3"))

FEW = [follow(), follow(("goal", "high-throughput")), follow(("engine", "sglang"))]
"""Two on one file, one on another."""


def exported(folder: Path, choices: list[Choice] = FEW) -> int:
    """Write a site of these choices in this process; returns how many were kept."""
    with (
        mock.patch("k3stack.panel.export.reachable", lambda begin, coverage, run: choices),
        mock.patch("k3stack.panel.export.workers", lambda: ThreadPoolExecutor(1)),
    ):
        site = export(folder)
    assert site.states == len(choices)
    assert {path.name for path in folder.glob("data*")} == {"data"}
    return site.kept


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_is_the_same_is_kept_and_the_rest_made_again(tmp_path: Path) -> None:
    assert exported(tmp_path) == 0
    first = contents(tmp_path)
    vllm, sglang = (tmp_path / "data" / f"{name}.js" for name in ("b300-vllm-0.33.0", "b300-sglang-0.5.23"))
    assert vllm.is_file() and sglang.is_file()
    sglang.write_bytes(sglang.read_bytes()[:-80])  # what a full disk of another program may leave
    assert exported(tmp_path) == 2
    assert contents(tmp_path) == first
    assert exported(tmp_path, FEW[:2]) == 0, "with other choices in it, the site leads elsewhere"
    assert vllm.is_file() and not sglang.exists()


def test_a_site_of_another_release_is_made_again(tmp_path: Path) -> None:
    exported(tmp_path)
    with mock.patch("k3stack.panel.export._source", lambda: "other files"):
        assert exported(tmp_path) == 0


def test_an_export_that_fails_leaves_the_earlier_site(tmp_path: Path) -> None:
    exported(tmp_path)
    before = contents(tmp_path)
    outside = Choice("vllm", "0.33.0", FEW[0].gpu, FEW[0].scheme, FEW[0].layout, FEW[0].workload, prefill=FEW[0].layout)
    with pytest.raises(Exception, match="prefill"):
        exported(tmp_path, [*FEW, outside])
    now = contents(tmp_path)
    assert {name: now[name] for name in before} == before
    assert {name.split("/")[0] for name in now.keys() - before.keys()} <= {"data.part"}
    assert exported(tmp_path) == len(FEW) and contents(tmp_path) == before


def test_a_release_with_a_rule_about_numbers_that_no_slider_has(tmp_path: Path) -> None:
    """Texts are written with numbers that stand nowhere else: this release would refuse drafts for so many requests."""
    drafts = follow(("scheme", "nvfp4-mixed"), ("version", "kimi-k3"), ("speculation", "dspark"))
    assert against(Template(drafts, MARKERS[0], False, False).choice) and drafts.version == "kimi-k3"
    assert exported(tmp_path, [*FEW, drafts]) == 0
    assert (tmp_path / "data" / "b300-vllm-kimi-k3.js").is_file()


def test_all_that_clicks_lead_to_is_found_and_nothing_else() -> None:
    coverage = Coverage(("h100", "mi355x"))
    found = reachable(beginning(coverage), coverage)
    assert len({selection(one) for one in found}) == len(found) > 100
    assert {one.gpu.id for one in found} == {"h100", "mi355x"}
    assert all(covered(one, coverage) for one in found)
    assert found == reachable(beginning(coverage), coverage)


@pytest.mark.slow
def test_an_interrupted_export_ends_at_once_and_goes_on_later(tmp_path: Path) -> None:
    site = tmp_path / "site"
    command = [K3, "panel", "--export", str(site), "--hardware", "b300", "--json"]
    began = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 240
    while not list(site.glob("data.part/*.js")) and time.monotonic() < until:
        time.sleep(0.05)
    made = {path.name for path in site.glob("data.part/*.js")}
    assert began.poll() is None and made, "one of its three files was to be done before the last"
    workers = children(began.pid)
    assert workers
    began.send_signal(signal.SIGTERM)
    stopping = time.monotonic()
    _, told = began.communicate(timeout=20)
    assert time.monotonic() - stopping < 5
    assert began.returncode == 130 and told == "interrupted; the same command goes on from here\n"
    while any(Path(f"/proc/{pid}").exists() for pid in workers):
        assert time.monotonic() - stopping < 10
        time.sleep(0.05)
    assert not (site / "index.html").exists()
    again = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    assert '"kept": 0' not in again.stdout and (site / "index.html").is_file()


def children(pid: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            found.append(int(path.parent.name))
    return found
