"""`k3 plan` as a user runs it: exit codes, JSON, logs, pictures, no GPU."""

import json
from pathlib import Path

import pytest

from tests.cli.run import k3
from tests.plan.test_logs import VLLM_LOG


@pytest.fixture(autouse=True)
def own_site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        ("--hardware b300", 0, "fits"),
        ("--hardware b300 --engine sglang", 0, "--mamba-full-memory-ratio"),
        ("--hardware h200", 1, "Other ways to K3"),
        ("--hardware h200 --gpus 16 --goal latency", 0, "TP8 x PP2 first of"),
        ("--hardware h200 --gpus 8 --goal latency", 1, "nothing fits"),
        ("--hardware h100 --gpus 32 --pp 4", 0, "k3 recipe refuses it: vLLM's recipe was verified on H200"),
        ("--hardware h100 --gpus 32 --goal latency", 0, "vllm-no-h100: vLLM's recipe was verified on H200"),
        ("--hardware h200 --gpus 16 --pp 2 --effects", 0, "k3 recipe refuses decode-context parallelism over 8 ranks"),
        ("--hardware h200 --engine sglang --gpus 16 --pp 2 --dcp 8", 1, "not supported"),
        ("--hardware b300 --effects", 0, "decode-context parallelism over 8 ranks"),
        ("--hardware b300 --scheme nvfp4-mixed --ep", 0, "TP8 + EP"),
    ],
)
def test_answers(options: str, code: int, says: str) -> None:
    ran = k3("plan", "kimi-k3", *options.split())
    assert ran.code == code
    assert says in ran.out


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ("--hardware b300 --gpus 0", "--gpus"),
        ("--hardware b300 --gpus 7", "tp: 7 does not divide"),
        ("--hardware b300 --dcp 3", "dcp: 3 does not divide"),
        ("--hardware b300 --context 1048577", "context: 1,048,577"),
        ("--hardware b400", "--hardware: 'b400'"),
        ("--hardware b300 --utilization -0.5", "utilization"),
        ("--hardware b300 --release new", "release: 'new'"),
        ("--hardware b300 --dp 3", "--gpus"),
        ("--save", "--from-log"),
        ("--from-log /nowhere/x.log", "/nowhere/x.log"),
        ("--hardware b300 --plot x.pdf", "--plot"),
    ],
)
def test_bad_input_is_said_once(options: str, names: str) -> None:
    ran = k3("plan", *options.split())
    assert ran.code in (2, 3)
    assert names in ran.err
    assert "Traceback" not in ran.err and not ran.out


def test_without_a_gpu_it_says_what_the_machine_can_do(monkeypatch: pytest.MonkeyPatch) -> None:
    import k3stack.hardware.machine as machine

    monkeypatch.setattr(machine, "_nvidia", lambda missing: ([], None))
    monkeypatch.setattr(machine, "_amd", lambda missing: [])
    ran = k3("plan", "--json")
    assert ran.code == 1
    ways = {way["id"]: way for way in json.loads(ran.out)}
    assert ways["hosted"]["possible"] and not ways["gguf-q4"]["possible"]
    assert "--hardware" in ran.err


def test_the_gpus_of_this_machine_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    import k3stack.hardware.machine as machine

    found = [machine._found(index, "NVIDIA B300 SXM6 AC", 275 * 2**30, 274 * 2**30) for index in range(8)]
    monkeypatch.setattr(machine, "_nvidia", lambda missing: (found, "580.95"))
    plan = json.loads(k3("plan", "--json").out)
    assert (plan["gpu"]["id"], plan["layout"]["tp"], plan["gpu"]["memory_bytes"]) == ("b300", 8, 275 * 2**30)
    assert plan["gpu"]["memory_origin"] == "measured"


def test_a_log_is_compared_and_not_saved_when_incomplete(tmp_path: Path) -> None:
    log = tmp_path / "start.log"
    log.write_text(VLLM_LOG)
    ran = k3("plan", "--from-log", str(log))
    assert ran.code == 0
    assert "predicted" in ran.out and "absent from this log" in ran.out
    saving = k3("plan", "--from-log", str(log), "--save", "--hardware", "b300")
    assert saving.code == 3
    assert "Nothing was saved" in saving.err
    assert not (tmp_path / "config").exists()


def test_a_log_without_arguments_still_tells_what_it_holds(tmp_path: Path) -> None:
    log = tmp_path / "end.log"
    log.write_text(
        "vLLM\n(0.18 GiB KV cache is needed, which is larger than the available KV cache memory (0.15 GiB).\n"
    )
    ran = k3("plan", "--from-log", str(log))
    assert ran.code == 0
    assert "needed cache memory: 0.18" in ran.out and "error in the log" in ran.out
    assert "nothing to compare" in ran.err


def test_measured_reserves_are_kept_and_used(tmp_path: Path) -> None:
    log = tmp_path / "start.log"
    usage = (
        "(Worker_TP0 pid=3) INFO Free memory on device (247.60/249.59 GiB) on startup. Desired GPU memory "
        "utilization is (0.9, 224.63 GiB). Actual usage is 194.00 GiB for consumed memory (weights + non-torch), "
        "3.50 GiB for peak activation, and 1.25 GiB for CUDAGraph memory. Current kv cache memory in use is 26.50 "
        "GiB.\n"
    )
    log.write_text(VLLM_LOG + usage)
    ran = k3("plan", "--from-log", str(log), "--save", "--hardware", "b300")
    assert "saved for vllm on b300" in ran.err
    plan = json.loads(k3("plan", "--hardware", "b300", "--json").out)
    lines = {line["what"]: line for line in plan["ledger"]["lines"]}
    assert lines["activations"]["origin"] == "measured"
    assert lines["activations"]["size_bytes"] == int((3.5 - 1.25) * 2**30)  # 0.33.0 prints the graphs in the peak
    assert lines["CUDA graphs"]["size_bytes"] == int(1.25 * 2**30)
    other = json.loads(k3("plan", "--hardware", "gb300", "--json").out)
    assert {line["origin"] for line in other["ledger"]["lines"]} >= {"estimated"}
