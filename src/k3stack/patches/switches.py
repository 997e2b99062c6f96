"""The environment variables that steer the patches."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

__all__ = ["MASTER", "Mode", "Switch", "mode", "switch"]

MASTER = "K3_PATCHES"


class Mode(StrEnum):
    """What `K3_PATCHES` asks for."""

    AUTO = "auto"
    """Apply what the probes say is needed; a patch that cannot apply is an error in the log."""
    STRICT = "strict"
    """As auto, but a needed patch that cannot apply stops the process."""
    OFF = "off"
    """Touch nothing."""


class Switch(StrEnum):
    """What one patch's own variable asks for."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


_WORDS = {"": Switch.AUTO, "auto": Switch.AUTO, "1": Switch.ON, "on": Switch.ON, "true": Switch.ON}
_WORDS |= {"0": Switch.OFF, "off": Switch.OFF, "false": Switch.OFF}


def mode(environ: Mapping[str, str]) -> Mode:
    """The mode `K3_PATCHES` names; auto when unset.

    Raises:
        ValueError: it names none.
    """
    word = environ.get(MASTER, "").strip().lower()
    if word in ("", "1", "on"):
        return Mode.AUTO
    if word in ("0", "false"):
        return Mode.OFF
    try:
        return Mode(word)
    except ValueError:
        raise ValueError(f"{MASTER}={word} is none of auto, strict, off") from None


def switch(environ: Mapping[str, str], name: str) -> Switch:
    """What the variable `name` asks for.

    Raises:
        ValueError: neither 0, 1 nor auto.
    """
    word = environ.get(name, "").strip().lower()
    if word not in _WORDS:
        raise ValueError(f"{name}={word} is none of 0, 1, auto")
    return _WORDS[word]
