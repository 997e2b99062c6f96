"""Memory of a 1M-token request beside the public estimator hf-mem, and how long a search over 16 nodes takes.

    uv venv peers && uv pip install --python peers/bin/python hf-mem==0.5.5
    python benchmarks/plan_peers.py peers/bin/python

hf-mem's own function computes the cache from the same config.json; what vLLM's start-up arithmetic asks for stands
beside both. The search is timed warm, the median of seven, for each goal; beside it one assessment of one layout, what
asking layout by layout would cost.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from k3stack.hardware.table import gpu
from k3stack.plan import KvDtype, Layout, Workload
from k3stack.plan.assess import Job, assess
from k3stack.plan.cache import kda_state_bytes, kv_bytes_per_token, vllm_blocks
from k3stack.plan.releases import release
from k3stack.plan.search import Goal, search
from k3stack.plan.stages import stages
from k3stack.spec.published import kimi_k3, kimi_k3_config

CONTEXT = 1_048_576
PEER = """
import json, sys
from hf_mem.safetensors.kv_cache import compute_safetensors_kv_cache_size
config = json.load(sys.stdin)
print(compute_safetensors_kv_cache_size(config, "BF16", 1048576, 1))
"""


def cache_of_peer(python: str) -> int:
    """What hf-mem computes for one request of 1M tokens in BF16, from K3's text config."""
    text = kimi_k3_config()["text_config"]
    done = subprocess.run(
        [python, "-c", PEER], input=json.dumps(text), capture_output=True, text=True, check=True, timeout=120
    )
    return int(done.stdout.split()[-1])


def cache_under_vllm() -> int:
    """What vLLM 0.33.0 sets aside for it on one GPU of TP8: MLA blocks and KDA state blocks."""
    work = Workload(CONTEXT, 1, KvDtype.BF16, prefix_caching=False)
    blocks = vllm_blocks(kimi_k3(), Layout(tp=8), work, release("vllm"), stages(93, 1, "vllm"))
    return blocks.request_blocks(CONTEXT) * blocks.block_bytes()


def median_ms(run: Callable[[], object]) -> float:
    """Milliseconds, the median of seven after one to warm up."""
    run()
    taken = []
    for _ in range(7):
        begin = time.perf_counter()
        run()
        taken.append(time.perf_counter() - begin)
    return 1_000 * statistics.median(taken)


def main() -> None:
    """Print both tables."""
    spec = kimi_k3()
    ours = kv_bytes_per_token(spec, KvDtype.BF16) * CONTEXT + kda_state_bytes(spec) // 8
    print(f"cache of one {CONTEXT:,}-token request, BF16, one GPU of TP8")
    print(f"  k3stack, exact tokens    {ours / 1e9:10.1f} GB")
    print(f"  vLLM 0.33.0, its blocks  {cache_under_vllm() / 1e9:10.1f} GB")
    if len(sys.argv) > 1:
        theirs = cache_of_peer(sys.argv[1])
        print(f"  hf-mem 0.5.5             {theirs / 1e9:10.1f} GB, {theirs / ours:.0f} times as much")
    print("search of 16 nodes of 8 x H200")
    for goal in Goal:
        found = search(spec, "m", gpu("h200"), 128, Workload(), goal)
        tried = len(found.plans) + len(found.rejected)
        spent = median_ms(lambda goal=goal: search(spec, "m", gpu("h200"), 128, Workload(), goal))  # type: ignore[misc]
        print(f"  {goal.value:13} {spent:6.1f} ms for {tried} layouts")
    job = Job(spec, gpu("h200"), Layout(tp=8, pp=2), Workload(), release("vllm"))
    print(f"  one layout    {median_ms(lambda: assess(job)):6.2f} ms")


if __name__ == "__main__":
    main()
