"""The known failures: sound data, the right cause for every log of the corpus, silence on good logs."""

import re
from importlib.resources import files
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3stack.errors import InputError
from k3stack.launch.knowledge import failure, failures, read_failures
from k3stack.launch.recognise import Ended, recognise
from tests.paths import ROOT, SHARED

LOGS = Path(__file__).with_name("logs")
IDS = {one.id for one in failures()}
GOOD = sorted(path for path in LOGS.glob("good-*.log"))
BAD = sorted(path for path in LOGS.glob("*.log") if path not in GOOD)


def named_by(path: Path) -> str:
    """The failure that a log is of: its name, less what follows the id."""
    words = path.stem.split("-")
    return next(name for end in range(len(words), 0, -1) if (name := "-".join(words[:end])) in IDS)


def test_there_are_enough_failures_and_logs() -> None:
    assert len(failures()) >= 25 and len({named_by(path) for path in BAD}) >= 25


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_the_cause_of_a_log_comes_first(path: Path) -> None:
    found = recognise(path.read_text())
    assert found.likely is not None and found.likely.id == named_by(path)
    assert found.likely.line is not None and found.likely.quote in path.read_text()
    assert not re.search(r"\{\w+\|", found.likely.fix + found.likely.cause)


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_the_cause_is_found_in_the_middle_of_other_lines_too(path: Path) -> None:
    """Lines of other ranks run between those of a traceback, and the log goes on for long after it."""
    noise = "(Worker_TP7 pid=977) INFO 11-20 09:14:55 [shm_broadcast.py:681] No available shared memory broadcast block"
    lines = [text for line in path.read_text().splitlines() for text in (line, noise)]
    found = recognise("\n".join([*lines, *[noise] * 300]))
    assert found.likely is not None and found.likely.id == named_by(path)


def test_the_settings_that_vllm_prints_name_no_phase() -> None:
    """`max_cudagraph_capture_size` stands in every log: memory that is short while loading is not short for graphs."""
    text = (LOGS / "gpu-memory-taken-meanwhile-loading.log").read_text()
    alone = re.sub(r"Process \d+ has [\d.]+ GiB memory in use\. ", "", text)
    found = recognise(alone)
    assert alone != text and found.likely is not None and found.likely.id == "gpu-oom-loading"


@pytest.mark.parametrize("path", GOOD, ids=lambda path: path.stem)
def test_a_good_log_raises_no_alarm(path: Path) -> None:
    found = recognise(path.read_text())
    assert not found.failed and found.ready


def test_the_head_of_every_failure_log_raises_no_alarm() -> None:
    for path in BAD:
        calm = [
            line
            for line in path.read_text().splitlines()
            if re.match(r"\(.*\) INFO|\[2026[^\]]*\] (?:Load|Init)", line)
        ]
        assert not recognise("\n".join(calm)).failed, path.stem


@pytest.mark.skipif(not (SHARED / "data/logs").is_dir(), reason="the public logs are not on this machine")
def test_real_logs() -> None:
    said = {}
    for path in sorted((SHARED / "data" / "logs").glob("*.log")):
        found = recognise(path.read_text(errors="replace"))
        said[path.stem] = found.likely.id if found.likely else None
    assert said == {
        "vllm-dp2": None,
        "vllm-pp2-offload-crash": "offload-copy",
        "vllm-pp2-rank1": None,
        "vllm-tp16": None,
    }


@pytest.mark.skipif(not (SHARED / "data/logs").is_dir(), reason="the public logs are not on this machine")
def test_real_refusals() -> None:
    parts = (SHARED / "data/logs/vllm-refusals-quoted.txt").read_text().split("\n## ")[1:]
    assert [found.likely.id for part in parts if (found := recognise(part)).likely] == [
        "gpu-oom-loading",
        "gpu-oom",  # quoted without the traceback that would tell the encoder
        "cache-below-one-request",
        "too-many-sequences",
    ]


def test_numbers_of_the_message_are_in_the_fix() -> None:
    found = recognise("ValueError: max_num_seqs (256) exceeds available Mamba cache blocks (161). Each")
    assert found.likely and "to 161 or less" in found.likely.fix
    cut = recognise("ValueError: max_num_seqs exceeds available Mamba cache blo")
    assert cut.likely and "the number in the message" in cut.likely.fix


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        (-9, "host-oom"),
        (137, "host-oom"),
        (-11, "crashed-natively"),
        (143, "stopped-from-outside"),
        (-7, "shared-memory-small"),
        (1, None),
        (0, None),
    ],
)
def test_how_a_process_ended_is_a_cause_when_the_log_has_none(code: int, wanted: str | None) -> None:
    calm = "(APIServer pid=1) INFO 11-20 09:14:01 [model.py:744] Resolved architecture: X\n"
    found = recognise(calm, Ended.of(code))
    assert (found.likely.id if found.likely else None) == wanted
    told = recognise(calm + "OSError: [Errno 98] Address already in use\n", Ended.of(code))
    assert told.likely and told.likely.id == "port-in-use"


