"""`k3 doctor`: what looks wrong in a log, at an address, or in a folder, from the same knowledge as `k3 up`."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from k3stack.errors import InputError, K3Error, UsageError
from k3stack.launch.findings import Finding, Findings, Status
from k3stack.launch.knowledge import failures
from k3stack.launch.logfiles import logs_in, read_stdin, read_text
from k3stack.launch.recognise import Cause, Diagnosis, recognise
from k3stack.launch.unknown import Part, kind_of
from k3stack.ports import is_address

__all__ = [
    "examine",
    "examine_endpoint",
    "examine_folder",
    "examine_log",
    "examine_logs",
    "finding_of",
    "log_findings",
]

_MARKER = re.compile(r"<\|(?:open|close|sep|end_of_msg)\|>")


def examine(subject: str) -> Findings:
    """Look at a log file, an address or a folder; `-` is standard input.

    Raises:
        UsageError: it is none of these.
    """
    began = time.perf_counter()
    if is_address(subject):
        findings = tuple(examine_endpoint(subject))
    elif Path(subject).is_dir():
        logs = logs_in(Path(subject))
        findings = tuple(examine_logs(Path(subject), logs) if logs else examine_folder(subject))
    elif subject == "-" or Path(subject).exists():
        findings = tuple(examine_log(subject))
    else:
        hint = "Give a log file, an address (http://...), or the folder of a checkpoint or of logs."
        raise UsageError("is no file, no folder and no address", where=subject, hint=hint)
    return Findings(subject, findings, time.perf_counter() - began)


def examine_log(subject: str) -> Iterator[Finding]:
    """What a log says.

    Raises:
        InputError: it cannot be read, or is empty.
    """
    text = read_stdin() if subject == "-" else read_text(Path(subject))
    if not text.strip():
        raise InputError("is empty", where=subject, hint="Give what the server printed, from its first line.")
    yield from log_findings(recognise(text))


def examine_logs(folder: Path, paths: list[Path]) -> Iterator[Finding]:
    """What the logs of several ranks, nodes or pods say together.

    The first cause is the earliest, where the lines have times; those of ranks that only waited for others come last.
    """
    told = [(path.relative_to(folder), recognise(read_text(path))) for path in paths]
    waiting = {one.id for one in failures() if one.waits}
    said = [(path, cause) for path, found in told for cause in found.causes]
    said.sort(key=lambda one: (one[1].symptom, one[1].id in waiting, one[1].when or "~"))
    if any(not cause.symptom for _, cause in said):
        said = [(path, cause) for path, cause in said if not cause.symptom]
    status = Status.FAIL
    for name in dict.fromkeys(cause.id for _, cause in said):
        where = [path for path, cause in said if cause.id == name]
        cause = next(cause for _, cause in said if cause.id == name)
        yield replace(finding_of(cause, status), measured=f"{_which(where)}, {_measured(cause)}")
        status = Status.WARN
    errors = [(path, found.first_error, found.part) for path, found in told if found.first_error is not None]
    if errors:
        measured = f"{_which([path for path, _, _ in errors])}: {errors[0][1]}"
        yield replace(_unknown(str(errors[0][1]), errors[0][2], status), measured=measured)
    if not said and not errors:
        ready = sum(found.ready for _, found in told)
        seen = f"{len(told)} logs, {ready} of a server that became ready: no failure that is known"
        yield Finding("log", "the logs", Status.PASS, seen)


def _which(paths: list[Path]) -> str:
    names = list(dict.fromkeys(map(str, paths)))
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def log_findings(diagnosis: Diagnosis) -> Iterator[Finding]:
    """A diagnosis as findings: the first cause fails, later ones are warnings, and their echoes are left out."""
    causes = [cause for cause in diagnosis.causes if not cause.symptom] or list(diagnosis.causes)
    for at, cause in enumerate(causes):
        yield finding_of(cause, Status.FAIL if at == 0 else Status.WARN)
    if diagnosis.first_error is not None:
        yield _unknown(diagnosis.first_error, diagnosis.part, Status.WARN if causes else Status.FAIL)
    if not diagnosis.failed:
        said = "the server became ready, and nothing known went wrong after that"
        yield Finding(
            "log", "the log", Status.PASS, said if diagnosis.ready else "nothing that is known to be a failure"
        )
    if diagnosis.of_a_request is not None:
        yield _of_a_request(diagnosis.of_a_request, diagnosis.part)


def _of_a_request(error: str, part: Part | None) -> Finding:
    return _raised("request-error", "an error of a request", Status.WARN, error, part, "The server went on after it.")


def _unknown(error: str, part: Part | None, status: Status) -> Finding:
    fix = "This is no failure that k3stack knows; the engine's issue tracker may."
    return _raised("first-error", "the first error of the log", status, error, part, fix)


def _raised(name: str, title: str, status: Status, error: str, part: Part | None, fix: str) -> Finding:
    """An error that nobody knows, with what its class and its part tell."""
    where = f", in {part.name}" if part else ""
    words = (fix, kind_of(error), part.advice if part else "")
    return Finding(name, title + where, status, error, " ".join(filter(None, words)))


def _measured(cause: Cause) -> str:
    return f"line {cause.line}: {cause.quote}" if cause.line is not None else cause.quote


def finding_of(cause: Cause, status: Status) -> Finding:
    """A cause as a finding."""
    after = " (follows from another failure)" if cause.symptom else ""
    return Finding(
        cause.id,
        cause.title + after,
        status,
        _measured(cause),
        f"{cause.cause} {cause.fix}",
        f"{cause.source}, {cause.date}",
    )


def examine_folder(subject: str) -> Iterator[Finding]:
    """What is wrong with a checkpoint, in the doctor's words."""
    from k3stack.checkpoint.inspect import inspect
    from k3stack.checkpoint.source import open_source

    try:
        report = inspect(open_source(subject))
    except K3Error as error:
        yield Finding("checkpoint", "the checkpoint", Status.FAIL, error.what, error.hint or "", "k3 inspect")
        return
    for fault in report.faults:
        many = f" ({fault.count:,} times)" if fault.count > 1 else ""
        what = f"{fault.where} {fault.what}{many}"
        yield Finding(fault.kind.value.replace(" ", "-"), fault.kind.value, Status.FAIL, what, _FIX, "k3 inspect")
    if report.sound:
        said = f"scheme {report.scheme}, {report.shards_found} shards, no fault found"
        yield Finding("checkpoint", "the checkpoint", Status.PASS, said)
    if report.not_looked and not report.not_looked.startswith("Everything"):
        yield Finding("not-looked", "what was not looked at", Status.WARN, report.not_looked, "k3 inspect --read all")
    yield from _small_files(Path(subject))


