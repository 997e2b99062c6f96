"""The engine's own thread: the event loop hands it requests and gets updates, and never waits for a pass."""

from __future__ import annotations

import queue
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from k3stack.errors import UsageError
from k3stack.reference.constraint import Constraint
from k3stack.reference.engine import Engine
from k3stack.reference.request import Finish, Request, Update

__all__ = ["Worker"]

Deliver = Callable[[Update], None]


@dataclass(frozen=True, slots=True)
class _Add:
    request: Request
    constraint: Constraint | None
    deliver: Deliver


@dataclass(frozen=True, slots=True)
class _Cancel:
    request_id: str


class Worker:
    """Runs an engine until `stop`.

    Args:
        engine: nobody else may use it from now on, but for reading its counters.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._inbox: queue.SimpleQueue[_Add | _Cancel | None] = queue.SimpleQueue()
        self._deliver: dict[str, Deliver] = {}
        self._thread = threading.Thread(target=self._run, name="k3-engine", daemon=True)
        self._switch_s = sys.getswitchinterval()
        self.failure: str | None = None

    @property
    def healthy(self) -> bool:
        """Whether requests are answered."""
        return self.failure is None and self._thread.is_alive()

    def start(self) -> None:
        """Begin."""
        # The engine holds the interpreter between its matrix products; 5 ms, the default, would be added to each
        # turn of the event loop.
        sys.setswitchinterval(0.0005)
        self._thread.start()

    def stop(self, timeout_s: float = 10.0) -> None:
        """End after the current pass. Requests that are still there get no more updates."""
        self._inbox.put(None)
        self._thread.join(timeout_s)
        sys.setswitchinterval(self._switch_s)

    def submit(self, request: Request, constraint: Constraint | None, deliver: Deliver) -> None:
        """Hand a request over. `deliver` is called on the engine's thread, with a finish at last; it must not block."""
        self._inbox.put(_Add(request, constraint, deliver))

    def cancel(self, request_id: str) -> None:
        """Drop a request; it gets no more updates, perhaps one that was under way."""
        self._inbox.put(_Cancel(request_id))

    def _run(self) -> None:
        while self._read_inbox():
            try:
                updates = self.engine.step()
            except Exception as error:  # a bug: say so to everybody, and on stderr
                traceback.print_exc()
                self._fail(f"{type(error).__name__}: {error}")
                return
            for update in updates:
                self._give(update)

    def _read_inbox(self) -> bool:
        """Take what came; wait for something when there is nothing to do. False when it is time to end."""
        wait = not self.engine.busy
        while True:
            try:
                message = self._inbox.get(block=wait)
            except queue.Empty:
                return True
            if message is None:
                return False
            self._handle(message)
            wait = False

    def _handle(self, message: _Add | _Cancel) -> None:
        if isinstance(message, _Cancel):
            self._deliver.pop(message.request_id, None)
            self.engine.cancel(message.request_id)
            return
        request_id = message.request.id
        self._deliver[request_id] = message.deliver
        try:
            self.engine.add(message.request, message.constraint)
        except UsageError as error:
            self._give(Update(request_id, finish=Finish.ERROR, error=str(error)))

    def _give(self, update: Update) -> None:
        deliver = self._deliver.get(update.id) if update.finish is None else self._deliver.pop(update.id, None)
        if deliver is not None:
            deliver(update)

    def _fail(self, error: str) -> None:
        """The engine is broken: end every request with an error, those to come too."""
        self.failure = error
        while True:
            for request_id in list(self._deliver):
                self._give(Update(request_id, finish=Finish.ERROR, error=error))
            message = self._inbox.get()
            if message is None:
                return
            if isinstance(message, _Add):
                self._deliver[message.request.id] = message.deliver
