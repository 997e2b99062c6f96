"""The model on a CUDA GPU, against the CPU; and fla's kernel against our recurrence. Skipped where there is no GPU."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from k3stack.reference.batch import Batch, Piece
from k3stack.reference.model import K3, load_model
from k3stack.reference.model.draft import Anchor, Draft
from k3stack.reference.model.kda import chunked, recurrent
from k3stack.reference.model.kernels import chunked_by_kernel, installed
from k3stack.reference.model.vision import Patches
from tests.reference.model.passes import new_memory, pages_for, run
from tests.reference.model.strategies import Numbers
from tests.reference.model.test_kda import case
from tests.reference.model.test_model import likeness

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
needs_fla = pytest.mark.skipif(not installed(), reason="needs fla-core")
Folder = Callable[[str], Path]


def off(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.cpu().double() - expected.double()).abs().max())


@pytest.mark.parametrize("steady", [True, False])
@pytest.mark.parametrize("latent", [torch.float32, torch.bfloat16])
def test_cuda_computes_what_the_cpu_does(folder: Folder, model: K3, steady: bool, latent: torch.dtype) -> None:
    tokens = Numbers(1, torch.float32).tokens(70)
    expected = model.logits(run(model, tokens, [70], new_memory(model, latent)))
    gpu = load_model(folder("mxfp4"), device="cuda", steady=steady)
    found = gpu.logits(run(gpu, tokens, [40, 1, 29], new_memory(gpu, latent))).cpu()
    print(f"steady {steady}, {latent}: logits off by {off(found, expected):.1e}")
    rows = (found - expected).abs().amax(1)
    assert float(rows.median()) < 1e-4  # a token whose two best experts tie may jump
    assert (found.argmax(1) == expected.argmax(1)).float().mean() > 0.98


def test_cuda_loads_every_scheme_and_keeps_it_quantised(folder: Folder) -> None:
    tokens = Numbers(2, torch.float32).tokens(12)
    for scheme in ("mxfp4", "nvfp4-mixed", "nvfp4-experts", "fp8-block", "bf16"):
        cpu = load_model(folder(scheme))
        gpu = load_model(folder(scheme), device="cuda", keep_quantised=True)
        assert off(run(gpu, tokens, [12]), run(cpu, tokens, [12])) < 1e-4, scheme


def test_what_is_in_a_batch_changes_little_on_cuda(folder: Folder) -> None:
    numbers = Numbers(3, torch.float32)
    gpu = load_model(folder("mxfp4"), device="cuda")
    memory, sequences = new_memory(gpu), [numbers.tokens(n) for n in (3, 17, 9, 1)]
    pieces, row = [], 0
    for place, tokens in enumerate(sequences):
        pieces.append(Piece(row, len(tokens), 0, pages_for(place, len(tokens)), place))
        row += len(tokens)
    together = gpu.forward(Batch(torch.cat(sequences), tuple(pieces)), memory).hidden
    worst = 0.0
    for piece, tokens in zip(pieces, sequences, strict=True):
        rows = together[piece.first : piece.first + piece.length]
        worst = max(worst, off(rows, run(gpu, tokens, [len(tokens)]).cpu()))
    cut = off(run(gpu, sequences[1], [17]), run(gpu, sequences[1], [1] * 17).cpu())
    print(f"in a batch or alone: {worst:.1e}; whole or token by token: {cut:.1e}")
    assert worst < 1e-4 and cut < 1e-4


def test_draft_and_images_on_cuda(folder: Folder) -> None:
    numbers = Numbers(4, torch.float32)
    tokens, image = numbers.tokens(9), Patches(numbers.normal(24, 3, 14, 14), 4, 6)
    made = []
    for device in ("cpu", "cuda"):
        model = load_model(folder("mxfp4"), device=device, draft=folder("draft"))
        memory, piece = new_memory(model), Piece(0, 9, 0, pages_for(0, 20), 0)
        output = model.forward(Batch(tokens, (piece,)), memory, capture=True)
        assert output.captured is not None and isinstance(model.draft, Draft)
        model.draft.remember(output.captured, [piece], memory)
        (proposal,) = model.draft.propose([Anchor(7, 9, piece.pages)], memory)
        made.append((proposal.tokens.cpu(), model.embed_images([image])[0].cpu()))
    assert torch.equal(made[0][0], made[1][0])
    assert off(made[1][1], made[0][1]) < 1e-4


@needs_fla
@pytest.mark.parametrize("n", [64, 1000])
def test_flas_kernel_computes_the_recurrence_at_the_size_of_k3(n: int) -> None:
    """H = 96, K = V = 128; BF16 inputs, so the error is BF16's; ours in float32 is far closer."""
    S, q, k, v, g, beta = (x.cuda() for x in case(5, torch.float32, n, 96, 128, 128))
    expected, last = recurrent(S.double(), q.double(), k.double(), v.double(), g.double(), beta.double())
    q_, k_, v_ = (x.to(torch.bfloat16).double() for x in (q, k, v))
    same_inputs, same_last = recurrent(S.double(), q_, k_, v_, g.double(), beta.double())
    found, state = chunked_by_kernel(S, q, k, v, g, beta)
    ours, our_state = chunked(S, q, k, v, g, beta)
    size = float(expected.abs().max())
    print(
        f"n {n}: outputs up to {size:.2f}; fla off by {off(found, same_inputs.cpu()):.1e} (same BF16 inputs), "
        f"{off(found, expected.cpu()):.1e} (float32 inputs), state {off(state, same_last.cpu()):.1e} of "
        f"{float(last.abs().max()):.1f}; ours off by {off(ours, expected.cpu()):.1e}, "
        f"state {off(our_state, last.cpu()):.1e}"
    )
    assert off(found, same_inputs.cpu()) < 0.02 * size
    assert off(state, same_last.cpu()) < 0.02 * float(last.abs().max())
    assert off(ours, expected.cpu()) < 1e-5 * max(1.0, size)


@needs_fla
def test_a_bfloat16_model_with_flas_kernel_stays_near(folder: Folder, model: K3) -> None:
    tokens = Numbers(6, torch.float32).tokens(70)
    expected = model.logits(run(model, tokens, [70]))
    gpu = load_model(folder("mxfp4"), device="cuda", steady=False, dtype=torch.bfloat16)
    assert gpu.arithmetic.kernels
    found = gpu.logits(run(gpu, tokens, [48, 1, 21])).cpu()
    assert likeness(found, expected) > 0.999
