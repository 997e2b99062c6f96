"""Images: sizes, patches, and the tower against a direct transcription."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from torch import Tensor

from k3stack.errors import ConfigError, UsageError
from k3stack.reference.model import K3, load_model
from k3stack.reference.model.vision import ImageLimits, Patches, image_size, patches
from k3stack.spec import VisionSpec
from tests.reference.model.strategies import Numbers, assert_close

Folder = Callable[[str], Path]


@pytest.fixture(scope="module")
def spec(model: K3) -> VisionSpec:
    assert model.spec.vision is not None
    return model.spec.vision


def tower(folder: Path, values: Tensor, rows: int, columns: int) -> Tensor:
    """The equations, in float64: patch by patch where that is short enough, no shared code."""
    w: dict[str, Tensor] = {}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a mapping
                if name.startswith(("vision_tower.", "mm_projector.")):
                    w[name.removeprefix("vision_tower.")] = file.get_tensor(name).double()
    config = json.loads((folder / "config.json").read_text())["vision_config"]
    h, width = config["vt_num_attention_heads"], config["qkv_hidden_size"]
    e = width // h

    def norm(x: Tensor, weight: str, epsilon: float = 2.0**-23) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + epsilon).sqrt() * w[weight]

    kernel = w["patch_embed.proj.weight"]
    x = torch.stack([(patch[None] * kernel).sum((1, 2, 3)) for patch in values.double()])
    grid = w["patch_embed.pos_emb.weight"]
    for r in range(rows):
        for c in range(columns):  # bilinear, pixel centres at half, edges repeated
            y0 = max((r + 0.5) * grid.shape[0] / rows - 0.5, 0.0)
            x0 = max((c + 0.5) * grid.shape[1] / columns - 0.5, 0.0)
            top, left = int(y0), int(x0)
            below, right = min(top + 1, grid.shape[0] - 1), min(left + 1, grid.shape[1] - 1)
            fy, fx = y0 - top, x0 - left
            upper = grid[top, left] * (1 - fx) + grid[top, right] * fx
            lower = grid[below, left] * (1 - fx) + grid[below, right] * fx
            x[r * columns + c] += upper * (1 - fy) + lower * fy

    def turned(vector: Tensor, r: int, c: int) -> Tensor:
        made = vector.clone()
        for pair in range(e // 2):
            angle = (c if pair % 2 == 0 else r) / 10000 ** (4 * (pair // 2) / e)
            a, b = vector[..., 2 * pair], vector[..., 2 * pair + 1]
            made[..., 2 * pair] = a * math.cos(angle) - b * math.sin(angle)
            made[..., 2 * pair + 1] = a * math.sin(angle) + b * math.cos(angle)
        return made

    for block in range(config["vt_num_hidden_layers"]):
        here = f"encoder.blocks.{block}"
        qkv = (norm(x, f"{here}.norm0.weight") @ w[f"{here}.wqkv.weight"].T).view(-1, 3, h, e)
        place = [(n // columns, n % columns) for n in range(rows * columns)]
        q = torch.stack([turned(qkv[n, 0], *place[n]) for n in range(len(x))])
        k = torch.stack([turned(qkv[n, 1], *place[n]) for n in range(len(x))])
        odds = (torch.einsum("nhe,mhe->hnm", q, k) / math.sqrt(e)).softmax(-1)
        x = x + torch.einsum("hnm,mhe->nhe", odds, qkv[:, 2]).flatten(1) @ w[f"{here}.wo.weight"].T
        inner = norm(x, f"{here}.norm1.weight") @ w[f"{here}.mlp.fc0.weight"].T
        inner = 0.5 * inner * (1 + torch.tanh(math.sqrt(2 / math.pi) * (inner + 0.044715 * inner**3)))
        x = x + inner @ w[f"{here}.mlp.fc1.weight"].T
    x = norm(x, "encoder.final_layernorm.weight").view(rows, columns, -1)
    cells = [x[r : r + 2, c : c + 2].flatten() for r in range(0, rows, 2) for c in range(0, columns, 2)]
    inner = torch.stack(cells) @ w["mm_projector.proj.0.weight"].T
    inner = inner * 0.5 * (1 + torch.erf(inner / math.sqrt(2)))
    return norm(inner @ w["mm_projector.proj.2.weight"].T, "mm_projector.post_norm.weight", 1e-5)


@pytest.mark.parametrize(
    ("rows", "columns", "dtype"),
    [(4, 6, torch.float64), (18, 4, torch.float64), (2, 2, torch.float32), (16, 16, torch.float32)],
)
def test_the_tower_computes_what_the_equations_say(folder: Folder, rows: int, columns: int, dtype: torch.dtype) -> None:
    """Also on the learned grid's own size (16 x 16 here) and on a larger one."""
    model = load_model(folder("bf16"), dtype=dtype)
    values = Numbers(1, torch.float64).normal(rows * columns, 3, 14, 14)
    (found,) = model.embed_images([Patches(values, rows, columns)])
    expected = tower(folder("bf16"), values, rows, columns)
    assert_close(found, expected, dtype)


