"""What is known without running anything: which patch ends in which state on which vLLM release.

The tables live with the patches. They are checked against the releases themselves by the engine tests, and a
release that they do not cover is an error, not a guess.
"""

from __future__ import annotations

import re

from .patch import Patch, Span, State
from .registry import all_patches

__all__ = ["RELEASES", "expected_numbers", "known_releases", "known_span", "parse_release"]

RELEASES = ("0.27.0", "0.27.1", "0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0")
"""The releases whose source was read; all but 0.27.0 are in the engine tests."""


def parse_release(version: str) -> tuple[int, ...] | None:
    """0.33.0 as (0, 33, 0); None for a development build, whose code no table can know."""
    found = re.fullmatch(r"(\d+)\.(\d+)\.(\d+)(?:\.post\d+)?(?:\+\w+)?", version)
    return tuple(int(part) for part in found.groups()) if found else None


def known_span(patch: Patch, version: str) -> Span | None:
    """What is known of a patch on a release, or None."""
    release = parse_release(version)
    if release is None:
        return None
    for span in patch.knowledge:
        if (parse_release(span.first) or ()) <= release <= (parse_release(span.last) or ()):
            return span
    return None


def known_releases() -> str:
    """The releases that the tables cover, for messages."""
    return f"{RELEASES[0]} to {RELEASES[-1]}"


def expected_numbers(version: str) -> tuple[int, ...] | None:
    """The patches that a server of this release should have active for nvidia/Kimi-K3-NVFP4; None if not known.

    Patch 1 is not among them: that checkpoint has no MXFP8 layer, so its absence changes nothing.
    """
    spans = {patch.number: known_span(patch, version) for patch in all_patches()}
    if any(span is None for span in spans.values()):
        return None
    return tuple(n for n, span in spans.items() if span is not None and span.state is State.APPLIED and n != 1)
