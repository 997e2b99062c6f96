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

    def look(self) -> None:
        """See whether a known one is gone, and learn new ones: one can die in the second in which it began."""
        if self.lost is not None:
            return
        for one, title in self._known.items():
            if not alive(one):
                self.lost = Lost(one.pid, title, time.monotonic())
                return
        for pid in self.launched.processes():
            who, said = identity_of(pid), title_of(pid)
            if who is not None and said is not None and _VITAL.match(said):
                self._known[who] = said.split()[0]
