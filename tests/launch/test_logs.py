"""Logs as people have them: packed, long, several, and with what containers and collectors write around each line."""

import bz2
import gzip
import io
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3stack.errors import InputError
from k3stack.launch.doctor import examine
from k3stack.launch.findings import Status
from k3stack.launch.logfiles import logs_in, read_text
from k3stack.launch.logtext import left_out, plain
from k3stack.launch.recognise import Ended, recognise

LOGS = Path(__file__).with_name("logs")
TIME = "2026-11-28T10:11:12.123456789Z "

PREFIXES = {
    "docker and kubectl, times": TIME,
    "the container runtime": TIME + "stderr F ",
    "docker compose": "vllm-1  | ",
    "docker compose, times": "vllm-1  | " + TIME,
    "kubectl --prefix": "[pod/k3-0/vllm] ",
    "stern": "k3-7d9f4c-abcde vllm ",
    "journalctl": "Nov 28 10:11:12 node01 vllm[123]: ",
    "journalctl -o short-iso": "2026-11-28T10:11:12+0000 node01 python3[123]: ",
    "mpirun": "[1,0]<stderr>:",
    "srun --label": " 3: ",
    "pdsh": "node01: ",
    "torchrun": "[default3]:",
    "ts": "Nov 28 10:11:12 ",
    "a time in brackets": "[2026-11-28 10:11:12] ",
    "a time with its zone": "2026-11-28T10:11:12.2 +08:00 CST ",
    "Python's logging": "2026-11-28 10:11:12,345 - k3 - INFO - ",
    "colours": "\x1b[1;36m",
    "colours in syslog": "#033[1;36m",
}

SHAPES = (
    "gpu-oom-profiling",
    "broken-shard",
    "sglang-graphs-oom",
    "too-many-sequences",
    "wrong-interface",
    "duplicate-gpu",
)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES)
def test_what_stands_before_a_line_hides_no_cause(prefix: str, name: str) -> None:
    """Neither the level, nor the four columns of a quoted source, nor the process of a line are lost behind it."""
    text = (LOGS / f"{name}.log").read_text()
    alone = recognise(text)
    found = recognise("".join(prefix + line for line in text.splitlines(keepends=True)))
    assert [(one.id, one.line) for one in found.causes] == [(one.id, one.line) for one in alone.causes]
    assert found.likely is not None and alone.likely is not None
    assert found.likely.quote.endswith(alone.likely.quote)


@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES)
@pytest.mark.parametrize("good", [path.stem for path in sorted(LOGS.glob("good-*.log"))])
def test_a_good_log_stays_good(prefix: str, good: str) -> None:
    lines = (LOGS / f"{good}.log").read_text().splitlines(keepends=True)
    found = recognise("".join(prefix + line for line in lines))
    assert found.ready and not found.failed


def test_ends_of_lines_of_other_systems() -> None:
    text = (LOGS / "broken-shard.log").read_text()
    alone, found = recognise(text), recognise(text.replace("\n", "\r\n"))
    assert found.likely == alone.likely


def test_a_progress_bar_draws_over_its_line() -> None:
    """What is written behind it is a line of its own, with the number that an editor shows."""
    bar = "Loading:  1%|x\rLoading: 40%|x[2026-11-22 11:36:30 TP1] Scheduler hit an exception: Traceback\n"
    found = recognise(bar + "RuntimeError: DeepEP error: CPU recv timeout\n")
    assert found.likely is not None and (found.likely.id, found.likely.line) == ("deepep-timeout", 2)


def entry(level: str, message: str, **more: str) -> str:
    return json.dumps({"asctime": "2026-11-28 10:11:12", "levelname": level, "message": message, **more})


def test_lines_of_json() -> None:
    """vLLM with VLLM_LOGGING_CONFIG: a level and a message in each line, a traceback in one string."""
    trace = 'Traceback (most recent call last):\n  File "x.py", line 1, in create_weights\ntorch.OutOfMemoryError: '
    text = "\n".join(
        [
            entry("INFO", "non-default args: {'x': 'Duplicate GPU detected'}"),
            entry(
                "ERROR", "WorkerProc failed to start.", exc_info=trace + "CUDA out of memory. Tried to allocate 2 GiB"
            ),
            entry("ERROR", "EngineCore failed to start."),
        ]
    )
    found = recognise(text)
    assert found.likely is not None and (found.likely.id, found.likely.line) == ("gpu-oom-loading", 2)
    assert recognise(entry("INFO", "Application startup complete.")).ready
    assert not recognise(entry("WARNING", "NCCL error: it was tried again")).failed


