"""How long the XTML parsers take for one long argument that comes token by token.

    python benchmarks/xtml.py [--vllm PYTHON] [--sglang PYTHON] [--curve-bytes 10000000]

Prints the total for 100 KB in one-token pieces and the time per piece along the way, for k3stack here and for the
real parsers of vLLM and SGLang in the environments given, vLLM also with k3stack's plugin; an engine that is not
given or has no parser is said to be absent. All run one after the other in the same run. The engines' own parsers
read everything again for each piece, so their curve stops at `--engine-bytes`.

A piece is 4 bytes: about what one token of source code is (estimated, not measured).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k3stack.xtml import Parser

TARGET_BYTES = 100_000
TOOL = "write_file"
HEAD = [
    *(
        "why",
        "<|close|>",
        "think",
        "<|sep|>",
        "<|open|>",
        "response",
        "<|sep|>",
        "<|close|>",
        "response",
        "<|sep|>",
    ),
    *("<|open|>", "tools", "<|sep|>", "<|open|>", "call", f' tool="{TOOL}" index="1"', "<|sep|>"),
    *("<|open|>", "argument", ' key="text" type="string"', "<|sep|>"),
]
TAIL = [
    *("<|close|>", "argument", "<|sep|>", "<|close|>", "call", "<|sep|>"),
    *("<|close|>", "tools", "<|sep|>", "<|close|>", "message", "<|sep|>"),
]
# Every eighth piece holds a "<", as source code does: that one cannot take the shortest way through the parser.
PIECES = ["def ", "f(x)", ":\n  ", "if x", " < 1", ": re", "turn", " 2\n "]


@dataclass(frozen=True)
class Timing:
    """One message: total seconds, and the seconds of each tenth of the argument's pieces."""

    argument_bytes: int
    pieces: int
    total_s: float
    tenths_s: list[float]

    @property
    def last_over_first(self) -> float:
        return self.tenths_s[-1] / self.tenths_s[0]


def argument_pieces(size: int) -> list[str]:
    """The argument in pieces, from the same eight over and over."""
    count = size // 4
    return (PIECES * (count // len(PIECES) + 1))[:count]


def time_ours(size: int) -> Timing:
    """Feed one message to our parser, piece by piece."""
    pieces = argument_pieces(size)
    parser = Parser("think", tools=[TOOL])
    tenth = len(pieces) // 10
    tenths: list[float] = []
    begin = time.perf_counter()
    for piece in HEAD:
        parser.feed(piece)
    for start in range(0, tenth * 10, tenth):
        before = time.perf_counter()
        for piece in pieces[start : start + tenth]:
            parser.feed(piece)
        tenths.append(time.perf_counter() - before)
    for piece in TAIL:
        parser.feed(piece)
    parser.finish()
    total = time.perf_counter() - begin
    if len(parser.message.tool_calls[0].arguments["text"]) != 4 * tenth * 10:
        sys.exit("the argument did not come through")
    return Timing(size, len(pieces), total, tenths)


def time_engine(python: str, size: int, parser: Sequence[str]) -> tuple[str, Timing | None]:
    """The same message through an engine's parsers, in its own environment."""
    job = {"head": HEAD, "tail": TAIL, "pieces": argument_pieces(size), "tool": TOOL, "parser": list(parser)}
    done = subprocess.run(
        [python, str(Path(__file__).with_name("xtml_engine.py"))],
        input=json.dumps(job),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "src")},
    )
    if done.returncode != 0:
        return f"{python}: {done.stderr.strip().rpartition(chr(10))[2]}", None
    answer: dict[str, Any] = json.loads(done.stdout)
    timing = Timing(size, size // 4, answer["total_s"], answer["tenths_s"])
    return f"{answer['engine']} {answer['version']}", timing


def say(name: str, timing: Timing) -> None:
    """One line of the curve."""
    tenth = timing.pieces // 10
    first, last = (seconds / tenth * 1e6 for seconds in (timing.tenths_s[0], timing.tenths_s[-1]))
    print(
        f"{name:14} {timing.argument_bytes / 1000:8,.0f} KB {timing.pieces:10,} pieces"
        f" {timing.total_s * 1000:9,.1f} ms; us/piece {first:8.2f} in the first tenth, {last:8.2f} in the last"
        f" (x{timing.last_over_first:.2f})",
        flush=True,
    )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--vllm", metavar="PYTHON")
    options.add_argument("--sglang", metavar="PYTHON")
    options.add_argument("--curve-bytes", type=int, default=10_000_000)
    options.add_argument("--engine-bytes", type=int, default=TARGET_BYTES)
    chosen = options.parse_args()
    time_ours(TARGET_BYTES)  # warm
    best = min((time_ours(TARGET_BYTES) for _ in range(5)), key=lambda timing: timing.total_s)
    say("k3stack", best)
    print(f"target, under 50 ms for 100 KB: {'met' if best.total_s < 0.05 else 'MISSED'}")
    size = TARGET_BYTES * 10
    while size <= chosen.curve_bytes:
        say("k3stack", time_ours(size))
        size *= 10
    for engine, python, parser in (
        ("vllm", chosen.vllm, ("kimi_k3",)),
        ("vllm + plugin", chosen.vllm, ("k3stack", "k3stack.xtml.engines.vllm_plugin")),
        ("sglang", chosen.sglang, ("kimi_k3",)),
    ):
        if python is None:
            print(f"{engine:14} absent: no python given")
            continue
        for size in (chosen.engine_bytes // 4, chosen.engine_bytes):
            name, timing = time_engine(python, size, parser)
            if timing is None:
                print(f"{engine:14} absent: {name}")
                break
            say(engine, timing)
            if size == TARGET_BYTES:
                ratio = timing.total_s / best.total_s
                print(f"{name}, parser {parser[0]}: {ratio:,.1f} times k3stack's own time at 100 KB")


if __name__ == "__main__":
    main()
