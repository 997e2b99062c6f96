"""TCP ports of this machine: can one be listened on, and which process does (from /proc); and servers' addresses."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from k3stack.errors import UnavailableError

__all__ = ["free_port", "holder_of", "is_address", "listeners", "require_free", "title_of", "try_to_listen"]

_LISTEN = "0A"


def try_to_listen(host: str, port: int) -> str | None:
    """None when the port can be listened on as the engines do, else what the system says."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        return f"{host}: {error.strerror}"
    with socket.socket(family, kind, protocol) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(address)
            one.listen(1)
        except OSError as error:
            return error.strerror or str(error)
    return None


def require_free(host: str, port: int) -> None:
    """Pass where a server may listen; called before it starts, since its own error comes from another process.

    Raises:
        UnavailableError: the address is taken, or is not this machine's.
    """
    said = try_to_listen(host, port)
    if said is not None:
        hint = "Choose another with --port."
        raise UnavailableError(f"cannot listen: {said}", where=f"{host}:{port}", hint=hint)


def is_address(text: str) -> bool:
    """Whether a text is a server's address, as in http://127.0.0.1:8000 or https://host/v1."""
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port or an IPv6 address that is none
        return False


def free_port(host: str = "127.0.0.1") -> int:
    """A port that is free now; somebody else may take it before it is used."""
    with socket.socket() as one:
        one.bind((host, 0))
        port: int = one.getsockname()[1]
        return port


def listeners(port: int) -> frozenset[int]:
    """The processes that listen on a port, as far as /proc shows them to this user."""
    inodes = set(_listening_inodes(port))
    if not inodes:
        return frozenset()
    return frozenset(pid for pid in _pids() if inodes & set(_socket_inodes(pid)))


def holder_of(port: int) -> str:
    """Who listens on a port, in words; empty when /proc does not show it."""
    titles = ((title_of(pid), pid) for pid in sorted(listeners(port)))
    return ", ".join(f"{title[:80]} (pid {pid})" for title, pid in titles if title is not None)


def title_of(pid: int) -> str | None:
    """What a process calls itself, or its command; None when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return None


def _listening_inodes(port: int) -> Iterator[str]:
    for name in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/net/{name}").read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            cells = line.split()
            if cells[3] == _LISTEN and int(cells[1].rpartition(":")[2], 16) == port:
                yield cells[9]


def _pids() -> Iterator[int]:
    try:
        yield from (int(name) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208 - only names are needed
    except OSError:
        return


def _socket_inodes(pid: int) -> Iterator[str]:
    try:
        with os.scandir(f"/proc/{pid}/fd") as entries:
            for entry in entries:
                try:
                    target = os.readlink(entry.path)  # noqa: PTH115 - a Path for each of thousands is slow
                except OSError:
                    continue
                if target.startswith("socket:["):
                    yield target[8:-1]
    except OSError:
        return
