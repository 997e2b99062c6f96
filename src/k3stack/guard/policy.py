"""What the guard may do, and the words it uses for what it found and did."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from k3stack.errors import UsageError

__all__ = ["MARKERS", "OnExhausted", "Policy", "Problem", "Repair", "Source", "Verdict"]

MARKERS = ("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>")
"""K3's control tokens as text. None of them belongs in a tool call."""


class Problem(StrEnum):
    """What was wrong with an answer. The codes of `k3stack.xtml` appear beside these under their own names."""

    UNDECLARED_TOOL = "undeclared_tool"
    UNEXPECTED_CALL = "unexpected_call"
    MISSING_NAME = "missing_name"
    NOT_JSON = "not_json"
    NOT_AN_OBJECT = "not_an_object"
    DUPLICATE_KEY = "duplicate_key"
    SCHEMA = "schema"
    MARKER_IN_CALL = "marker_in_call"
    LEAKED_CALL = "leaked_call"
    NO_CALL = "no_call"
    WRONG_TOOL = "wrong_tool"
    PARALLEL_CALLS = "parallel_calls"
    CUT_CALL = "cut_call"
    EMPTY_ANSWER = "empty_answer"


class Repair(StrEnum):
    """What the guard changed because there was one meaning."""

    NEW_ID = "new_id"
    PREFIX_STRIPPED = "prefix_stripped"
    EMPTY_ARGUMENTS = "empty_arguments"
    COERCED = "coerced"
    MOVED_TEXT = "moved_text"
    MARKERS_REMOVED = "markers_removed"
    RECOVERED_CALL = "recovered_call"
    DROPPED_CALL = "dropped_call"
    FINISH_REASON = "finish_reason"


class Verdict(StrEnum):
    """How one request ended, seen from the guard."""

    CLEAN = "clean"
    REPAIRED = "repaired"
    RESAMPLED = "resampled"
    EXHAUSTED = "exhausted"
    FAILED = "failed"


class OnExhausted(StrEnum):
    """What a client gets when no attempt was valid: the last calls that are strict JSON, flagged; or an error."""

    PASS = "pass"
    ERROR = "error"


class Source(StrEnum):
    """What the upstream sends: text split into fields by the engine's parsers, or all that the model wrote."""

    PARSED = "parsed"
    RAW = "raw"


@dataclass(frozen=True, slots=True)
class Policy:
    """The guard's settings.

    Args:
        resamples: how often the same request may be asked again, 0 to 2.
        resample_within_s: no resample later than this many seconds after the request came; None for no limit.
        on_exhausted: see `OnExhausted`.
        coerce: whether a value of the wrong type may be turned into the one the schema names, where there is one
            meaning ("3" to 3).
        opaque_ids: whether call ids that repeat from turn to turn (`NAME:3`) are replaced by unique ones.
        hold_reasoning: keep reasoning back until its channel has closed. Costs live reasoning; then an answer
            whose think channel was skipped is never shown as reasoning first.
        source: see `Source`.
        max_held_bytes: the most call text and held reasoning kept for one answer.
    """

    resamples: int = 1
    resample_within_s: float | None = None
    on_exhausted: OnExhausted = OnExhausted.PASS
    coerce: bool = True
    opaque_ids: bool = True
    hold_reasoning: bool = False
    source: Source = Source.PARSED
    max_held_bytes: int = 16 * 2**20

    def __post_init__(self) -> None:
        if not 0 <= self.resamples <= 2:
            raise UsageError("resamples must be 0, 1 or 2", where="Policy.resamples")
        if self.max_held_bytes < 1:
            raise UsageError("must be positive", where="Policy.max_held_bytes")
