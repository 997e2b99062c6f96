"""Tokens per second of the reference model on this machine: decoding alone, decoding in a batch, prefill.

usage: python benchmarks/reference_model.py [cpu|cuda]

The model is the tiny checkpoint (`k3 tiny`), in each of the ways it can compute. On a CPU with one thread.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from k3stack.checkpoint.tiny import write_tiny
from k3stack.reference.batch import Batch, Piece
from k3stack.reference.model import K3, load_model
from k3stack.spec import Scheme

BATCH, PROMPT, PAST = 16, 512, 100


def seconds(work: Callable[[], object], device: str, at_least: float = 2.0) -> float:
    """The best of several runs: a shared machine only ever adds."""
    work()
    best, spent = float("inf"), 0.0
    while spent < at_least:
        began = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - began)
        spent += time.perf_counter() - began
    return best


def measure(model: K3, device: str) -> tuple[float, float, float]:
    """Tokens per second: one sequence, BATCH sequences, prefill of PROMPT tokens."""
    tokens = torch.randint(0, 256, (PROMPT,), generator=torch.Generator().manual_seed(0))
    memory = model.new_memory(pages=16 * BATCH + 64, page_tokens=16, slots=BATCH + 1)
    own = [torch.arange(16) + 16 * place for place in range(BATCH)]
    for place in range(BATCH):
        model.forward(Batch(tokens[:PAST], (Piece(0, PAST, 0, own[place], place),)), memory)

    def decode(sequences: int) -> Callable[[], object]:
        pieces = tuple(Piece(place, 1, PAST, own[place], place) for place in range(sequences))
        return lambda: model.logits(model.forward(Batch(tokens[:sequences], pieces), memory).hidden)

    far = torch.arange(64) + 16 * BATCH
    prefill = Batch(tokens, (Piece(0, PROMPT, 0, far, BATCH),))
    return (
        1 / seconds(decode(1), device),
        BATCH / seconds(decode(BATCH), device),
        PROMPT / seconds(lambda: model.forward(prefill, memory), device),
    )


def main() -> None:
    device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    torch.set_num_threads(1)
    print(f"PyTorch {torch.__version__} on {torch.cuda.get_device_name() if device == 'cuda' else 'one CPU thread'}")
    print(f"{'':34}{'decode 1':>10}{f'decode {BATCH}':>11}{f'prefill {PROMPT}':>13}  tokens per second")
    with tempfile.TemporaryDirectory() as base:
        folder = Path(base) / "tiny"
        write_tiny(folder, Scheme.MXFP4)
        ways = [(torch.float32, True, False), (torch.float32, False, False), (torch.float32, False, True)]
        ways += [(torch.bfloat16, False, False)] if device == "cuda" else []
        for dtype, steady, quantised in ways:
            model = load_model(folder, dtype=dtype, device=device, steady=steady, keep_quantised=quantised)
            name = f"{str(dtype).removeprefix('torch.')}{', steady' if steady else ''}"
            name += ", kept quantised" if quantised else ""
            name += ", fla's KDA" if model.arithmetic.kernels else ""
            print(f"{name:34}" + "{:10.0f}{:11.0f}{:13.0f}".format(*measure(model, device)))


if __name__ == "__main__":
    main()
