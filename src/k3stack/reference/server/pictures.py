"""Images of a request: fetched and decoded."""

from __future__ import annotations

import base64
import binascii
import io
import ipaddress
import socket
import warnings
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote_to_bytes, urljoin, urlsplit

import httpx
import numpy as np
from numpy.typing import NDArray

from k3stack.guard.images import ImageLimits, image_urls
from k3stack.guard.refused import RefusedError

__all__ = ["decode_image", "fetch", "read_images"]

_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
_REDIRECTS = 3


def read_images(messages: Sequence[Any], limits: ImageLimits, fetch_s: float | None) -> list[NDArray[np.uint8]]:
    """The pixels [height, width, 3] of each image of a chat, in order.

    Args:
        messages: of the request; `k3stack.guard.images.check_images` has looked at counts and sizes.
        limits: on bytes and pixels.
        fetch_s: seconds for fetching one image; None: nothing is fetched.

    Raises:
        RefusedError: an address that is not allowed, or what is no image; names the part.
    """
    found = []
    for where, url in image_urls(list(messages)):
        if url.startswith("data:"):
            data = _data_uri(url, where)
        elif fetch_s is None:
            raise RefusedError("only data: addresses are allowed", where=where)
        else:
            data = fetch(url, limits, fetch_s, where)
        found.append(decode_image(data, limits, where))
    return found


def decode_image(data: bytes, limits: ImageLimits, where: str) -> NDArray[np.uint8]:
    """The pixels [height, width, 3] of a PNG, JPEG, WebP, GIF (first frame) or BMP; transparency on white.

    Raises:
        RefusedError: it is none of these, broken, or has too many pixels.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
                if image.width * image.height > limits.pixels:
                    what = f"the image has {image.width} x {image.height} pixels, more than {limits.pixels:,}"
                    raise RefusedError(what, where=where, status=413)
                if image.mode in ("RGB", "L"):
                    return np.asarray(image.convert("RGB"))
                rgba = image.convert("RGBA")
                return np.asarray(Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB"))
    except RefusedError:
        raise
    except UnidentifiedImageError:
        hint = f"Send one of {', '.join(_FORMATS)}"
        raise RefusedError("the bytes are no image that can be read", where=where, hint=hint) from None
    except Exception as error:  # whatever a decoder throws at a broken file
        raise RefusedError(f"the image is broken ({type(error).__name__})", where=where) from None


def _data_uri(url: str, where: str) -> bytes:
    head, comma, body = url[5:].partition(",")
    if not comma:
        raise RefusedError("a data: address without a comma", where=where)
    try:
        return base64.b64decode(body, validate=True) if head.endswith(";base64") else unquote_to_bytes(body)
    except (binascii.Error, ValueError):
        raise RefusedError("is no base64", where=where) from None


def fetch(url: str, limits: ImageLimits, fetch_s: float, where: str) -> bytes:
    """The bytes behind an https address, which must not lead into a private network.

    The name is resolved once, every address it has must be public, and the connection goes to one of those: a name
    that changes its mind in between gains nothing. Each redirect is checked the same way.

    Raises:
        RefusedError: not https, a private address, too large, or nothing came.
    """
    for _ in range(_REDIRECTS + 1):
        host, port, address = _public_address(url, where)
        parts = urlsplit(url)
        netloc = f"[{address}]" if ":" in address else address
        target = parts._replace(netloc=f"{netloc}:{port}", fragment="").geturl()
        headers = {"host": host if port == 443 else f"{host}:{port}", "accept": "image/*"}
        try:
            with (
                httpx.Client(timeout=fetch_s, trust_env=False) as client,
                client.stream("GET", target, headers=headers, extensions={"sni_hostname": host}) as answer,
            ):
                if answer.is_redirect:
                    url = urljoin(url, answer.headers.get("location", ""))
                    continue
                if answer.status_code != 200:
                    raise RefusedError(f"the image's server answered {answer.status_code}", where=where)
                return _read(answer, limits.image_bytes, where)
        except httpx.HTTPError as error:
            raise RefusedError(f"the image cannot be fetched ({type(error).__name__})", where=where) from None
    raise RefusedError("too many redirects", where=where)


def _public_address(url: str, where: str) -> tuple[str, int, str]:
    """Host, port and a public address of an https url."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or 443
    except ValueError:
        raise RefusedError("is no address", where=where) from None
    if parts.scheme != "https" or not host:
        raise RefusedError("images come as data: or https: addresses", where=where)
    try:
        found = {str(each[4][0]) for each in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    except (OSError, UnicodeError):
        raise RefusedError(f"the host {host!r} cannot be found", where=where) from None
    for address in found:
        parsed = ipaddress.ip_address(address.partition("%")[0])
        mapped = getattr(parsed, "ipv4_mapped", None)
        if not (mapped or parsed).is_global or parsed.is_multicast:
            raise RefusedError(f"the host {host!r} leads into a private network", where=where)
    return host, port, min(found)


def _read(answer: httpx.Response, limit: int, where: str) -> bytes:
    parts: list[bytes] = []
    size = 0
    for part in answer.iter_bytes():
        size += len(part)
        if size > limit:
            raise RefusedError(f"the image has more than {limit:,} bytes", where=where, status=413)
        parts.append(part)
    return b"".join(parts)