def test_the_daemon_of_docker_writes_objects() -> None:
    lines = (LOGS / "port-in-use.log").read_text().splitlines()
    text = "\n".join(json.dumps({"log": f"{line}\n", "stream": "stderr", "time": TIME}) for line in lines)
    found = recognise(text)
    assert found.likely is not None and found.likely.id == "port-in-use"
    cloud = json.dumps({"severity": "ERROR", "jsonPayload": {"message": "RuntimeError: NIXL is not available"}})
    assert [one.id for one in recognise(cloud).causes] == ["connector-missing"]
    for other in ('{"a": 1}', "{'not': json}", "{}", '{"message": 3}'):
        assert plain(other).text == other


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=300))
def test_no_line_is_lost(text: str) -> None:
    read = plain(text)
    lines = read.text.count("\n") + 1
    assert not read.numbers or (len(read.numbers) == lines and list(read.numbers) == sorted(read.numbers))
    recognise(text, Ended.of(1))


def test_an_error_line_keeps_its_own_name() -> None:
    for line in (
        "RuntimeError: Traceback of the worker",
        "torch.OutOfMemoryError: CUDA out of memory",
        '  File "x", line 1',
    ):
        assert plain(line).text == line


PACKERS: dict[str, Callable[[bytes], bytes]] = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}


@pytest.mark.parametrize("kind", PACKERS)
def test_packed_logs(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (LOGS / "broken-shard.log").read_text()
    packed = PACKERS[kind](text.encode())
    path = tmp_path / f"vllm.log.{kind}"
    path.write_bytes(packed)
    assert read_text(path) == text
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BufferedReader(io.BytesIO(packed))))
    assert examine("-").findings[0].id == "broken-shard"
    path.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(InputError, match="not whole"):
        read_text(path)


def test_logs_that_cannot_be_read_say_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "vllm.log.zst"
    path.write_bytes(b"\x28\xb5\x2f\xfd\x00\x00")
    with pytest.raises(InputError, match="zstd"):
        read_text(path)
    with pytest.raises(InputError, match="cannot be read"):
        read_text(tmp_path / "none.log")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig"])
def test_encodings_of_other_systems(encoding: str, tmp_path: Path) -> None:
    text = (LOGS / "broken-shard.log").read_text()
    (tmp_path / "vllm.log").write_text(text, encoding=encoding)
    assert read_text(tmp_path / "vllm.log") == text


