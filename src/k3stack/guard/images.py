"""Limits on images, checked on the request before anything is decoded.

One small file can hold a picture of a billion pixels, and an engine decodes it before it looks at the size. The
sizes are read from the file headers, which costs microseconds.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from k3stack.guard.refused import RefusedError

__all__ = ["ImageLimits", "check_images", "image_urls", "pixel_size"]

_HEAD_CHARS = 88_000
"""Base64 characters decoded to find the size: JPEG puts up to 64 KiB of metadata before it."""


@dataclass(frozen=True, slots=True)
class ImageLimits:
    """What one request may hold.

    Args:
        count: images.
        image_bytes: decoded bytes of one image given as a data URI.
        pixels: of one image, width times height. The default is the limit of Pillow's decompression-bomb check.
        hosts: host names that image addresses may point to; None allows any. Data URIs are always allowed.
    """

    count: int = 64
    image_bytes: int = 32 * 2**20
    pixels: int = 178_956_970
    hosts: frozenset[str] | None = None


def check_images(messages: list[Any], limits: ImageLimits) -> None:
    """Refuse a request whose images pass the limits.

    Raises:
        RefusedError: names the message, the part and the limit.
    """
    for number, (where, url) in enumerate(image_urls(messages), 1):
        if number > limits.count:
            raise RefusedError(f"more than {limits.count} images", where=where, status=413)
        if not url.startswith("data:"):
            host = _host(url)
            if limits.hosts is not None and host not in limits.hosts:
                raise RefusedError(f"images from {host or 'this address'!r} are not allowed", where=where)
            continue
        comma = url.find(",", 0, 200)
        decoded_bytes = (len(url) - comma - 1) * 3 // 4
        if decoded_bytes > limits.image_bytes:
            raise RefusedError(
                f"the image has {decoded_bytes:,} bytes, more than {limits.image_bytes:,}", where=where, status=413
            )
        size = pixel_size(_head(url, comma + 1))
        if size is not None and size[0] * size[1] > limits.pixels:
            raise RefusedError(
                f"the image has {size[0]} x {size[1]} pixels, more than {limits.pixels:,}", where=where, status=413
            )


def image_urls(messages: list[Any]) -> Iterator[tuple[str, str]]:
    """(where, address) of each image, in order."""
    for number, message in enumerate(messages):
        content = message.get("content") if isinstance(message, dict) else None
        for position, part in enumerate(content if isinstance(content, list) else ()):
            image = part.get("image_url") if isinstance(part, dict) else None
            url = image.get("url") if isinstance(image, dict) else image
            if isinstance(url, str):
                yield f"messages[{number}].content[{position}]", url


def _host(url: str) -> str | None:
    try:
        parts = urlsplit(url)
        return parts.hostname if parts.scheme in ("http", "https") else None
    except ValueError:
        return None


def _head(url: str, start: int) -> bytes:
    text = url[start : start + _HEAD_CHARS]
    try:
        return base64.b64decode(text[: len(text) // 4 * 4])
    except (binascii.Error, ValueError):
        return b""


def pixel_size(head: bytes) -> tuple[int, int] | None:
    """(width, height) of a PNG, GIF, WebP, BMP or JPEG from its first bytes, or None where they do not say."""
    if head[:8] == b"\x89PNG\r\n\x1a\n" and len(head) >= 24:
        return int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")
    if head[:4] == b"GIF8" and len(head) >= 10:
        return int.from_bytes(head[6:8], "little"), int.from_bytes(head[8:10], "little")
    if head[:2] == b"BM" and len(head) >= 26:
        width = int.from_bytes(head[18:22], "little", signed=True)
        return abs(width), abs(int.from_bytes(head[22:26], "little", signed=True))
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP" and len(head) >= 30:
        return _webp_size(head)
    if head[:2] == b"\xff\xd8":
        return _jpeg_size(head)
    return None


def _webp_size(head: bytes) -> tuple[int, int] | None:
    kind = head[12:16]
    if kind == b"VP8X":
        return int.from_bytes(head[24:27], "little") + 1, int.from_bytes(head[27:30], "little") + 1
    if kind == b"VP8 ":
        return int.from_bytes(head[26:28], "little") & 0x3FFF, int.from_bytes(head[28:30], "little") & 0x3FFF
    if kind == b"VP8L":
        bits = int.from_bytes(head[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    return None


def _jpeg_size(head: bytes) -> tuple[int, int] | None:
    position = 2
    while position + 9 <= len(head) and head[position] == 0xFF:
        marker = head[position + 1]
        if marker == 0xFF:  # padding
            position += 1
            continue
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height = int.from_bytes(head[position + 5 : position + 7], "big")
            return int.from_bytes(head[position + 7 : position + 9], "big"), height
        position += 2 + int.from_bytes(head[position + 2 : position + 4], "big")
    return None