_FIX = "Fetch the named file again; a conversion is resumed by running `k3 convert` again."

_SMALL = ("tokenizer_config.json", "tiktoken.model", "tokenizer.json", "generation_config.json")


def _small_files(folder: Path) -> Iterator[Finding]:
    """Files that an engine opens besides the weights."""
    there = [name for name in _SMALL if (folder / name).is_file()]
    if not {"tiktoken.model", "tokenizer.json"} & set(there):
        yield Finding(
            "tokenizer",
            "the tokenizer's files",
            Status.WARN,
            "neither tiktoken.model nor tokenizer.json is there: vLLM and SGLang need one",
            "Copy the small files of moonshotai/Kimi-K3 into the folder.",
            "k3stack",
        )


def examine_endpoint(url: str) -> Iterator[Finding]:
    """Health, models, metrics and one small request."""
    import httpx

    base = url.rstrip("/").removesuffix("/v1")
    with httpx.Client(base_url=base, timeout=httpx.Timeout(30.0, connect=5.0)) as client:
        try:
            health = client.get("/health")
        except httpx.HTTPError as error:
            yield Finding(
                "reachable",
                "the server answers",
                Status.FAIL,
                f"{type(error).__name__}: {error}",
                "Is it started, and does it listen on this address? `k3 status` lists what k3stack started here; "
                "a server that is still loading does not listen yet.",
            )
            return
        yield _health(health.status_code)
        model, finding = _models(client)
        yield finding
        yield from _metrics(client)
        if model is not None:
            yield from _request(client, model)


def _health(code: int) -> Finding:
    if code in (200, 404):  # not every server in front of an engine has one
        return Finding("health", "/health", Status.PASS, f"HTTP {code}")
    fix = "The engine behind this address is starting or dead: run `k3 doctor` on its log."
    return Finding("health", "/health", Status.FAIL, f"HTTP {code}", fix)


def _models(client: Any) -> tuple[str | None, Finding]:
    import httpx

    try:
        answer = client.get("/v1/models")
        names = [str(one["id"]) for one in answer.json()["data"]]
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        fix = "Point at the OpenAI-compatible door of the server; one that wants a key answers 401 here."
        return None, Finding("models", "/v1/models", Status.FAIL, f"no list of models ({error!r:.120})", fix)
    if not names:
        return None, Finding("models", "/v1/models", Status.FAIL, "the list is empty", "The server has no model.")
    return names[0], Finding("models", "/v1/models", Status.PASS, ", ".join(names))


