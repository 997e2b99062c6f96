"""What the guard costs: beside a bare proxy on the same server and client, and LiteLLM's proxy, in one run.

    python -m benchmarks.guard [--litellm PATH_TO_ITS_VENV] [--rounds N]

One scripted upstream on this machine answers with 64 tokens (half reasoning, half content) and one tool call, and once
more with 512, since what a proxy does once per request weighs less in an answer of the usual length. The
rounds of all proxies alternate, so that a busy moment of the machine hits all of them; every figure is the median
over rounds unless it says otherwise. LiteLLM has a virtual environment of its own:

    uv venv .engines/litellm && uv pip install --python .engines/litellm/bin/python 'litellm[proxy]'
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.guard_harness import (
    REPOSITORY,
    free_port,
    median,
    part,
    percentile,
    process,
    request_bytes,
    run_load,
    tree_cpu_seconds,
)

TOKENS, USUAL_TOKENS, LONG_TOKENS, BODY_BYTES = 64, 512, 2000, 4_000_000


@dataclass
class Row:
    """One way to reach the upstream, and what was measured on it."""

    name: str
    port: int
    pid: int = 0
    first_s: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    usual_rates: list[float] = field(default_factory=list)
    core_tokens: list[float] = field(default_factory=list)
    large_first_s: list[float] = field(default_factory=list)


def measure(row: Row, slow: bool) -> None:
    """One round. A slow proxy gets fewer requests, for the same time."""
    paced = request_bytes(row.port, TOKENS, 1, True)
    taken, _ = run_load(row.port, paced, 15 if slow else 60, 1)
    row.first_s += [each.first_s for each in taken]
    flat = request_bytes(row.port, TOKENS, 0, True)
    taken, seconds = run_load(row.port, flat, 64 if slow else 800, 32)
    row.rates.append(len(taken) / seconds)
    usual = request_bytes(row.port, USUAL_TOKENS, 0, True)
    taken, seconds = run_load(row.port, usual, 32 if slow else 320, 32)
    row.usual_rates.append(len(taken) / seconds)
    long = request_bytes(row.port, LONG_TOKENS, 0, False)
    before = tree_cpu_seconds(row.pid) if row.pid else 0.0
    taken, _ = run_load(row.port, long, 4 if slow else 40, 8)
    if row.pid:
        spent = tree_cpu_seconds(row.pid) - before
        row.core_tokens.append(len(taken) * LONG_TOKENS / max(spent, 0.01))
    large = request_bytes(row.port, TOKENS, 0, True, BODY_BYTES)
    taken, _ = run_load(row.port, large, 2 if slow else 5, 1)
    row.large_first_s += [each.first_s for each in taken]


def start_litellm(stack: ExitStack, venv: Path, upstream: int) -> Row:
    port = free_port()
    config = {
        "model_list": [
            {
                "model_name": "kimi-k3",
                "litellm_params": {
                    "model": "openai/kimi-k3",
                    "api_base": f"http://127.0.0.1:{upstream}/v1",
                    "api_key": "sk-benchmark",
                },
            }
        ],
    }
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    path = Path(folder) / "config.yaml"
    path.write_text(json.dumps(config))  # JSON is YAML
    command = [str(venv / "bin/litellm"), "--config", str(path), "--port", str(port), "--host", "127.0.0.1"]
    environment = {
        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_LOG": "ERROR",
        "PATH": f"{venv}/bin:{os.environ['PATH']}",
    }
    return Row("LiteLLM", port, stack.enter_context(process(command, port, environment)))


def table(rows: list[Row]) -> None:
    direct = median(rows[0].first_s)
    large = median(rows[0].large_first_s)
    print(f"{'':16}{'added first token':>22}{'requests/s at 32':>24}{'tokens/s':>12}{'4 MB body, added':>18}")
    lengths = f"{f'{TOKENS} tokens':>12}{f'{USUAL_TOKENS} tokens':>12}"
    print(f"{'':16}{'p50 ms':>11}{'p99 ms':>11}{lengths}{'per core':>12}{'p50 ms':>18}")
    for row in rows:
        added = (median(row.first_s) - direct) * 1000
        worst = (percentile(row.first_s, 0.99) - direct) * 1000
        tokens = f"{median(row.core_tokens):12,.0f}" if row.core_tokens else f"{'':12}"
        body = (median(row.large_first_s) - large) * 1000
        rates = f"{median(row.rates):12,.0f}{median(row.usual_rates):12,.0f}"
        print(f"{row.name:16}{added:11.2f}{worst:11.2f}{rates}{tokens}{body:18.1f}")
    by_name = {row.name: row for row in rows}
    for peer in ("bare proxy", "LiteLLM"):
        if peer in by_name:
            guard, other = by_name["guard"], by_name[peer]
            for length, ours, theirs in (
                (TOKENS, guard.rates, other.rates),
                (USUAL_TOKENS, guard.usual_rates, other.usual_rates),
            ):
                ratio = median([one / another for one, another in zip(ours, theirs, strict=True)])
                print(f"guard / {peer}, requests per second, answers of {length} tokens: {ratio:.2f}")


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--litellm", type=Path, default=REPOSITORY / ".engines/litellm")
    arguments.add_argument("--rounds", type=int, default=5)
    chosen = arguments.parse_args()
    with ExitStack() as stack:
        upstream = free_port()
        stack.enter_context(process(part("upstream", upstream), upstream))
        rows = [Row("direct", upstream)]
        port = free_port()
        bare = {"BARE_UPSTREAM": f"http://127.0.0.1:{upstream}"}
        rows.append(Row("bare proxy", port, stack.enter_context(process(part("bare", port, "granian"), port, bare))))
        port = free_port()
        command = [sys.executable, "-c", "from k3stack.cli.main import main; main()", "guard"]
        command += ["--upstream", f"http://127.0.0.1:{upstream}", "--port", str(port)]
        rows.append(Row("guard", port, stack.enter_context(process(command, port))))
        if (chosen.litellm / "bin/litellm").exists():
            rows.append(start_litellm(stack, chosen.litellm, upstream))
        else:
            print(f"LiteLLM is not in {chosen.litellm}: its row is left out", file=sys.stderr)
        for row in rows:
            run_load(row.port, request_bytes(row.port, TOKENS, 0, True), 64, 16)  # warm
        for _ in range(chosen.rounds):
            for row in rows:
                measure(row, slow=row.name == "LiteLLM")
        table(rows)


if __name__ == "__main__":
    main()
