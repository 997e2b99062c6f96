"""What the server is told once, when it starts."""

from __future__ import annotations

from dataclasses import dataclass, field

from k3stack.guard.images import ImageLimits

__all__ = ["ServerSettings"]


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """How the server behaves.

    Attributes:
        model: the name that requests must give.
        context: the longest prompt and answer together, tokens.
        random_weights: whether the weights mean nothing, as those of `k3 tiny`.
        max_body_bytes: a larger request body is refused with 413.
        max_in_flight: requests served at a time; more are refused with 429.
        images: limits on images.
        fetch_images: whether https addresses are fetched; without, images come as data URIs alone.
        fetch_s: seconds for fetching one image.
        log: a line of JSON on stderr for each request.
    """

    model: str
    context: int
    random_weights: bool = False
    max_body_bytes: int = 64 * 2**20
    max_in_flight: int = 512
    images: ImageLimits = field(
        default_factory=lambda: ImageLimits(count=64, image_bytes=20 * 2**20, pixels=50_000_000)
    )
    fetch_images: bool = True
    fetch_s: float = 20.0
    log: bool = True
