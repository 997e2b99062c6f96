"""Server-sent events as bytes: an incremental reader that keeps each event's own bytes, and writers."""

from __future__ import annotations

from typing import NamedTuple

from k3stack.errors import InputError
from k3stack.guard import codec

__all__ = ["DONE", "KEEP_ALIVE", "Event", "SseReader", "event", "one_event"]

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": k3-guard\n\n"


class Event(NamedTuple):
    """One event: its `data` lines joined (None where it has none, as in a comment), and its bytes as they came."""

    data: bytes | None
    raw: bytes


class SseReader:
    """Cuts a byte stream into events, in time linear in the bytes, however they are cut.

    Args:
        max_event_bytes: an event longer than this is an error, so that a broken upstream cannot fill the memory.
    """

    def __init__(self, max_event_bytes: int = 64 * 2**20) -> None:
        self._buffer = bytearray()
        self._max_event_bytes = max_event_bytes
        self._after_carriage_return = False

    def feed(self, data: bytes) -> list[Event]:
        """The events that these bytes complete.

        Raises:
            InputError: an event is longer than allowed.
        """
        if b"\r" in data or self._after_carriage_return:
            data = self._unix_lines(data)
        if not self._buffer and data.endswith(b"\n\n"):
            return [one_event(block) for block in data[:-2].split(b"\n\n") if block]
        searched = max(0, len(self._buffer) - 1)
        self._buffer += data
        if self._buffer.find(b"\n\n", searched) < 0:
            if len(self._buffer) > self._max_event_bytes:
                raise InputError(f"an event is longer than {self._max_event_bytes:,} bytes", where="event stream")
            return []
        end = self._buffer.rfind(b"\n\n") + 2
        whole = bytes(self._buffer[: end - 2])
        del self._buffer[:end]
        return [one_event(block) for block in whole.split(b"\n\n") if block]

    @property
    def between_events(self) -> bool:
        """Whether the next byte begins an event."""
        return not self._buffer and not self._after_carriage_return

    @property
    def unfinished(self) -> bytes:
        """The beginning of an event that has not ended yet."""
        return bytes(self._buffer)

    def _unix_lines(self, data: bytes) -> bytes:
        """Line ends as one newline each; a carriage return at the very end may still get its newline."""
        if self._after_carriage_return and data.startswith(b"\n"):
            data = data[1:]
        self._after_carriage_return = data.endswith(b"\r")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def one_event(block: bytes) -> Event:
    """The event of a block of lines, without the blank line that ends it."""
    raw = block + b"\n\n"
    if block.startswith(b"data: ") and b"\n" not in block:
        return Event(block[6:], raw)
    lines = []
    for line in block.split(b"\n"):
        if line.startswith(b"data:"):
            lines.append(line[6:] if line.startswith(b"data: ") else line[5:])
    return Event(b"\n".join(lines) if lines else None, raw)


def event(value: object) -> bytes:
    """`value` as the JSON data of one event."""
    return b"data: " + codec.dumps(value) + b"\n\n"
