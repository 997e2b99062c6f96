"""Serving the panel: one granian worker on the loopback address."""

from __future__ import annotations

import gc
import json
import os

from k3stack.panel.app import PanelApp
from k3stack.ports import require_free

__all__ = ["application", "serve"]

_HOSTS = "K3_PANEL_HOSTS"


def application() -> PanelApp:
    """The application; what the worker process calls."""
    made = PanelApp(tuple(json.loads(os.environ[_HOSTS])))
    gc.freeze()  # what is there now stays: looking through it for garbage held an answer up for a tenth of a second
    return made


def serve(host: str, port: int, names: tuple[str, ...] = ()) -> None:
    """Serve until SIGINT or SIGTERM.

    Args:
        names: what the page may be called, besides its address: the name of a proxy in front of it.

    Raises:
        UnavailableError: the address is taken.
    """
    from granian.constants import Interfaces
    from granian.server import Server

    require_free(host, port)
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