@settings(max_examples=100)
@given(st.integers(1, 6000), st.integers(1, 6000))
def test_sizes_keep_the_limits(spec: VisionSpec, width: int, height: int) -> None:
    limits = ImageLimits(patches=256, side=64)
    size = image_size(width, height, spec, limits)
    assert 1 <= size.width <= width and 1 <= size.height <= height
    assert size.rows % 2 == size.columns % 2 == 0
    assert size.tokens == size.rows * size.columns // 4
    assert max(size.rows, size.columns) <= 64
    for pixels, cells in ((size.width, size.columns), (size.height, size.rows)):
        assert cells * 14 - 28 < pixels <= cells * 14
    if width <= 14 * 8 and height <= 14 * 8:
        assert (size.width, size.height) == (width, height)


@settings(max_examples=20)
@given(st.integers(1, 60), st.integers(1, 60), st.integers(0, 1000))
def test_patches_hold_the_pixels(spec: VisionSpec, width: int, height: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (height, width, 3), generator=generator, dtype=torch.uint8)
    made, size = patches(pixels, spec), image_size(width, height, spec)
    assert (made.rows, made.columns) == (size.rows, size.columns)
    for y, x in ((0, 0), (height - 1, width - 1), (height // 2, width // 3)):
        found = made.values[(y // 14) * made.columns + x // 14, :, y % 14, x % 14]
        assert_close(found, pixels[y, x].double() / 127.5 - 1, torch.float32)
    if width % 28:
        assert (made.values[made.columns - 1, :, :, 13] == -1).all()  # filled with black


def test_limits_come_from_the_checkpoint_where_it_says_them(tmp_path: Path) -> None:
    assert ImageLimits.from_folder(tmp_path) == ImageLimits(16_384, 512)
    path = tmp_path / "preprocessor_config.json"
    path.write_text(json.dumps({"media_proc_cfg": {"in_patch_limit": 256, "patch_limit_on_one_side": 16}}))
    assert ImageLimits.from_folder(tmp_path) == ImageLimits(256, 16)
    path.write_text(json.dumps({"media_proc_cfg": {"in_patch_limit": "many"}}))
    with pytest.raises(ConfigError, match="in_patch_limit: is 'many'"):
        ImageLimits.from_folder(tmp_path)
    path.write_text("{")
    with pytest.raises(ConfigError, match="JSON"):
        ImageLimits.from_folder(tmp_path)


def test_wrong_pixels_are_refused(spec: VisionSpec) -> None:
    for pixels in (torch.zeros(4, 4, 3), torch.zeros(4, 4, 4, dtype=torch.uint8), torch.zeros(4, 4, dtype=torch.uint8)):
        with pytest.raises(UsageError, match="not uint8"):
            patches(pixels, spec)
    with pytest.raises(UsageError, match="0 x 5"):
        image_size(0, 5, spec)


def test_images_do_not_see_each_other(model: K3) -> None:
    numbers = Numbers(2, torch.float32)
    images = [Patches(numbers.normal(r * c, 3, 14, 14), r, c) for r, c in ((2, 4), (6, 2), (2, 2))]
    together = model.embed_images(images)
    assert [len(vectors) for vectors in together] == [2, 3, 1]
    for image, vectors in zip(images, together, strict=True):
        assert torch.equal(model.embed_images([image])[0], vectors)
