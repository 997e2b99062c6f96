"""The processes without which an engine is none: its core, its workers, its scheduler.

The first process of an engine takes seconds to see that its core is gone (3.2 s, measured with vLLM 0.33.0 on one
H200), and then ends with a sentence that holds no cause. So they are looked at here too.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field

from k3stack.launch.launcher import Launched
from k3stack.launch.process import Identity, alive, identity_of
from k3stack.ports import title_of

__all__ = ["Lost", "Parts"]

_VITAL = re.compile(r"^(?:VLLM::(?:EngineCore|Worker)|sglang::(?:scheduler|data_parallel_controller|detokenizer))")
"""As vLLM 0.27.1 to 0.33.0 and SGLang 0.5.18 to 0.5.23 title them."""

_LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class Lost:
    """A part that ended while the engine's first process goes on.

    Attributes:
        title: what it called itself.
        at: when it was seen to be gone (time.monotonic).
    """

    pid: int
    title: str
    at: float

    def __str__(self) -> str:
        return f"pid {self.pid} ({self.title}) is gone"


@dataclass
class Parts:
    """The vital processes of a run, remembered from one look to the next."""

    launched: Launched
    lost: Lost | None = None
    _known: dict[Identity, str] = field(default_factory=dict)
    _looked: float = 0.0

    def look(self) -> None:
        """Learn new ones once a second; see at every look whether a known one is gone."""
        if self.lost is not None:
            return
        now = time.monotonic()
        for one, title in self._known.items():
            if not alive(one):
                self.lost = Lost(one.pid, title, now)
                return
        if now - self._looked >= _LOOK_S:
            self._looked = now
            for pid in self.launched.processes():
                who, said = identity_of(pid), title_of(pid)
                if who is not None and said is not None and _VITAL.match(said):
                    self._known[who] = said.split()[0]
