from __future__ import annotations

from pathlib import Path

import pytest

from k3stack.patches.knowledge import RELEASES, expected_numbers, known_span, parse_release
from k3stack.patches.patch import Outcome, State
from k3stack.patches.registry import all_patches
from k3stack.patches.report import applied_lines, failure_lines, front_end_lines, summary_line
from k3stack.patches.serverlog import Source, read_log

DATA = Path(__file__).parent / "data"


def outcomes(**states: State) -> list[Outcome]:
    return [
        Outcome(p.number, p.title, p.switch, states.get(f"p{p.number}", State.NOT_NEEDED), "because", p.line)
        for p in all_patches()
    ]


def log_of(found: list[Outcome], prefix: str = "(EngineCore pid=7) INFO ", version: str = "0.33.0") -> list[str]:
    lines = applied_lines(found) + failure_lines(found) + [summary_line(found, version, "EngineCore", 7)]
    return [prefix + line for line in lines]


def test_what_is_written_is_read_back() -> None:
    report = read_log(log_of(outcomes(p6=State.APPLIED, p4=State.CANNOT)))
    (process,) = report.processes
    assert (process.name, process.pid, process.source) == ("EngineCore", 7, Source.K3STACK)
    assert process.states[6] is State.APPLIED
    assert report.failures == ("patch 4: because",)
    assert (report.vllm, report.expected, report.missing) == ("0.33.0", (6,), (4,))


def test_a_real_log_of_a_patched_server() -> None:
    report = read_log((DATA / "h200-engine-own-process.log").read_text().splitlines())
    assert [(p.name, p.pid, p.source) for p in report.processes] == [("EngineCore", 3212, Source.K3STACK)]
    assert report.missing == ()


def test_a_real_log_of_a_server_that_the_patches_did_not_reach() -> None:
    report = read_log((DATA / "h200-hidden.log").read_text().splitlines())
    assert [(p.name, p.source) for p in report.processes] == [("EngineCore", Source.SILENT)]
    assert not report.seen
    assert report.missing == (6,)


def test_one_worker_without_the_patch_is_found() -> None:
    lines = [*log_of(outcomes(p6=State.APPLIED)), "(Worker_TP1 pid=9) INFO Loading weights took 3 seconds"]
    assert read_log(lines).missing == (6,)


def test_lines_of_nvidias_file_are_understood() -> None:
    text = "Kimi-K3 runtime patch: removed the duplicate SiTU g1_alphas fold from TRTLLM NVFP4 g1_scale_c"
    report = read_log(["vLLM API server version 0.28.0", f"(Worker_TP0 pid=3) {text}"])
    assert report.processes[0].source is Source.NVIDIA
    assert report.missing == (5,)


def test_an_unknown_release_is_judged_by_its_own_probes_alone() -> None:
    report = read_log(log_of(outcomes(p6=State.APPLIED), version="0.99.0"))
    assert report.expected is None
    assert report.missing == ()


def test_the_rust_front_end_is_named_when_it_keeps_a_patch_out() -> None:
    found = outcomes(p2=State.APPLIED)
    assert front_end_lines(found, {}) == []
    (line,) = front_end_lines(found, {"VLLM_USE_RUST_FRONTEND": "1"})
    assert "patch 2" in line
    assert front_end_lines(outcomes(), {"VLLM_USE_RUST_FRONTEND": "1"}) == []


@pytest.mark.parametrize("patch", all_patches(), ids=lambda patch: str(patch.number))
def test_the_tables_cover_each_release_once(patch: object) -> None:
    from k3stack.patches.patch import Patch

    assert isinstance(patch, Patch)
    for release in RELEASES:
        number = parse_release(release)
        assert number is not None
        spans = [
            s for s in patch.knowledge if (parse_release(s.first) or ()) <= number <= (parse_release(s.last) or ())
        ]
        assert len(spans) == 1


def test_releases_that_nobody_read_are_not_guessed() -> None:
    patch = all_patches()[0]
    for version in ("0.26.0", "0.34.0", "0.33.1.dev7+gabc", "nonsense"):
        assert known_span(patch, version) is None
    assert expected_numbers("0.34.0") is None
    assert expected_numbers("0.28.0") == (4, 5)
    assert expected_numbers("0.33.0+cu130") == (6,)


def test_a_real_log_of_two_gpus_has_the_patches_in_both_workers() -> None:
    report = read_log((DATA / "h200-two-gpus.log").read_text().splitlines())
    active = {p.name: [n for n, state in p.states.items() if state is State.APPLIED] for p in report.processes}
    assert active == {name: [1, 6] for name in ("APIServer", "EngineCore", "Worker_TP0", "Worker_TP1")}
    assert report.quantization == "modelopt_mixed" and report.good


def test_another_checkpoint_than_nvidias_needs_no_patch() -> None:
    report = read_log((DATA / "h200-mxfp4.log").read_text().splitlines())
    assert (report.quantization, report.expected, report.missing) == ("mxfp4", (), ())
    assert not report.seen and report.good
    unknown = [line for line in (DATA / "h200-mxfp4.log").read_text().splitlines() if "V1 LLM engine" not in line]
    assert not read_log(["vLLM API server version 0.33.0", *unknown]).good
