"""Where a start is, from its log's lines."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3stack.errors import NotKnownError
from k3stack.launch.phases import PhaseReader, phases_of
from tests.paths import SHARED

LOGS = Path(__file__).with_name("logs")


def read(text: str, engine: str = "vllm") -> PhaseReader:
    reader = PhaseReader(engine)
    for at, line in enumerate(text.splitlines(keepends=True)):
        reader.feed(line, float(at))
    return reader


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_whole_start(engine: str) -> None:
    reader = read((LOGS / f"good-{engine}.log").read_text(), engine)
    assert list(reader.began_s) == ["start", "load", "prepare", "capture", "listen", "ready"]
    assert reader.title == "ready"


@pytest.mark.skipif(not (SHARED / "data/logs").is_dir(), reason="the public logs are not on this machine")
@pytest.mark.parametrize("name", ["vllm-tp16", "vllm-dp2", "vllm-pp2-offload-crash"])
def test_real_starts(name: str) -> None:
    reader = read((SHARED / f"data/logs/{name}.log").read_text(errors="replace"))
    assert list(reader.began_s) == ["start", "load", "prepare", "capture", "listen", "ready"]
    assert reader.progress["load"].share == reader.progress["capture"].share == 1.0


@pytest.mark.parametrize("name", ["good-vllm-h200", "good-vllm-h200-tp2"])
def test_a_start_of_kimi_k3_on_gpus(name: str) -> None:
    """vLLM 0.33.0's second model runner and fastsafetensors have words of their own."""
    reader = read((LOGS / f"{name}.log").read_text())
    assert list(reader.began_s) == ["start", "load", "prepare", "capture", "listen", "ready"]
    assert reader.progress["load"].share == 1.0


def test_progress_and_time_left() -> None:
    reader = PhaseReader("vllm")
    reader.feed("INFO 01-01 00:00:00 [x.py:1] Starting to load model X...\n", 10.0)
    assert reader.left_s(11.0) is None
    reader.feed("Loading safetensors checkpoint shards:  25% Completed | 24/96 [00:20<01:00,  1.2it/s]\n", 30.0)
    assert reader.progress["load"].share == 0.25
    assert reader.left_s(30.0) == pytest.approx(60.0) and reader.left_s(40.0) == pytest.approx(50.0)


def test_a_bar_that_redraws_itself_is_read_before_its_line_ends() -> None:
    reader = PhaseReader("sglang")
    reader.feed(
        "[t TP0] Load weight begin. avail mem=1 GB\n\rMulti-thread loading shards:  50% Completed | 48/96 [", 1.0
    )
    assert reader.progress["load"].share == 0.5


def test_a_line_cut_in_two_is_one_line() -> None:
    reader = PhaseReader("vllm")
    assert reader.feed("x Starting to lo", 1.0) == []
    assert reader.feed("ad model X...\nrest", 2.0) == ["x Starting to load model X..."]
    assert reader.began_s == {"start": 0.0, "load": 2.0}


def test_phases_never_go_back() -> None:
    text = (LOGS / "good-vllm.log").read_text()
    reader = read(text + text)
    assert reader.current == "ready"


@given(st.lists(st.text(max_size=60), max_size=20))
def test_unknown_lines_change_nothing(lines: list[str]) -> None:
    reader = PhaseReader("vllm")
    known = re.compile("|".join(one for phase in phases_of("vllm") for one in phase.patterns))
    for line in lines:
        if not known.search(line):
            reader.feed(line.replace("\n", " ") + "\n", 1.0)
    assert reader.current == "start"


def test_an_unknown_engine() -> None:
    with pytest.raises(NotKnownError, match="vllm"):
        PhaseReader("tgi")


def test_a_kernel_that_is_compiled_first_is_named() -> None:
    """From a first start on two H200 without FlashInfer's built kernels."""
    line = "2026-11-30 10:48:21,839 - INFO - core.py:594 - flashinfer.jit: Building JIT module trtllm_comm; "
    assert read(f"{line}this can take several minutes on first use.\nnext\n").builds == ["trtllm_comm"]
