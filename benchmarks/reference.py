"""The reference engine on this CPU: tokens per second beside transformers' kimi_linear, and what a long prompt costs.

usage: python benchmarks/reference.py [--transformers PYTHON] [--long TOKENS]

Both run one thread in float32 on the same machine, in turns. A figure is the best of the rounds, as a shared machine
only ever adds; the ratio is the median of the rounds' own. The models are of one size but not the same model: K3 adds
AttnRes, a latent MoE and output gates to Kimi-Linear. The second part answers one request while another brings a long
prompt, with chunked prefill and without.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from k3stack.checkpoint.tiny import TinyShape, write_tiny
from k3stack.reference.engine import Engine, EngineOptions
from k3stack.reference.model import K3, load_model
from k3stack.reference.request import Request, Sampling
from k3stack.spec import ModelSpec, Scheme, measure

ROUNDS = 3
WORKS = {"prefill, 512 tokens": (1, 512, 1), "decode, alone": (1, 16, 33), "decode, 16 at once": (16, 16, 17)}


class Peer:
    """transformers in its own environment."""

    def __init__(self, python: str, shape: TinyShape, mla: list[int]) -> None:
        script = Path(__file__).parent / "peers" / "kimi_linear.py"
        self._process = subprocess.Popen(
            [python, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        names = ("layers", "hidden", "dense_width", "expert_width", "heads", "experts", "experts_per_token")
        self.about = self.ask({name: getattr(shape, name) for name in names} | {"vocabulary": 512, "mla": mla})

    def ask(self, what: Any) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def passes(model: K3, batch: int, prompt: int, count: int) -> list[float]:
    """Seconds of each pass of the engine: the prompts', then one for each further token."""
    options = EngineOptions(
        context=1024, slots=16, latent_dtype=torch.float32, chunk_tokens=batch * prompt, snapshot_bytes=0
    )
    engine = Engine(model, options)
    tokens = torch.randint(0, 256, (batch, prompt), generator=torch.Generator().manual_seed(1)).tolist()
    for number, each in enumerate(tokens):
        engine.add(Request(str(number), tuple(each), Sampling(temperature=0, max_tokens=count, ignore_eos=True)))
    times = []
    while engine.busy:
        began = time.perf_counter()
        engine.step()
        times.append(time.perf_counter() - began)
    return times


def tokens_per_second(work: tuple[int, int, int], times: list[float]) -> float:
    batch, prompt, count = work
    return prompt / times[0] if count == 1 else batch * (count - 1) / sum(times[1:])


def compare_speed(folder: Path, python: str | None) -> None:
    shape, spec = TinyShape(), ModelSpec.from_config(folder)
    models = {"steady": load_model(folder), "not steady": load_model(folder, steady=False)}
    mla = [layer.index for layer in spec.layers if layer.attention.value == "mla"]
    peer = None if python is None else Peer(python, shape, mla)
    print(f"k3stack: tiny K3, {measure(spec).parameters:,} parameters (computed)")
    if peer is not None:
        print(f"transformers {peer.about['version']}: kimi_linear, {peer.about['parameters']:,} parameters (read)")
    for name, work in WORKS.items():
        found: dict[str, list[float]] = {}
        for _ in range(ROUNDS):
            for which, model in models.items():
                found.setdefault(which, []).append(tokens_per_second(work, passes(model, *work)))
            if peer is not None:
                times = peer.ask(dict(zip(("batch", "prompt", "count"), work, strict=True)))
                found.setdefault("transformers", []).append(tokens_per_second(work, times))
        shown = "   ".join(f"{which} {max(values):8.1f}" for which, values in found.items())
        ratio = ""
        if peer is not None:
            pairs = zip(found["steady"], found["transformers"], strict=True)
            ratio = f"   steady / transformers {statistics.median(a / b for a, b in pairs):.2f}"
        print(f"{name:22} tokens/s, measured: {shown}{ratio}")
    if peer is not None:
        peer.close()


def worst_gap(model: K3, long: int, chunk: int) -> tuple[float, int]:
    """The longest wait of an answering request for its next token while a long prompt is read; and how many it got."""
    options = EngineOptions(
        context=2 * long, slots=2, latent_dtype=torch.bfloat16, chunk_tokens=chunk, snapshot_bytes=0
    )
    engine = Engine(model, options)
    endless = Sampling(temperature=0, max_tokens=long, ignore_eos=True)
    engine.add(Request("short", tuple(range(32)), endless))
    for _ in range(5):
        engine.step()
    engine.add(Request("long", tuple(number % 256 for number in range(long)), Sampling(temperature=0, max_tokens=1)))
    gap, tokens, last = 0.0, 0, time.perf_counter()
    while True:
        updates = engine.step()
        now = time.perf_counter()
        if any(update.id == "short" for update in updates):
            gap, tokens, last = max(gap, now - last), tokens + 1, now
        if any(update.id == "long" for update in updates):
            return gap, tokens


def compare_gaps(folder: Path, long: int) -> None:
    model = load_model(folder, steady=False)
    for chunk in (512, long):
        began = time.perf_counter()
        gap, tokens = worst_gap(model, long, chunk)
        name = "chunks of 512" if chunk == 512 else "not chunked"
        print(
            f"a prompt of {long:,} tokens beside an answer, {name:14} measured: worst gap {gap:7.2f} s, "
            f"{tokens} tokens answered meanwhile, {time.perf_counter() - began:.1f} s in all"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--transformers", metavar="PYTHON", help="python of an environment with transformers 5.24")
    parser.add_argument("--long", type=int, default=32_768, help="tokens of the long prompt; 0 leaves it out")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as base:
        folder = Path(base) / "tiny"
        write_tiny(folder, Scheme.BF16)
        compare_speed(folder, arguments.transformers)
        if arguments.long:
            small = Path(base) / "small"
            shape = TinyShape(
                layers=4, heads=1, hidden=256, experts=4, experts_per_token=2, expert_width=128, dense_width=256,
                q_lora_rank=64, context=2 * arguments.long,
            )  # fmt: skip
            write_tiny(small, Scheme.MXFP4, shape=shape)
            compare_gaps(small, arguments.long)


if __name__ == "__main__":
    main()
