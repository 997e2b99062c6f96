"""Reading a server log: which patches were active in which process, and which should have been."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from .knowledge import expected_numbers
from .patch import State
from .registry import all_patches
from .report import HEAD

__all__ = ["LogReport", "ProcessReport", "Source", "read_log"]

_SUMMARY = re.compile(
    re.escape(HEAD) + r" process=(?P<name>\S+) pid=(?P<pid>\d+) vllm=(?P<vllm>\S+) (?P<states>(?:\d+=[\w-]+ ?)+)"
)
_FAILED = re.compile(re.escape(HEAD) + r" patch (?P<number>\d+) .*? cannot apply: (?P<why>.*)$")
_PREFIX = re.compile(r"\((?P<name>[^()]+?) pid=(?P<pid>\d+)\)")
_VERSION = re.compile(r"(?:API server version|vLLM version|V1 LLM engine \(v)\s*(?P<vllm>\d+\.\d+\.\d+)")
_LOADED = re.compile(r"Loading weights took|Starting to load model|Model loading took")
"""What a process says only if the model's weights are in it."""
_QUANTIZED = re.compile(r"V1 LLM engine .*\bquantization=(?P<name>\w+)")
_PATCHED = "modelopt"
"""How vLLM names the scheme of NVIDIA's checkpoints, or begins to; the patches are for these."""


class Source(StrEnum):
    """Who a process's lines are from."""

    K3STACK = "k3stack"
    NVIDIA = "nvidia"
    """Lines of NVIDIA's patch file: it names what it applied and nothing else."""
    SILENT = "silent"
    """The process loaded a model and said nothing about patches: they did not reach it."""


@dataclass(frozen=True, slots=True)
class ProcessReport:
    """One process of the server: its name and pid in the log, and its patches' states by number."""

    name: str
    pid: int
    states: dict[int, State]
    source: Source


@dataclass(frozen=True, slots=True)
class LogReport:
    """A server log, read.

    `expected` are the patches that this vLLM release needs for nvidia/Kimi-K3-NVFP4, None if not known; none where the
    log names another `quantization`. `missing` are those that some process with the model does not have, and those
    that could not apply.
    """

    vllm: str | None
    quantization: str | None
    processes: tuple[ProcessReport, ...]
    failures: tuple[str, ...]
    expected: tuple[int, ...] | None
    missing: tuple[int, ...]

    @property
    def seen(self) -> bool:
        """Whether any process said anything about patches."""
        return any(process.source is not Source.SILENT for process in self.processes)

    @property
    def good(self) -> bool:
        """Whether every process has what it needs, as far as the log tells."""
        return not self.missing and (self.seen or self.expected == ())


@dataclass(slots=True)
class _Reader:
    """What has been read so far. Pid 0 stands for a log without process names."""

    vllm: str | None = None
    quantization: str | None = None
    names: dict[int, str] = field(default_factory=dict)
    summaries: dict[int, dict[int, State]] = field(default_factory=dict)
    applied: dict[int, set[int]] = field(default_factory=dict)
    loaded: set[int] = field(default_factory=set)
    failures: list[str] = field(default_factory=list)

    def read(self, line: str) -> None:
        if found := _VERSION.search(line):
            self.vllm = self.vllm or found["vllm"]
        if found := _QUANTIZED.search(line):
            self.quantization = found["name"]
        prefix = _PREFIX.search(line)
        pid = int(prefix["pid"]) if prefix else 0
        if found := _SUMMARY.search(line):
            self.vllm = self.vllm or found["vllm"]
            pid = int(found["pid"])
            self.names[pid] = prefix["name"] if prefix else found["name"]
            pairs = (word.split("=") for word in found["states"].split())
            self.summaries[pid] = {int(number): State(state) for number, state in pairs}
            return
        self.names.setdefault(pid, prefix["name"] if prefix else "unnamed")
        if found := _FAILED.search(line):
            self.failures.append(f"patch {found['number']}: {found['why']}")
        for patch in all_patches():
            if patch.line in line:
                self.applied.setdefault(pid, set()).add(patch.number)
        if _LOADED.search(line):
            self.loaded.add(pid)

    def processes(self) -> tuple[ProcessReport, ...]:
        found = {pid: ProcessReport(self.names[pid], pid, s, Source.K3STACK) for pid, s in self.summaries.items()}
        nameless = 0 if found else None  # lines without a process belong to some summary, if there is one
        for pid, numbers in self.applied.items():
            if pid not in found and pid != nameless:
                states = dict.fromkeys(sorted(numbers), State.APPLIED)
                found[pid] = ProcessReport(self.names[pid], pid, states, Source.NVIDIA)
        for pid in sorted(self.loaded):
            if pid not in found and pid != nameless:
                found[pid] = ProcessReport(self.names[pid], pid, {}, Source.SILENT)
        return tuple(found.values())


def read_log(lines: Iterable[str]) -> LogReport:
    """Read a server log."""
    reader = _Reader()
    for line in lines:
        reader.read(line)
    processes = reader.processes()
    expected = expected_numbers(reader.vllm) if reader.vllm else None
    other = reader.quantization is not None and not reader.quantization.startswith(_PATCHED)
    expected = () if other else expected
    failed = {n for process in processes for n, state in process.states.items() if state is State.CANNOT}
    absent = {
        number
        for number in expected or ()
        if not processes or any(process.states.get(number) is not State.APPLIED for process in processes)
    }
    failures = tuple(dict.fromkeys(reader.failures))
    return LogReport(reader.vllm, reader.quantization, processes, failures, expected, tuple(sorted(failed | absent)))