@pytest.mark.parametrize("place", ["beginning", "middle", "end"])
def test_a_very_long_log_is_not_read_whole_and_the_cause_is_found(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("k3stack.launch.logfiles.MAX_TEXT", 400_000)
    monkeypatch.setattr("k3stack.launch.logfiles._CHUNK", 50_000)
    bad = (LOGS / "broken-shard.log").read_text()
    noise = "(Worker_TP7 pid=977) INFO 11-20 09:14:55 [x.py:1] a line about nothing\n" * 20_000
    before, after = {"beginning": ("", noise), "middle": (noise, noise), "end": (noise, "")}[place]
    path = tmp_path / "vllm.log"
    path.write_text(before + bad + after)
    text = read_text(path)
    assert len(text) < 400_000 < path.stat().st_size and "lines left out" in text
    alone, found = recognise(bad).likely, recognise(text).likely
    assert alone is not None and found is not None and found.id == alone.id == "broken-shard"
    assert alone.line is not None and found.line == before.count("\n") + alone.line


def test_lines_that_were_left_out_count() -> None:
    read = plain("\n".join(["a", left_out(1_234), "b"]))
    assert read.numbers == (1, 2, 1_236)


def write_ranks(folder: Path) -> None:
    """Rank 5 runs out of memory; the others wait for it, and the watchdog ends them later."""
    oom = (LOGS / "gpu-oom-loading.log").read_text()
    (folder / "node1").mkdir(parents=True)
    (folder / "node1" / "rank5.log").write_text(oom.replace("11-20 09:14", "11-20 09:20"))
    late = "[rank0]: torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients.\n"
    calm = "(EngineCore pid=1) INFO 11-20 09:10:00 [core.py:140] Initializing a V1 LLM engine\n"
    for rank in range(3):
        (folder / f"rank{rank}.log").write_text(calm + late)
    with gzip.open(folder / "rank3.log.gz", "wt") as file:
        file.write(calm + late)
    (folder / "empty.log").write_text("")


def test_a_folder_with_the_logs_of_several_ranks(tmp_path: Path) -> None:
    """The rank that failed comes before those that waited for it, whatever their names and times."""
    write_ranks(tmp_path)
    assert len(logs_in(tmp_path)) == 5
    found = examine(str(tmp_path)).findings
    assert [one.id for one in found] == ["gpu-oom-loading", "rendezvous"]
    assert [one.status for one in found] == [Status.FAIL, Status.WARN]
    assert found[0].measured.startswith("node1/rank5.log, line ")
    assert found[1].measured.startswith("rank0.log and 3 more, line ")


def test_the_earliest_of_several_logs_comes_first(tmp_path: Path) -> None:
    for name, clock in (("a", "09:30"), ("b", "09:20")):
        text = (LOGS / ("disk-full.log" if name == "a" else "broken-shard.log")).read_text()
        (tmp_path / f"{name}.log").write_text(text.replace("11-20 09:14", f"11-20 {clock}"))
    assert [one.id for one in examine(str(tmp_path)).findings] == ["broken-shard", "disk-full"]


def test_a_folder_of_good_logs_and_one_of_unknown_errors(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text((LOGS / "good-vllm.log").read_text())
    assert [one.status for one in examine(str(tmp_path)).findings] == [Status.PASS]
    (tmp_path / "b.log").write_text("Traceback (most recent call last):\nValueError: the flux is not inverted\n")
    found = examine(str(tmp_path)).findings
    assert [one.id for one in found] == ["first-error"] and "b.log: ValueError: the flux" in found[0].measured


def test_the_folder_of_a_checkpoint_is_none_of_logs(tmp_path: Path) -> None:
    (tmp_path / "download.log").write_text("x")
    assert logs_in(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    assert logs_in(tmp_path) == []


def test_of_a_server_that_was_ready_the_error_near_its_end_comes_first() -> None:
    """Requests failed for hours before; what ended it stands at its end."""
    good = (LOGS / "good-vllm.log").read_text()
    request = "(APIServer pid=4) ERROR 11-20 09:15:01 [x.py:117] json.decoder.JSONDecodeError: Expecting value\n"
    calls = "(APIServer pid=4) ERROR 11-20 09:15:01 [serving.py:2] a request was refused\n" * 500
    end = (LOGS / "gpu-oom-serving.log").read_text()
    end = "\n".join(line for line in end.splitlines() if "startup complete" not in line)
    found = recognise(good + request + calls + end)
    assert found.likely is not None and found.likely.id == "gpu-oom-serving"


def test_a_general_failure_gives_way_to_what_it_speaks_of() -> None:
    known = recognise("torch.AcceleratorError: CUDA error: an illegal memory access was encountered\n")
    assert [one.id for one in known.causes] == ["illegal-memory-access"]
    unknown = recognise("torch.AcceleratorError: CUDA error: the flux is not inverted\n")
    assert unknown.likely is not None and unknown.likely.id == "cuda-error"
    assert (
        '"the flux is not inverted"' not in unknown.likely.cause and "the flux is not inverted" in unknown.likely.cause
    )


def test_memory_of_the_host_is_not_memory_of_a_gpu() -> None:
    ray = "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\n"
    assert [one.id for one in recognise('  File "x", line 1, in execute_model\n' + ray).causes] == ["host-oom"]


def test_warnings_of_libraries_are_no_cause() -> None:
    """SGLang prints some without a level; what a library warns of did not stop anything."""
    for line in (
        "[2026-11-20 09:14:02] Ignore import error when loading models.x: cannot import name 'A' from 'transformers'",
        "W0917 16:19:42.193368 3936072 rdma_context.cpp:197] Failed to register memory 0x7f2a: Bad address [14]",
        "[rank6]:[W904 12:06:06.08 CUDACachingAllocator.cpp:3933] CUDA out of memory. Tried to allocate",
        "[rank8]:[W ProcessGroupGloo.cpp:721] Warning: Unable to find address for: eth7",
        "node1:29881:30401 [0] NCCL INFO Bootstrap : no socket interface found, trying the next",
        "[2026-11-20 09:14:02 TP0] Prefill batch, #new-seq: 1, memory leak detected! no",
        "2026-11-20 09:14:02,531 - runner - INFO - WARNING: Duplicate GPU detected in the inventory",
    ):
        assert not recognise(line).failed, line


def test_what_no_server_outlives_is_its_end() -> None:
    """A kernel's fault after the server was ready, and nothing after it: the log was cut there, or the process was."""
    good = (LOGS / "good-vllm.log").read_text()
    watchdog = (
        "[rank3]:[E1115 03:12:11.1 ProcessGroupNCCL.cpp:2057] Process group watchdog thread terminated with exception: "
    )
    found = recognise(good + watchdog + "CUDA error: an illegal memory access was encountered\n")
    assert found.likely is not None and found.likely.id == "illegal-memory-access"
    assert not recognise(good + "(APIServer pid=4) ERROR 11-20 09:15:01 [x.py:1] ValueError: a bad request\n").failed


def test_a_cause_without_words_is_told_with_its_place() -> None:
    found = recognise((LOGS / "host-cache-crash-load-back.log").read_text()).likely
    assert found is not None and found.quote == "AssertionError"
    assert "mamba_component.py:448 in build_hicache_transfers: assert cd.host_value is not None" in found.cause


def test_an_error_without_words_is_told_with_its_place() -> None:
    text = (
        "Traceback (most recent call last):\n"
        '  File "/opt/venv/lib/python3.12/site-packages/vllm/v1/core/blocks.py", line 811, in allocate\n'
        "    assert new_blocks >= 0\nAssertionError\n"
    )
    assert (
        recognise(text).first_error
        == "AssertionError at vllm/v1/core/blocks.py:811 in allocate: assert new_blocks >= 0"
    )
    level = "(EngineCore pid=4) ERROR 11-20 09:15:01 [core.py:1300] "
    prefixed = recognise("".join(level + line for line in text.splitlines(keepends=True)))
    assert prefixed.first_error == recognise(text).first_error
    assert recognise("AssertionError\n").first_error == "AssertionError"
