"""Pictures of one colour, as PNG in a data: address; a few hundred bytes, no library needed."""

from __future__ import annotations

import base64
import struct
import zlib

__all__ = ["COLOURS", "data_address", "png"]

COLOURS = {"red": (220, 20, 30), "green": (20, 160, 60), "blue": (20, 60, 220), "yellow": (250, 220, 20)}


def png(colour: tuple[int, int, int], side: int) -> bytes:
    """A square PNG of one colour, `side` pixels wide."""
    row = b"\0" + bytes(colour) * side
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(row * side)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def data_address(picture: bytes) -> str:
    """The picture as a data: address."""
    return "data:image/png;base64," + base64.b64encode(picture).decode()
