"""Why a start is over: the log's word, and what the machine says where the log is silent."""

from __future__ import annotations

import re
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from k3stack.launch.knowledge import failure
from k3stack.launch.launcher import Launched
from k3stack.launch.parts import Lost
from k3stack.launch.recognise import Cause, Diagnosis, Ended, recognise
from k3stack.ports import holder_of

__all__ = [
    "after_end",
    "alarm",
    "foreign_door",
    "full_disks",
    "lost_part",
    "refused_request",
    "stopped_process",
    "stuck",
]

_ALARM = re.compile(r"[Ee]rror|ERROR|Exception|NCCL WARN|[Kk]illed|[Ff]atal|Traceback|died|refused|failed")

_SIGKILL = re.compile(r"[:=] -9\b|code -9\b")

_FULL_BYTES = 2**20


def alarm(line: str) -> bool:
    """Whether a line is worth a look for failures."""
    return _ALARM.search(line) is not None


def after_end(launched: Launched, log: Path, lost: Lost | None = None) -> Diagnosis:
    """The engine ended, or could not even be started; `lost` was gone before it."""
    from k3stack.launch.logfiles import read_text

    if launched.refused is not None:
        words = f"{launched.start.words[0]}: {launched.refused}"
        cause = _own(
            "cannot-start",
            "the command cannot be started",
            words,
            "The program is not there, or may not be run.",
            "Name the Python that has the engine with --python, or use --docker.",
        )
        return Diagnosis((cause,), None, False, None)
    text = read_text(log) if log.is_file() else ""
    found = recognise(text, launched.ended, launched.start.engine)
    full = full_disks((log.parent, Path(tempfile.gettempdir()), Path.home()))
    if full and not any(one.id == "disk-full" for one in found.causes):
        # What is written last is lost on a full disk, the reason with it: so the disk comes first.
        said = _known("disk-full", f"{full[0]} has no room left")
        return replace(found, causes=(said, *found.causes))
    found = _of_whom(found, launched, lost)
    if not found.causes and found.first_error is None:
        return replace(found, causes=(_silent_end(launched.ended),))
    return found


def lost_part(launched: Launched, log: Path, lost: Lost) -> Diagnosis:
    """A part of the engine is gone and its first process has not ended yet; what the log says, or else that."""
    from k3stack.launch.logfiles import read_text

    found = recognise(read_text(log) if log.is_file() else "", None, launched.start.engine)
    return _of_whom(found, launched, lost)


def _of_whom(found: Diagnosis, launched: Launched, lost: Lost | None) -> Diagnosis:
    """With the part that is gone where the log does not tell why, and with what the kernel says of SIGKILL."""
    if _by_signal(found):
        if launched.spared():
            return replace(found, causes=(_killed(found.causes[0].quote), *found.causes[1:]))
    elif lost is not None and _only_echoes(found):
        return replace(found, causes=(_gone(launched, lost), *found.causes))
    return found


def _only_echoes(found: Diagnosis) -> bool:
    """Whether the log tells that something failed, or nothing at all, but not what."""
    return found.first_error is None and all(cause.symptom for cause in found.causes)


def _by_signal(found: Diagnosis) -> bool:
    """Whether SIGKILL is all that speaks of a host without memory: how it ended, or the log's word for that."""
    if not found.causes or found.causes[0].id != "host-oom":
        return False
    return found.causes[0].line is None or _SIGKILL.search(found.causes[0].quote) is not None


def _gone(launched: Launched, lost: Lost) -> Cause:
    said = f"{lost} and wrote no error"
    return _killed(said) if launched.spared() else _known("host-oom", said)


def _killed(said: str) -> Cause:
    return _own(
        "killed",
        "a process of the engine was killed from outside",
        said,
        "It wrote no error, and the kernel has killed nothing for want of memory since the start: so somebody did.",
        "Look for kill -9, a scheduler's or a container's limit, and at `dmesg -T`; then start again.",
    )


def _silent_end(ended: Ended | None) -> Cause:
    said = f"the process {ended}" if ended else "the process ended"
    return _own(
        "ended-silently",
        "the engine ended before it was ready, and said nothing that is known",
        said,
        "The log holds no error.",
        "Read the log's last lines; start again with VLLM_LOGGING_LEVEL=DEBUG (SGLang, --log-level debug).",
    )


def full_disks(folders: tuple[Path, ...]) -> tuple[Path, ...]:
    """Those folders whose disk has no room left."""
    found = []
    for folder in folders:
        try:
            if shutil.disk_usage(folder).free < _FULL_BYTES:
                found.append(folder)
        except OSError:
            continue
    return tuple(found)


def foreign_door(launched: Launched, holder: str) -> Diagnosis:
    """Somebody else answers at our port."""
    said = f"port {launched.start.port} is answered by {holder or holder_of(launched.start.port)}, not by this engine"
    return Diagnosis((_known("port-in-use", said),), None, False)


def refused_request(launched: Launched, said: str) -> Diagnosis:
    """It is healthy and does not answer."""
    cause = _own(
        "no-first-token",
        "the server is healthy and does not answer",
        said,
        "The one-token request that every start ends with was refused.",
        f"Look at the log with `k3 doctor {launched.log}`; ask /v1/models for the names it serves.",
    )
    return Diagnosis((cause,), None, True)


def stopped_process(pids: list[int]) -> Diagnosis:
    """A process is stopped (SIGSTOP, or a debugger)."""
    cause = _own(
        "stopped",
        "a process of the engine is stopped",
        f"pid {', '.join(map(str, pids))} is in the state T: it waits for SIGCONT",
        "Somebody stopped it (SIGSTOP, Ctrl-Z, a debugger), and the others wait for it.",
        "Let it go on with kill -CONT, and start again.",
    )
    return Diagnosis((cause,), None, False)


_STUCK = {
    "starting": "Ranks that wait for each other, or a lock that another process holds, are the usual reasons.",
    "downloading": "The network is the usual reason: look whether the hub can be reached.",
    "loading weights": "A network disk that does not answer is the usual reason; `dmesg` and `df` on it tell.",
    "measuring and compiling": "A kernel's compiler that waits for a lock (another process compiles) does this.",
    "capturing graphs": "A collective operation in which one rank is missing does this: compare the ranks' logs.",
}


def stuck(launched: Launched, said: str, phase: str) -> Diagnosis:
    """Nothing moves any more; what the log says of it, if it does."""
    from k3stack.launch.logfiles import read_text

    text = read_text(launched.log) if launched.log.is_file() else ""
    found = recognise(text, None, launched.start.engine)
    cause = _own(
        "stuck",
        f"the start is stuck in the phase: {phase}",
        said,
        _STUCK.get(phase, "No log line, no processor time and no reading: it waits for something."),
        "See where with `py-spy dump --pid PID`; for several ranks set NCCL_DEBUG=INFO and start again.",
    )
    return replace(found, causes=(*(one for one in found.causes if not one.symptom), cause))


def _known(name: str, quote: str) -> Cause:
    one = failure(name)
    fix = re.sub(r"\{\w+\|([^}]*)\}", r"\1", one.fix)
    return Cause(one.id, one.title, one.cause, fix, one.source, one.date.isoformat(), None, quote)


def _own(name: str, title: str, quote: str, cause: str, fix: str) -> Cause:
    return Cause(name, title, cause, fix, "k3stack", "2026-11-29", None, quote)
