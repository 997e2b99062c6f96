"""Running the proxy: one granian worker with the application in it.

Granian reads and writes sockets on threads of its own, in Rust; a bare proxy on it serves about 1.5 times as many
requests as on uvicorn (benchmarks/guard_choices.py). It starts the worker as a new process, so the settings travel
as JSON in the environment.
"""

from __future__ import annotations

import json
import logging
import os

from k3stack.guard.app import GuardApp
from k3stack.guard.journal import JournalHandler
from k3stack.guard.settings import Settings
from k3stack.ports import require_free
from k3stack.values import dump, load

__all__ = ["application", "serve"]

_SETTINGS = "K3_GUARD_SETTINGS"


def application() -> GuardApp:
    """The application for the settings in the environment; what the worker process calls."""
    app = GuardApp(load(Settings, json.loads(os.environ[_SETTINGS])))
    logging.getLogger().addHandler(JournalHandler(app.journal))
    return app


def serve(settings: Settings, host: str, port: int, drain_s: int) -> None:
    """Serve until SIGINT or SIGTERM, then take no new requests and finish those begun, for at most `drain_s`.

    Raises:
        UnavailableError: the address is taken.
    """
    from granian.constants import Interfaces, Loops
    from granian.http import HTTP1Settings
    from granian.server import Server

    require_free(host, port)
    os.environ[_SETTINGS] = json.dumps(dump(settings))
    server = Server(
        "k3stack.guard.serve:application",
        factory=True,
        address=host,
        port=port,
        interface=Interfaces.ASGI,
        loop=Loops.uvloop,
        backlog=max(128, settings.max_in_flight),
        # Above our own limit, which answers 429 instead of letting connections wait unanswered.
        backpressure=settings.max_in_flight + 64,
        http1_settings=HTTP1Settings(header_read_timeout=30_000),
        workers_kill_timeout=drain_s,
        log_access=False,
        log_enabled=False,
    )
    server.serve()
