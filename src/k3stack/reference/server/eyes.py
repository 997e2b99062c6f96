"""From pixels to what stands for an image in a prompt."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from k3stack.reference.model import K3
from k3stack.reference.model.vision import image_size, patches

__all__ = ["Eyes", "SeenImage"]


@dataclass(frozen=True, slots=True)
class SeenImage:
    """An image as the engine takes it.

    Attributes:
        width, height: of the picture as it came, pixels.
        vectors: [tokens, hidden].
        key: 62 bits of the digest of its pixels.
    """

    width: int
    height: int
    vectors: Tensor
    key: int


class Eyes:
    """Sees images with a model's vision tower.

    Args:
        model: one that has a tower.
    """

    def __init__(self, model: K3) -> None:
        self._model = model

    def see(self, pixels: Sequence[NDArray[np.uint8]]) -> list[SeenImage]:
        """Embed images, each uint8 [height, width, 3]; larger ones than the tower takes are made smaller."""
        return [self._see(each) for each in pixels]

    @torch.inference_mode()
    def _see(self, pixels: NDArray[np.uint8]) -> SeenImage:
        from PIL import Image

        spec = self._model.spec.vision
        assert spec is not None
        height, width = pixels.shape[:2]
        size = image_size(width, height, spec, self._model.image_limits)
        if (size.width, size.height) != (width, height):
            resized = Image.fromarray(pixels).resize((size.width, size.height), Image.Resampling.BICUBIC)
            pixels = np.asarray(resized)
        (vectors,) = self._model.embed_images([patches(torch.from_numpy(pixels.copy()), spec)])
        digest = hashlib.blake2b(repr(pixels.shape).encode() + pixels.tobytes(), digest_size=8).digest()
        return SeenImage(width, height, vectors, int.from_bytes(digest, "big") >> 2)
