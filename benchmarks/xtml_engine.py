"""Part of benchmarks/xtml.py: times an engine's parsers. Run by the engine's python, with a job on stdin."""

# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import importlib.util
import json
import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROBE = Path(__file__).parents[1] / "src" / "k3stack" / "xtml" / "engines" / "probe.py"


def load_probe() -> Any:
    """The probe, from its file: k3stack is not installed beside the engine."""
    spec = importlib.util.spec_from_file_location("probe", PROBE)
    if spec is None or spec.loader is None:
        sys.exit(f"{PROBE} is missing")
    probe = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(probe)
    return probe


def vllm_step(engine: Any, tools: list[Any]) -> Callable[[str, bool], list[Any]]:
    """Feeds one piece through vLLM's stream processor; gives the calls that came out."""
    send = engine.stream(engine.request({"starts_in": "think", "tool_choice": "auto"}, tools, stream=True))

    def step(piece: str, last: bool) -> list[Any]:
        delta = send(piece, last)
        return [call.function.arguments for call in (delta.tool_calls if delta else [])]

    return step


def sglang_step(engine: Any, tools: list[Any]) -> Callable[[str, bool], list[Any]]:
    """Feeds one piece through SGLang's two parsers; gives the calls that came out."""
    reasoning_parser, call_parser = engine.parsers({"starts_in": "think", "tool_choice": "auto"}, tools)

    def step(piece: str, last: bool) -> list[Any]:
        _, text = reasoning_parser.parse_stream_chunk(piece)
        calls = call_parser.parse_stream_chunk(text)[1] if text else []
        return [call.parameters for call in calls]

    return step


def main() -> None:
    output, sys.stdout = sys.stdout, sys.stderr
    logging.disable(logging.CRITICAL)
    job = json.load(sys.stdin)
    probe = load_probe()
    engine, version = probe.installed_engine()
    if not engine:
        sys.exit("no engine is installed there")
    tools = [{"type": "function", "function": {"name": job["tool"], "parameters": {"type": "object"}}}]
    make_step = vllm_step if engine == "vllm" else sglang_step
    step = make_step(probe.ENGINES[engine](*job["parser"]), tools)
    pieces = job["pieces"]
    tenth = len(pieces) // 10
    tenths: list[float] = []
    calls: list[Any] = []
    begin = time.perf_counter()
    for piece in job["head"]:
        calls += step(piece, False)
    for start in range(0, tenth * 10, tenth):
        before = time.perf_counter()
        for piece in pieces[start : start + tenth]:
            calls += step(piece, False)
        tenths.append(time.perf_counter() - before)
    for number, piece in enumerate(job["tail"]):
        calls += step(piece, number == len(job["tail"]) - 1)
    total = time.perf_counter() - begin
    if len(json.loads("".join(call or "" for call in calls))["text"]) != 4 * tenth * 10:
        sys.exit("the argument did not come through")
    json.dump({"engine": engine, "version": version, "total_s": total, "tenths_s": tenths}, output)


if __name__ == "__main__":
    main()