def test_an_unknown_error_is_quoted() -> None:
    text = (LOGS / "nccl.log").read_text().replace("NCCL error: unhandled cuda error", "the flux is not inverted")
    found = recognise(text)
    assert found.likely and found.likely.symptom
    assert found.first_error and found.first_error.startswith("RuntimeError: the flux is not inverted")


def test_what_did_not_keep_the_server_from_starting_is_no_cause() -> None:
    bad = (LOGS / "port-in-use.log").read_text()
    assert recognise(bad).failed
    assert not recognise(bad + "(APIServer pid=9) INFO:     Application startup complete.\n").failed


def test_an_error_of_a_request_is_no_failure_of_the_server() -> None:
    good = (LOGS / "good-vllm.log").read_text()
    error = "(APIServer pid=4) ERROR 11-20 09:15:01 [hermes.py:117] json.decoder.JSONDecodeError: Expecting value\n"
    assert not recognise(good + error).failed
    ended = recognise(good + error, Ended.of(1))
    assert ended.likely is not None and ended.likely.id == "config-not-json"
    died = "(APIServer pid=4) ERROR 11-20 09:15:02 [x.py:1] vllm.v1.engine.exceptions.EngineDeadError: EngineCore\n"
    assert recognise(good + error + died).failed


def test_long_logs_are_quick_and_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("k3stack.launch.recognise.MAX_TEXT", 100_000)
    noise = "(Worker_TP7 pid=977) INFO 11-20 09:14:55 [x.py:1] a line about nothing\n" * 10_000
    bad = (LOGS / "broken-shard.log").read_text()
    for text in (bad + noise, noise + bad):
        found = recognise(text)
        assert found.likely and found.likely.id == "broken-shard"


@given(st.text(max_size=300))
def test_any_text_can_be_read(text: str) -> None:
    recognise(text, Ended.of(1))


def test_data_that_is_wrong_is_named() -> None:
    row = "{id: a, title: t, engine: any, patterns: [x], cause: c, fix: f, source: s, date: 2026-11-29}"
    assert len(read_failures(f"failures: [{row}]", "f")) == 1
    for wrong, field in (
        (row.replace("[x]", "['(']"), "regular expression"),
        (row.replace("[x]", "[]"), "nothing could ever match"),
        (row.replace("engine: any", "engine: tgi"), "engine"),
        (row.replace("fix: f, ", ""), "fix"),
        (row.replace("title: t", "title: t, instead_of: [b]"), "replaces b"),
        (row.replace("title: t", "title: t, tittle: t"), "tittle"),
    ):
        with pytest.raises(InputError, match=field):
            read_failures(f"failures: [{wrong}]", "f")
    with pytest.raises(InputError, match="two failures"):
        read_failures(f"failures: [{row}, {row}]", "f")


def test_every_failure_is_complete() -> None:
    for one in failures():
        assert one.cause.endswith((".", "?")) and one.fix.endswith("."), one.id
        assert one.source and one.date.year == 2026 and one.title[0] == one.title[0], one.id
    assert failure("port-in-use").signals == ()


def test_no_failure_says_one_thing_twice() -> None:
    """YAML takes the second of two keys and says nothing."""
    text = files("k3stack.launch").joinpath("data/failures.yaml").read_text()
    for entry in text.split("\n  - id: ")[1:]:
        keys = re.findall(r"^    (\w+):", entry, re.MULTILINE)
        assert len(keys) == len(set(keys)), entry.split("\n")[0]


def test_the_page_is_written_from_the_data() -> None:
    import importlib.util

    spec = importlib.util.spec_from_file_location("write_troubleshooting", ROOT / "docs" / "write_troubleshooting.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (ROOT / "docs" / "troubleshooting.md").read_text() == module.write(), "run `make docs`"


def test_a_worker_that_was_killed_leaves_no_error_that_nobody_knows() -> None:
    """vLLM 0.33.0 on two H200, TP 2: a worker was killed when all was ready."""
    found = recognise((LOGS / "worker-died-h200-tp2.log").read_text())
    assert [one.id for one in found.causes] == ["worker-died", "engine-dead"] and found.first_error is None
