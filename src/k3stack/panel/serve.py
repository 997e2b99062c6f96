"""Serving the panel: one granian worker on the loopback address."""

from __future__ import annotations

import json
import os
import socket

from k3stack.errors import UnavailableError
from k3stack.panel.app import PanelApp

__all__ = ["application", "serve"]

_HOSTS = "K3_PANEL_HOSTS"


def application() -> PanelApp:
    """The application; what the worker process calls."""
    return PanelApp(tuple(json.loads(os.environ[_HOSTS])))


def serve(host: str, port: int, names: tuple[str, ...] = ()) -> None:
    """Serve until SIGINT or SIGTERM.

    Args:
        names: what the page may be called, besides its address: the name of a proxy in front of it.

    Raises:
        UnavailableError: the address is taken.
    """
    from granian.constants import Interfaces
    from granian.server import Server

    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            hint = "Choose another with --port."
            raise UnavailableError(f"cannot listen: {error.strerror}", where=f"{host}:{port}", hint=hint) from None
    os.environ[_HOSTS] = json.dumps([f"[{host}]" if ":" in host else host, *names])
    server = Server(
        "k3stack.panel.serve:application",
        factory=True,
        address=host,
        port=port,
        interface=Interfaces.ASGI,
        log_access=False,
        log_enabled=False,
    )
    server.serve()