_GAUGES = {
    "waiting": ("vllm:num_requests_waiting", "sglang:num_queue_reqs"),
    "running": ("vllm:num_requests_running", "sglang:num_running_reqs"),
    "cache": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage"),
    "preempted": ("vllm:num_preemptions_total",),
}


def _metrics(client: Any) -> Iterator[Finding]:
    import httpx

    try:
        answer = client.get("/metrics")
        text = answer.text if answer.status_code == 200 else ""
    except httpx.HTTPError:
        text = ""
    values = {name: _gauge(text, series) for name, series in _GAUGES.items()}
    if all(value is None for value in values.values()):
        fix = "SGLang needs --enable-metrics for them."
        yield Finding("metrics", "/metrics", Status.NOT_APPLICABLE, "no metrics of vLLM or SGLang", fix)
        return
    said = ", ".join(f"{name} {value:g}" for name, value in values.items() if value is not None)
    yield Finding("metrics", "/metrics", Status.PASS, said)
    waiting, cache, preempted = values["waiting"] or 0, values["cache"] or 0, values["preempted"] or 0
    if waiting > 0 and cache > 0.95:
        fix = "Requests wait because the cache is full: lower concurrency or context, or ask `k3 plan` for more room."
        yield Finding("cache-full", "the cache is full", Status.WARN, said, fix, "k3 plan")
    elif waiting > 0 and cache < 0.5:
        fix = "Requests wait though the cache has room: --max-num-seqs (SGLang, KDA state slots) limits them."
        yield Finding("slots-full", "requests wait for a slot", Status.WARN, said, fix, "sglang#38846")
    if preempted > 0:
        fix = "Each preempted request is computed again: lower --max-num-seqs, or give the cache more memory."
        yield Finding("preempted", "requests were preempted", Status.WARN, f"{preempted:g} so far", fix, "vLLM docs")


def _gauge(text: str, series: tuple[str, ...]) -> float | None:
    """The sum (for usage shares, the largest) of a metric over its labels."""
    for name in series:
        found = re.findall(rf"^{re.escape(name)}(?:{{[^}}]*}})? ([\d.eE+-]+)$", text, re.MULTILINE)
        if found:
            values = [float(value) for value in found]
            return max(values) if "usage" in name else sum(values)
    return None


def _request(client: Any, model: str) -> Iterator[Finding]:
    import httpx

    body = {"model": model, "messages": [{"role": "user", "content": "Say: ready"}], "max_tokens": 16}
    began = time.perf_counter()
    try:
        answer = client.post("/v1/chat/completions", json=body, timeout=60.0)
    except httpx.HTTPError as error:
        fix = "The door is open and the engine behind it does not answer: run `k3 doctor` on its log."
        yield Finding("request", "a small request", Status.FAIL, f"{type(error).__name__} after 60 s", fix)
        return
    took = f"HTTP {answer.status_code} in {time.perf_counter() - began:.2f} s"
    try:
        message = answer.json()["choices"][0]["message"] if answer.status_code == 200 else None
    except (ValueError, KeyError, IndexError, TypeError):
        message = None
    if not isinstance(message, dict):
        fix = "See the server's log around this request with `k3 doctor LOG`."
        yield Finding("request", "a small request", Status.FAIL, f"{took}: {answer.text[:200]}", fix)
        return
    yield Finding("request", "a small request", Status.PASS, took)
    yield from _answer(message)


def _answer(message: dict[str, Any]) -> Iterator[Finding]:
    text = str(message.get("content") or "")
    reasoning = str(message.get("reasoning") or message.get("reasoning_content") or "")
    if _MARKER.search(text):
        fix = (
            "The server does not parse Kimi-K3's channels: start it with --reasoning-parser kimi_k3 and "
            "--tool-call-parser kimi_k3, or put `k3 guard` in front."
        )
        source = "github.com/sgl-project/sglang/issues/39583, 2026-09-22"
        yield Finding("markers", "raw markers in the answer", Status.FAIL, repr(text[:120]), fix, source)
    if re.fullmatch(r"!{8,}", (text or reasoning).strip()):
        fix = "The numbers in the engine became NaN: restart it, and take the newest release."
        source = "github.com/vllm-project/vllm/issues/42426, 2026-09-22"
        yield Finding(
            "exclamation-marks", "the answer is only '!'", Status.FAIL, text[:40] or reasoning[:40], fix, source
        )
