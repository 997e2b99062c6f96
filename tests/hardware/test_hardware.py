"""The GPU table and what a machine reports: every figure with its source, tools that lie or are absent."""

import json
from pathlib import Path

import pytest

import k3stack.hardware.machine as machine
from k3stack.hardware.disk import disks, read_rate
from k3stack.hardware.machine import Machine, look, plannable
from k3stack.hardware.table import gpus, recognise
from k3stack.values import GB, GIB, Origin, dump, load
from tests.cli.run import k3

WANTED = "h100 h200 b200 b300 gb200 gb300 mi300x mi325x mi350x mi355x rtx-pro-6000 dgx-spark".split()


def test_the_table_has_every_gpu_with_sources() -> None:
    assert list(gpus()) == WANTED
    for one in gpus().values():
        assert one.figures and all(figure.source and figure.size_bytes > 0 for figure in one.figures)
        assert one.memory_bytes <= max(figure.size_bytes for figure in one.figures)
        assert one.formats and one.driver and one.gpus_per_node >= 1 and one.nvlink_gpus >= 1


def test_disagreeing_sources_are_both_kept_and_the_reported_one_is_used() -> None:
    b200 = gpus()["b200"]
    assert [(figure.says, figure.size_bytes) for figure in b200.figures] == [
        ("sold", 192 * GB),
        ("planned", 180 * GB),
        ("reported", 178 * GIB),
    ]
    assert (b200.memory_bytes, b200.memory_origin) == (178 * GIB, Origin.MEASURED)
    assert gpus()["b300"].memory_bytes == 268 * GB  # nothing reported: the lowest figure


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA GB300", "gb300"),
        ("NVIDIA B300 SXM6 AC", "b300"),
        ("AMD Instinct MI355X", "mi355x"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000"),
        ("NVIDIA GB10", "dgx-spark"),
        ("NVIDIA GeForce RTX 4090", None),
        ("", None),
    ],
)
def test_names_of_drivers(name: str, known: str | None) -> None:
    found = recognise(name)
    assert (found.id if found else None) == known


def no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_nvidia", lambda missing: ([], None))
    monkeypatch.setattr(machine, "_amd", lambda missing: [])


def test_a_machine_without_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    no_gpus(monkeypatch)
    found = look((tmp_path,), measure=False)
    assert found.gpus == () and plannable(found) is None
    assert found.cpus >= 1 and found.ram_bytes > 0
    assert load(Machine, dump(found)) == found
    ran = k3("hardware", "--no-measure")
    assert ran.code == 0 and "GPUs: none" in ran.out


SMI = (
    "0, NVIDIA H200, 143771, 615, 143156, 580.159.04, GPU-aa11\n"
    "1, NVIDIA H200, 143771, 615, 1000, 580.159.04, GPU-bb22\n"
)


def fake_tool(monkeypatch: pytest.MonkeyPatch, name: str, text: str | None) -> None:
    monkeypatch.setattr(machine, "vendor_tool", lambda *command: text if command[0] == name else None)


@pytest.fixture(autouse=True)
def all_gpus_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_nvidia_smi_where_nvml_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_tool(monkeypatch, "nvidia-smi", SMI)
    missing: list[str] = []
    found, driver = machine._nvidia_smi(missing)
    assert driver == "580.159.04" and not missing
    assert [one.known for one in found] == ["h200", "h200"]
    assert found[0].memory_bytes / GIB == pytest.approx(139.80, abs=0.01)  # what vLLM prints for an H200
    assert found[1].free_bytes == 1000 * 2**20


@pytest.mark.parametrize(
    ("asked", "left"),
    [
        ("1", [1]),
        ("1,0", [0, 1]),
        ("GPU-bb", [1]),
        ("GPU-", []),  # a start that both share names none
        ("", []),
        ("-1", []),
        ("0,7,1", [0]),  # CUDA reads no further than the first that there is not
        ("MIG-aa11", []),
    ],
)
def test_gpus_that_the_environment_leaves_out(monkeypatch: pytest.MonkeyPatch, asked: str, left: list[int]) -> None:
    fake_tool(monkeypatch, "nvidia-smi", SMI)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", asked)
    missing: list[str] = []
    found, _ = machine._nvidia_smi(missing)
    assert [one.index for one in found] == left
    assert len(left) == 2 or f"CUDA_VISIBLE_DEVICES={asked}" in missing[0]


@pytest.mark.parametrize("text", ["", "garbage", "0, NVIDIA H200, [N/A], 0, 1, 580, GPU-aa", None])
def test_a_tool_that_says_nothing_useful(monkeypatch: pytest.MonkeyPatch, text: str | None) -> None:
    fake_tool(monkeypatch, "nvidia-smi", text)
    missing: list[str] = []
    assert machine._nvidia_smi(missing)[0] == []
    assert missing or text == ""


ROCM = {
    "card0": {
        "Card Series": "AMD Instinct MI355X",
        "VRAM Total Memory (B)": str(288 * GB),
        "VRAM Total Used Memory (B)": "5",
    },
    "system": {"Driver version": "6.14"},
}


def test_rocm_smi(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_tool(monkeypatch, "rocm-smi", json.dumps(ROCM))
    found = machine._amd([])
    assert [(one.known, one.memory_bytes, one.free_bytes) for one in found] == [("mi355x", 288 * GB, 288 * GB - 5)]


@pytest.mark.parametrize("text", ["not json", "[1]", '{"card0": {"VRAM Total Memory (B)": "x"}}', '{"card0": 1}'])
def test_rocm_smi_that_prints_something_else(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    fake_tool(monkeypatch, "rocm-smi", text)
    missing: list[str] = []
    assert machine._amd(missing) == []
    assert missing and "rocm-smi" in missing[0]


def test_the_kind_there_is_most_of_is_planned_with() -> None:
    found = [machine._found(index, "NVIDIA H200", 139 * GIB + index, 1) for index in range(8)]
    found.append(machine._found(8, "NVIDIA GeForce RTX 4090", 24 * GIB, 1))
    kind, count = plannable(Machine(tuple(found), "580", 1, 1, 1, (), ())) or (None, 0)
    assert kind is not None and (kind.id, count, kind.memory_bytes) == ("h200", 8, 139 * GIB)
    assert kind.source == "this machine's driver"


def test_a_disk_is_measured_and_nothing_is_left(tmp_path: Path) -> None:
    assert read_rate(tmp_path, 16 * 2**20) > 1e6
    assert not list(tmp_path.iterdir())


def test_disks_are_listed_once_and_absent_ones_named(tmp_path: Path) -> None:
    missing: list[str] = []
    found = disks((tmp_path, tmp_path, tmp_path / "none"), False, missing)
    assert len(found) == 1 and found[0].free_bytes > 0 and found[0].read_rate is None
    assert missing and "none" in missing[0]


def test_known_gpus_are_printed_with_their_sources() -> None:
    ran = k3("hardware", "--known")
    assert ran.code == 0
    assert "sold" in ran.out and "580" in ran.out
    assert {row["id"] for row in json.loads(k3("hardware", "--known", "--json").out)} == set(WANTED)
