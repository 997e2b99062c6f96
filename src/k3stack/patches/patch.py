"""What a patch is: one shape for all of them, and the four states one can end in.

A patch is a class in a file of its own. It says what it is (`number`, `switch`, `title`, `line`, `knowledge`,
`upstream`), asks the real code whether it is needed (`needed`, a probe of behaviour, never a version test), makes
all of its changes through one `Edits` (`apply`), and proves the result (`verify`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from .edits import Edits

__all__ = ["CannotApplyError", "Finding", "Outcome", "Patch", "Pull", "Span", "State"]


class State(StrEnum):
    """How a patch ended in this process. There is no fifth state."""

    NOT_NEEDED = "not-needed"
    APPLIED = "applied"
    DISABLED = "disabled"
    CANNOT = "cannot-apply"


class CannotApplyError(Exception):
    """A part of a patch found the engine's code other than it must be; the message says what and where."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a probe saw: whether the patch is needed, and why, in a few words."""

    needed: bool
    why: str


@dataclass(frozen=True, slots=True)
class Pull:
    """An upstream pull request and its state when we last looked."""

    name: str
    state: str


@dataclass(frozen=True, slots=True)
class Span:
    """What is known about a run of vLLM releases: first and last release, both included, and what holds there.

    `state` is the state that the patch ends in with every switch at its default.
    """

    first: str
    last: str
    state: State
    note: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one patch ended: its state, why, and the line that the server log shows when it was applied."""

    number: int
    title: str
    switch: str
    state: State
    why: str
    line: str = ""


class Patch(ABC):
    """One runtime patch. Subclasses fill in the class attributes and the three methods."""

    number: ClassVar[int]
    switch: ClassVar[str]
    """Environment variable: 0 never, 1 also when the patch is optional, unset or auto: as the probe says."""
    title: ClassVar[str]
    line: ClassVar[str]
    """Printed once per process after the patch is applied and verified."""
    knowledge: ClassVar[tuple[Span, ...]]
    upstream: ClassVar[tuple[Pull, ...]] = ()
    retires: ClassVar[str] = ""
    """When this patch can be deleted, one sentence."""
    optional: ClassVar[bool] = False
    """True for a choice rather than a repair: applied only when its switch is 1."""
    front_end: ClassVar[bool] = False
    """True if it acts in the API server, where the Rust front-end has no Python to patch."""

    @abstractmethod
    def needed(self) -> Finding:
        """Run the probe on the engine's real code.

        Raises:
            Exception: the engine's code is not what the probe knows; the patch then cannot apply.
        """

    @abstractmethod
    def apply(self, edits: Edits) -> None:
        """Make every change through `edits`, so that all of them can be undone together.

        Raises:
            CannotApplyError: a symbol or a signature is not what the patch knows.
        """

    def verify(self) -> Finding:
        """Prove the patched code; the same probe by default, which must now find nothing to do."""
        return self.needed()
