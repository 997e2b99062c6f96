"""Images: from pixels to the vectors that stand in for the placeholder tokens of a prompt.

Shapes: an image of R rows and C columns of patches (14 x 14 pixels), N = R C patches, d width (1024), h heads (12) of
width e (128), m = 4 patches of a merged cell, hidden of the text model (7168).

    size     no more than `ImageLimits` allow; then the edges are filled up to whole merged cells of 28 x 28 pixels
    pixels   (value / 255 - 0.5) / 0.5
    x        = proj patch + position                      the learned 64 x 64 grid, interpolated to R x C
    x        = x + wo Attention( RoPE_2D(q), RoPE_2D(k), v ),   [q, k, v] = wqkv RMSNorm(x; norm0)
    x        = x + fc1 gelu_tanh( fc0 RMSNorm(x; norm1) )
    x        = RMSNorm(x; final_layernorm)
    y        = RMSNorm( proj.2 gelu( proj.0 [4 patches of a cell side by side] ); post_norm )

Sources: vLLM 0.33.0, model_executor/models/kimi_k25_vit.py and transformers_utils/processors/kimi_k25_vision_fused.py.
A still image has one frame: no time embedding, and the mean over frames is the frame itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from k3stack.errors import ConfigError, UsageError
from k3stack.files import json_value
from k3stack.reference.model.arithmetic import Arithmetic
from k3stack.reference.model.functions import rms_norm
from k3stack.reference.model.store import Store
from k3stack.spec.model import VisionSpec

__all__ = ["ImageLimits", "ImageSize", "Patches", "Vision", "image_size", "patches"]

NORM_EPSILON = 2.0**-23
"""The tower's norms are torch.nn.RMSNorm without an epsilon, which then is float32's own, in BF16 too."""

ROPE_BASE = 10_000.0


@dataclass(frozen=True, slots=True)
class ImageLimits:
    """How large an image may be before it is made smaller: patches in all, and along one side.

    The defaults are those of Kimi-K2.5's preprocessor_config.json; K3's own file was not seen.
    """

    patches: int = 16_384
    side: int = 512

    @classmethod
    def from_folder(cls, folder: Path) -> ImageLimits:
        """The limits in a checkpoint's preprocessor_config.json, or the defaults where it has none.

        Raises:
            ConfigError: the file cannot be read, or a limit is no positive whole number.
        """
        path = folder / "preprocessor_config.json"
        if not path.exists():
            return cls()
        try:
            data = json_value(path.read_bytes())
        except (OSError, ValueError) as error:
            raise ConfigError(f"is not JSON that can be read ({error})", where=path) from error
        holder = data.get("media_proc_cfg", data) if isinstance(data, dict) else None
        if not isinstance(holder, dict):
            raise ConfigError("must be an object", where=f"{path}: media_proc_cfg")
        found = {}
        for ours, field in (("patches", "in_patch_limit"), ("side", "patch_limit_on_one_side")):
            value = holder.get(field, getattr(cls(), ours))
            if type(value) is not int or value < 1:
                raise ConfigError(f"is {value!r}, not a positive whole number", where=f"{path}: {field}")
            found[ours] = value
        return cls(**found)


@dataclass(frozen=True, slots=True)
class ImageSize:
    """What becomes of an image: resize it to width x height pixels; it then has rows x columns patches.

    Attributes:
        tokens: how many placeholders it takes in the prompt.
    """

    width: int
    height: int
    columns: int
    rows: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Patches:
    """A prepared image: values float32 [R C, 3, patch, patch], normalised, row by row."""

    values: Tensor
    rows: int
    columns: int


def image_size(width: int, height: int, spec: VisionSpec, limits: ImageLimits | None = None) -> ImageSize:
    """The size at which an image of width x height pixels is looked at, and the tokens it takes.

    Raises:
        UsageError: an image without pixels.
    """
    if width < 1 or height < 1:
        raise UsageError(f"an image of {width} x {height} pixels cannot be looked at", where="image")
    limits, patch = limits or ImageLimits(), spec.patch
    most = limits.side * patch
    area = math.sqrt(limits.patches / (max(1.0, width // patch) * max(1.0, height // patch)))
    scale = min(1.0, area, most / width, most / height)
    new_width, new_height = (min(most, max(1, int(size * scale))) for size in (width, height))
    down, across = spec.merge
    rows, columns = -(-new_height // (down * patch)) * down, -(-new_width // (across * patch)) * across
    return ImageSize(new_width, new_height, columns, rows, rows * columns // (down * across))


def patches(pixels: Tensor, spec: VisionSpec) -> Patches:
    """Cut an image into normalised patches.

    Args:
        pixels: uint8 [height, width, 3], RGB, already resized to what `image_size` says.
        spec: of the tower.

    Raises:
        UsageError: not uint8, or not three channels.
    """
    if pixels.dtype is not torch.uint8 or pixels.dim() != 3 or pixels.shape[2] != 3:
        raise UsageError(f"is {pixels.dtype} {list(pixels.shape)}, not uint8 [height, width, 3]", where="pixels")
    height, width, _ = pixels.shape
    patch, (down, across) = spec.patch, spec.merge
    missing = (-height % (down * patch), -width % (across * patch))
    filled = F.pad(pixels, (0, 0, 0, missing[1], 0, missing[0]))  # black, before normalising, as the engines do
    values = (filled.to(torch.float32) / 255 - 0.5) / 0.5
    rows, columns = len(filled) // patch, filled.shape[1] // patch
    cut = values.reshape(rows, patch, columns, patch, 3).permute(0, 2, 4, 1, 3)  # [R, C, 3, patch, patch]
    return Patches(cut.reshape(rows * columns, 3, patch, patch), rows, columns)


def rotations(rows: int, columns: int, width: int, like: Tensor) -> Tensor:
    """The angles of the 2D rotation [R C, e / 2]: even pairs turn with the column, odd ones with the row.

    Their dtype and device are those of `like`.
    """
    frequency = ROPE_BASE ** (-torch.arange(0, width, 4, device=like.device, dtype=like.dtype) / width)  # [e / 4]
    row = torch.arange(rows, device=like.device).repeat_interleave(columns)
    column = torch.arange(columns, device=like.device).repeat(rows)
    return torch.stack([column[:, None] * frequency, row[:, None] * frequency], dim=-1).flatten(1)


def rotated(x: Tensor, angles: Tensor) -> Tensor:
    """x [N, h, e], its neighbouring pairs turned by angles [N, e / 2]."""
    first, second = x[..., 0::2], x[..., 1::2]
    cos, sin = angles.cos()[:, None].to(x.dtype), angles.sin()[:, None].to(x.dtype)
    return torch.stack([first * cos - second * sin, first * sin + second * cos], dim=-1).flatten(2)


class Block:
    """One pre-norm transformer block of the tower."""

    def __init__(self, spec: VisionSpec, store: Store, index: int) -> None:
        section = store.section(f"vision_tower.encoder.blocks.{index}.")
        self.spec, self.wide = spec, store.arithmetic.wide
        self.norm0, self.norm1 = section.weight("norm0"), section.weight("norm1")
        self.wqkv, self.wo = section.weight("wqkv"), section.weight("wo")
        self.fc0, self.fc1 = section.weight("mlp.fc0"), section.weight("mlp.fc1")

    def __call__(self, x: Tensor, angles: Tensor) -> Tensor:
        """x [N, d] to [N, d]; every patch sees every other."""
        normed = rms_norm(x, self.norm0, NORM_EPSILON, self.wide)
        q, k, v = F.linear(normed, self.wqkv).view(len(x), 3, self.spec.heads, -1).to(self.wide).unbind(1)
        q, k, v = (part.transpose(0, 1)[None] for part in (rotated(q, angles), rotated(k, angles), v))
        seen = F.scaled_dot_product_attention(q, k, v)[0].transpose(0, 1)  # scale is e^-0.5
        x = x + F.linear(seen.flatten(1).to(x.dtype), self.wo)
        normed = rms_norm(x, self.norm1, NORM_EPSILON, self.wide)
        return x + F.linear(F.gelu(F.linear(normed, self.fc0), approximate="tanh"), self.fc1)


class Vision:
    """The vision tower and its projector."""

    def __init__(self, spec: VisionSpec, projector_epsilon: float, store: Store) -> None:
        self.spec, self.projector_epsilon = spec, projector_epsilon
        self.arithmetic: Arithmetic = store.arithmetic
        tower, projector = store.section("vision_tower."), store.section("mm_projector.")
        self.patch = tower.weight("patch_embed.proj").flatten(1)  # a convolution whose stride is its size
        self.grid = tower.weight("patch_embed.pos_emb")  # [64, 64, d]
        self.blocks = [Block(spec, store, index) for index in range(spec.layers)]
        self.norm = tower.weight("encoder.final_layernorm")
        self.first, self.second = projector.weight("proj.0"), projector.weight("proj.2")
        self.post_norm = projector.weight("post_norm")

    def __call__(self, image: Patches) -> Tensor:
        """The vectors of one image [tokens, hidden]."""
        wide = self.arithmetic.wide
        values = image.values.to(self.patch.device, self.patch.dtype)
        x = F.linear(values.flatten(1), self.patch) + self.positions(image.rows, image.columns)
        angles = rotations(
            image.rows, image.columns, self.spec.qkv_width // self.spec.heads, x.new_empty(0, dtype=wide)
        )
        for block in self.blocks:
            x = block(x, angles)
        x = rms_norm(x, self.norm, NORM_EPSILON, wide)
        cells = self.merged(x, image.rows, image.columns)
        y = F.linear(F.gelu(F.linear(cells, self.first)), self.second)
        return rms_norm(y, self.post_norm, self.projector_epsilon, wide)

    def positions(self, rows: int, columns: int) -> Tensor:
        """The learned positions, interpolated to a grid of R x C: [R C, d]."""
        if (rows, columns) == tuple(self.grid.shape[:2]):
            return self.grid.flatten(0, 1)
        channels_first = self.grid.permute(2, 0, 1)[None].to(self.arithmetic.wide)
        made = F.interpolate(channels_first, size=(rows, columns), mode="bilinear")
        return made[0].permute(1, 2, 0).flatten(0, 1).to(self.grid.dtype)

    def merged(self, x: Tensor, rows: int, columns: int) -> Tensor:
        """The patches of each cell side by side: [N, d] to [N / m, m d]."""
        down, across = self.spec.merge
        cells = x.view(rows // down, down, columns // across, across, -1).permute(0, 2, 1, 3, 4)
        return cells.reshape(rows * columns // (down * across), -1)
