"""Is it ready: /health says so, the door is ours, and one real token comes back."""

from __future__ import annotations

import threading
import time
from typing import Any

from k3stack.launch.launcher import Launched
from k3stack.ports import listeners

__all__ = ["ReadyProbe"]

_PAUSE_S = 0.3
_FIRST_TOKEN_S = 1_200.0
"""The first request may compile kernels for many minutes; a dead engine is seen by others meanwhile."""


class ReadyProbe:
    """Asks in a thread of its own, so that a server which takes its time delays nobody.

    Attributes:
        healthy: whether /health has answered 200.
        ready: whether one token came back.
        model: the name that was asked for.
        first_token_s: how long that one request took.
        foreign: who has the door, if it is not the engine.
        refused: what the server said instead of answering.
    """

    def __init__(self, launched: Launched) -> None:
        self.launched, self.start = launched, launched.start
        self.healthy = self.ready = False
        self.model: str | None = launched.start.model
        self.first_token_s: float | None = None
        self.foreign: str | None = None
        self.refused: str | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask, name="k3-ready", daemon=True)

    def begin(self) -> None:
        """Start asking."""
        self._thread.start()

    def end(self) -> None:
        """Ask no more."""
        self._over.set()

    def _ask(self) -> None:
        import httpx

        # No proxy stands between us and this machine.
        with httpx.Client(base_url=self.start.url, timeout=2.0, trust_env=False) as client:
            while not self._over.wait(_PAUSE_S):
                try:
                    if client.get("/health").status_code == 200 and self._is_ours():
                        self.healthy = True
                        self._request(client)
                        return
                except httpx.HTTPError:
                    continue

    def _is_ours(self) -> bool:
        """Whether the door belongs to a process of this run; where that cannot be seen, it is believed."""
        if self.start.container is not None:
            return True
        holders = listeners(self.start.port)
        if not holders or holders & set(self.launched.processes()):
            return True
        from k3stack.ports import holder_of

        self.foreign = holder_of(self.start.port) or "another process"
        return False

    def _request(self, client: Any) -> None:
        import httpx

        try:
            if self.model is None:
                self.model = str(client.get("/v1/models").json()["data"][0]["id"])
            began = time.monotonic()
            answer = self._post(client, "chat/completions", {"messages": [{"role": "user", "content": "Hi"}]})
            if answer.status_code in (400, 404):  # a model without a chat template
                answer = self._post(client, "completions", {"prompt": "Hi"})
        except (httpx.HTTPError, ValueError, KeyError, IndexError, TypeError) as error:
            self.refused = f"healthy, but no answer to one request: {type(error).__name__} {error}".strip()
            return
        if answer.status_code == 200:
            self.first_token_s = time.monotonic() - began
            self.ready = True
        else:
            self.refused = f"healthy, but one request is refused: HTTP {answer.status_code} {answer.text[:300]}"

    def _post(self, client: Any, path: str, body: dict[str, Any]) -> Any:
        return client.post(f"/v1/{path}", json={"model": self.model, "max_tokens": 1, **body}, timeout=_FIRST_TOKEN_S)
