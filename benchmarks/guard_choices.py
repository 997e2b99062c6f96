"""Which server and which client library the guard stands on: a bare proxy on each pair, in one run.

    uv run --with uvicorn --with httptools python -m benchmarks.guard_choices

Added time to the first token at concurrency 1 (over asking the upstream itself) and requests per second at
concurrency 32, for answers of 64 tokens and one call. The guard itself needs granian and aiohttp only; without
uvicorn its rows are left out and said so.
"""

from __future__ import annotations

import importlib.util

from benchmarks.guard_harness import free_port, median, part, process, request_bytes, run_load

ROUNDS = 5


def main() -> None:
    pairs = [("granian", "aiohttp"), ("granian", "httpx")]
    if importlib.util.find_spec("uvicorn") and importlib.util.find_spec("httptools"):
        pairs += [("uvicorn", "aiohttp"), ("uvicorn", "httpx")]
    else:
        print("uvicorn or httptools is not installed: its rows are left out")
    upstream = free_port()
    print(f"{'server':10} {'client':10} {'added first token':>18} {'requests/s at 32':>17}")
    with process(part("upstream", upstream), upstream):
        for server, client in pairs:
            port = free_port()
            environment = {"BARE_UPSTREAM": f"http://127.0.0.1:{upstream}", "BARE_CLIENT": client}
            with process(part("bare", port, server), port, environment):
                added, rates = [], []
                for _ in range(ROUNDS):
                    direct, _ = run_load(upstream, request_bytes(upstream, 64, 1, True), 20, 1)
                    through, _ = run_load(port, request_bytes(port, 64, 1, True), 20, 1)
                    added.append(median([each.first_s for each in through]) - median([each.first_s for each in direct]))
                    taken, seconds = run_load(port, request_bytes(port, 64, 0, True), 300, 32)
                    rates.append(len(taken) / seconds)
                print(f"{server:10} {client:10} {median(added) * 1000:15.2f} ms {median(rates):17.0f}")


if __name__ == "__main__":
    main()
