"""Whether two of {checkpoint under the reference engine, live endpoint} compute the same: `k3 parity`."""

from __future__ import annotations

from k3stack.reference.parity.compare import ParityReport, PromptParity, compare
from k3stack.reference.parity.side import Scored, Side

__all__ = ["ParityReport", "PromptParity", "Scored", "Side", "compare"]
