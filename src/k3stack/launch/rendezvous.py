"""The rendezvous check: can every rank reach the head, and do their clocks agree. One line of JSON each way.

The head's answer carries its clock; the difference is its time less the middle of the round trip (as NTP does), taken
from the quickest of some exchanges.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable

from k3stack.errors import UnavailableError, UsageError
from k3stack.launch.facts import HeadSeen

__all__ = ["parse_address", "reach", "wait_for"]

_TRIES = 5
_LINE = 4096


def parse_address(text: str) -> tuple[str, int]:
    """HOST:PORT, or [v6]:PORT.

    Raises:
        UsageError: it is neither.
    """
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65_536:
        raise UsageError("is no HOST:PORT", where=text, hint="For example 10.0.0.1:29500.")
    return host.strip("[]"), int(port)


def reach(address: str, timeout_s: float = 5.0) -> HeadSeen:
    """Try to reach the head, which runs `wait_for`, or just listens."""
    host, port = parse_address(address)
    try:
        with socket.create_connection((host, port), timeout=timeout_s) as one, one.makefile("rwb") as lines:
            best: tuple[float, float] | None = None
            for number in range(_TRIES):
                sent = time.time()
                lines.write(json.dumps({"k3": "rank", "number": number, "host": socket.gethostname()}).encode() + b"\n")
                lines.flush()
                answer = json.loads(lines.readline(_LINE) or b"null")
                came = time.time()
                if not isinstance(answer, dict) or "time" not in answer:
                    return HeadSeen(address, True)
                trip = came - sent
                if best is None or trip < best[0]:
                    best = trip, float(answer["time"]) - (sent + trip / 2)
    except json.JSONDecodeError:
        return HeadSeen(address, True)  # it listens, and speaks something else: the engine itself
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return HeadSeen(address, isinstance(error, TimeoutError) and _connects(host, port), said)
    return HeadSeen(address, True, "", *(best or (None, None)))


def _connects(host: str, port: int) -> bool:
    """Whether a connection can be made at all: a listener that says nothing is reachable too."""
    try:
        socket.create_connection((host, port), timeout=2.0).close()
    except OSError:
        return False
    return True


def wait_for(
    host: str, port: int, ranks: int, timeout_s: float = 600.0, told: Callable[[str], None] = lambda _: None
) -> tuple[str, ...]:
    """Be the head: answer until this many different ranks have come. Returns who they were.

    Raises:
        UnavailableError: the port cannot be listened on, or not all came in time.
    """
    came: dict[str, None] = {}
    deadline = time.monotonic() + timeout_s
    try:
        server = socket.create_server((host, port))
    except OSError as error:
        raise UnavailableError(f"cannot be listened on: {error.strerror}", where=f"{host}:{port}") from error
    with server:
        while len(came) < ranks:
            left = deadline - time.monotonic()
            if left <= 0:
                said = f"{len(came)} of {ranks} ranks came ({', '.join(came) or 'none'})"
                raise UnavailableError(
                    said, where=f"{host}:{port}", hint="Run the check on the others, and see firewalls."
                )
            server.settimeout(left)
            try:
                connection, peer = server.accept()
            except TimeoutError:
                continue
            name = _answer(connection, peer[0])
            if name and name not in came:
                came[name] = None
                told(f"{name} came ({len(came)} of {ranks})")
    return tuple(came)


def _answer(connection: socket.socket, peer: str) -> str | None:
    """Answer one rank's lines; its name, or None for a stranger."""
    name = None
    with connection, connection.makefile("rwb") as lines:
        connection.settimeout(5.0)
        try:
            for line in iter(lambda: lines.readline(_LINE), b""):
                said = json.loads(line)
                if said.get("k3") != "rank":
                    return name
                name = f"{said.get('host', '')} ({peer})"
                lines.write(json.dumps({"k3": "head", "time": time.time()}).encode() + b"\n")
                lines.flush()
        except (OSError, ValueError, AttributeError):
            return name
    return name
