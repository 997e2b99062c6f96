"""The lines that the patches leave in a server's log, and how to read them back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .patch import Outcome, State
from .registry import all_patches

__all__ = [
    "LogReport",
    "ProcessReport",
    "applied_lines",
    "failure_lines",
    "front_end_lines",
    "read_log",
    "summary_line",
]

_HEAD = "Kimi-K3 runtime patches:"
_SUMMARY = re.compile(
    re.escape(_HEAD) + r" process=(?P<name>\S+) pid=(?P<pid>\d+) vllm=(?P<vllm>\S+) (?P<states>(?:\d+=[\w-]+ ?)+)"
)
_PREFIX = re.compile(r"^\((?P<name>[^()]+?) pid=(?P<pid>\d+)\)")
_VERSION = re.compile(
    r"(?:vLLM API server version|vLLM server version|V1 LLM engine \(v)\s*(?P<vllm>\d+\.\d+\.\d+)"
)
_FAILED = re.compile(re.escape(_HEAD) + r" patch (?P<number>\d+) .*? cannot apply: (?P<why>.*)$")


def applied_lines(outcomes: Iterable[Outcome]) -> list[str]:
    """One line for each patch that was applied and verified; for 2, 4 and 5 the words of NVIDIA's patch file."""
    return [outcome.line for outcome in outcomes if outcome.state is State.APPLIED]


def failure_lines(outcomes: Iterable[Outcome]) -> list[str]:
    """One line for each patch that cannot apply."""
    return [
        f"{_HEAD} patch {outcome.number} ({outcome.title}) cannot apply: {outcome.why}"
        for outcome in outcomes
        if outcome.state is State.CANNOT
    ]


def front_end_lines(outcomes: Iterable[Outcome], environ: Mapping[str, str]) -> list[str]:
    """What the Rust front-end keeps from being patched, if it is on."""
    if environ.get("VLLM_USE_RUST_FRONTEND", "0") in ("", "0"):
        return []
    concerned = {patch.number for patch in all_patches() if patch.front_end}
    missing = [o for o in outcomes if o.number in concerned and o.state in (State.APPLIED, State.CANNOT)]
    return [
        f"{_HEAD} VLLM_USE_RUST_FRONTEND is on: patch {o.number} ({o.title}) acts in the API server and cannot "
        "reach a front-end that is not Python; set VLLM_USE_RUST_FRONTEND=0"
        for o in missing
    ]


def summary_line(outcomes: Iterable[Outcome], vllm: str, process: str, pid: int) -> str:
    """Everything in one line, for `k3 patches log`."""
    states = " ".join(f"{outcome.number}={outcome.state.value}" for outcome in outcomes)
    return f"{_HEAD} process={process} pid={pid} vllm={vllm} {states}"


@dataclass(frozen=True, slots=True)
class ProcessReport:
    """What one process of a server said about the patches.

    `states` maps patch number to state; for a process that only printed the lines of NVIDIA's patch file, the
    patches it named. `source` is "k3stack" or "nvidia".
    """

    name: str
    pid: int
    states: dict[int, State]
    source: str


@dataclass(frozen=True, slots=True)
class LogReport:
    """A server log, read.

    `missing` are the patches that this vLLM release needs, as far as is known, and that some process with K3's
    model does not have; `seen` is False when no process said anything.
    """

    vllm: str | None
    processes: tuple[ProcessReport, ...]
    failures: tuple[str, ...]
    expected: tuple[int, ...] | None
    missing: tuple[int, ...]

    @property
    def seen(self) -> bool:
        """Whether any process said anything about patches."""
        return bool(self.processes)


def read_log(lines: Iterable[str]) -> LogReport:
    """Read a server log: which patches were active in which process, and which should have been."""
    from .knowledge import expected_numbers

    vllm: str | None = None
    processes: dict[int, ProcessReport] = {}
    named: dict[int, tuple[str, set[int]]] = {}
    failures: list[str] = []
    by_line = {patch.line: patch.number for patch in all_patches()}
    for line in lines:
        if found := _VERSION.search(line):
            vllm = vllm or found["vllm"]
        if found := _SUMMARY.search(line):
            vllm = vllm or found["vllm"]
            prefix = _PREFIX.match(line)
            name = prefix["name"] if prefix else found["name"]
            processes[int(found["pid"])] = ProcessReport(
                name, int(found["pid"]), _states(found["states"]), "k3stack"
            )
        elif found := _FAILED.search(line):
            failures.append(f"patch {found['number']}: {found['why']}")
        else:
            number = next((number for text, number in by_line.items() if text in line), None)
            if number is not None:
                prefix = _PREFIX.match(line)
                name, pid = (prefix["name"], int(prefix["pid"])) if prefix else ("unnamed", 0)
                named.setdefault(pid, (name, set()))[1].add(number)
    for pid, (name, numbers) in named.items():
        if pid not in processes and not (pid == 0 and processes):
            processes[pid] = ProcessReport(name, pid, dict.fromkeys(sorted(numbers), State.APPLIED), "nvidia")
    expected = expected_numbers(vllm) if vllm else None
    found_processes = tuple(processes.values())
    return LogReport(
        vllm, found_processes, tuple(dict.fromkeys(failures)), expected, _missing(found_processes, expected)
    )


def _states(text: str) -> dict[int, State]:
    pairs = (word.split("=") for word in text.split())
    return {int(number): State(state) for number, state in pairs}


def _missing(processes: Sequence[ProcessReport], expected: tuple[int, ...] | None) -> tuple[int, ...]:
    """Needed by what is known of the release, or by the process's own probe, and not applied in every process."""
    failed = {n for process in processes for n, state in process.states.items() if state is State.CANNOT}
    absent: set[int] = set()
    for number in expected or ():
        if not processes or any(process.states.get(number) is not State.APPLIED for process in processes):
            absent.add(number)
    return tuple(sorted(failed | absent))
