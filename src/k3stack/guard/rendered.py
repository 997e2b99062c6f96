"""A request's prompt as K3 sees it, in parts, with a hash of every front of it.

Prefix caches reuse whole blocks from the very front: one changed byte voids everything behind it. So what matters
of a prompt is its bytes in rendered order, without the tail that each turn brings anew (tool choice, response
format, the generation prompt).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from k3stack import xtml
from k3stack.guard import codec
from k3stack.guard.images import image_urls
from k3stack.guard.request import ChatRequest
from k3stack.xtml.encode import IMAGE_PLACEHOLDER
from k3stack.xtml.wire import OPEN, SEP

__all__ = ["BLOCK_BYTES", "Part", "Rendered", "common_bytes", "render"]

BLOCK_BYTES = 1024
_HASH_BYTES = 8
FRONT_BYTES = 64 * 1024
"""Of the text itself only this much is kept: enough to show where and how two fronts differ."""


@dataclass(frozen=True, slots=True)
class Part:
    """One rendered message.

    Args:
        role: system, user, assistant or tool.
        kind: the `type` of a system message (`tool-declare`, `thinking-effort`), "" for an ordinary one.
        start: the byte it starts at.
    """

    role: str
    kind: str
    start: int


@dataclass(frozen=True, slots=True)
class Rendered:
    """A rendered prompt, without most of its text.

    Args:
        total_bytes: its length.
        parts: its messages in order.
        chain: eight bytes for every whole block of `BLOCK_BYTES`; each depends on all blocks before it.
        front: the first bytes themselves.
        tools: names and hashes of the declared tools, in order.
        reasoned: for each assistant message, whether it carries its reasoning.
    """

    total_bytes: int
    parts: tuple[Part, ...]
    chain: bytes
    front: bytes
    tools: tuple[tuple[str, bytes], ...]
    reasoned: tuple[bool, ...]

    @property
    def size_bytes(self) -> int:
        """About what keeping this costs."""
        return len(self.chain) + len(self.front) + 120 * len(self.parts) + 150 * len(self.tools) + 500

    def part_at(self, offset: int) -> int:
        """The number of the part that holds a byte; the last one for the end."""
        found = 0
        for number, part in enumerate(self.parts):
            if part.start > offset:
                break
            found = number
        return found


def render(request: ChatRequest) -> Rendered:
    """Render a request's prompt.

    Raises:
        InputError: a message that K3's grammar has no place for.
    """
    body = request.body
    effort = body.get("reasoning_effort")
    tools = body.get("tools") or []
    segments = xtml.encode(
        body["messages"],
        tools=tools,
        reasoning_effort=effort if effort in ("low", "high", "max") else "max",
        thinking=request.thinking,
        add_generation_prompt=False,
    )
    images = image_urls(body["messages"])
    pieces: list[bytes] = []
    parts: list[Part] = []
    total = 0
    for number, segment in enumerate(segments):
        if segment.special and segment.text == OPEN and segments[number + 1].text == "message":
            role, kind = _attributes(segments, number)
            parts.append(Part(role, kind, total))
        piece = segment.text.encode("utf-8", "surrogatepass")
        if segment.special and segment.text == IMAGE_PLACEHOLDER:
            piece += _digest(next(images, ("", ""))[1].encode("utf-8", "surrogatepass"))
        pieces.append(piece)
        total += len(piece)
    text = b"".join(pieces)
    return Rendered(
        total_bytes=total,
        parts=tuple(parts),
        chain=_chain(text),
        front=text[:FRONT_BYTES],
        tools=tuple(_tools(tools)),
        reasoned=tuple(_reasoned(body["messages"])),
    )


def _attributes(segments: list[xtml.Segment], number: int) -> tuple[str, str]:
    header: list[str] = []
    for segment in segments[number + 2 :]:
        if segment.special and segment.text == SEP:
            break
        header.append(segment.text)
    found = {"role": "", "type": ""}
    for piece in "".join(header).split('" '):
        name, _, value = piece.strip().partition('="')
        found[name] = value.rstrip('"')
    return found["role"], found["type"]


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_HASH_BYTES).digest()


def _chain(text: bytes) -> bytes:
    running = hashlib.blake2b(digest_size=_HASH_BYTES)
    chain = bytearray()
    for start in range(0, len(text) - BLOCK_BYTES + 1, BLOCK_BYTES):
        running.update(text[start : start + BLOCK_BYTES])
        chain += running.copy().digest()
    return bytes(chain)


def _tools(tools: list[Any]) -> Iterator[tuple[str, bytes]]:
    for tool in tools:
        function = tool.get("function") if isinstance(tool, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        yield str(name), _digest(codec.dumps(tool))


def _reasoned(messages: list[Any]) -> Iterator[bool]:
    for message in messages:
        if isinstance(message, dict) and message.get("role") == "assistant":
            yield bool(message.get("reasoning_content") or message.get("reasoning"))


def common_bytes(one: Rendered, other: Rendered) -> int:
    """How many bytes of the front two prompts share: exact within `FRONT_BYTES`, in whole blocks behind it."""
    low, high = 0, min(len(one.chain), len(other.chain)) // _HASH_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        place = slice((middle - 1) * _HASH_BYTES, middle * _HASH_BYTES)
        if one.chain[place] == other.chain[place]:
            low = middle
        else:
            high = middle - 1
    shared = low * BLOCK_BYTES
    end = min(len(one.front), len(other.front))
    if shared >= end:
        whole = min(one.total_bytes, other.total_bytes)
        # The last part of a block is not hashed; if all blocks agree, the rest is taken to agree as well.
        return whole if whole - shared < BLOCK_BYTES else shared
    low, high = shared, end
    while low < high:
        middle = (low + high + 1) // 2
        if one.front[shared:middle] == other.front[shared:middle]:
            low = middle
        else:
            high = middle - 1
    return low
