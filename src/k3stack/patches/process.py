"""What happens in a vLLM process once K3's model is there: settle the patches, say so, stop in strict mode."""

from __future__ import annotations

import os
import sys

from .registry import settle_process, stops_the_server
from .report import applied_lines, failure_lines, front_end_lines, summary_line
from .switches import MASTER

__all__ = ["settle_and_report"]


def settle_and_report() -> None:
    """Settle every patch in this process and write the outcome to vLLM's log.

    Raises:
        SystemExit: a switch makes no sense, or strict mode and a patch that may be needed cannot apply. Not an
            ordinary exception: vLLM would log one and go on with the model's code as it is.
    """
    vllm = sys.modules["vllm"]
    try:
        outcomes, first = settle_process(vllm, os.environ)
    except ValueError as error:
        _say("ERROR", f"Kimi-K3 runtime patches: {error}")
        raise SystemExit(f"Kimi-K3 runtime patches: {error}") from error
    if not first:
        return
    for line in applied_lines(outcomes):
        _say("INFO", line)
    for line in failure_lines(outcomes):
        _say("ERROR", line)
    for line in front_end_lines(outcomes, os.environ):
        _say("WARNING", line)
    _say("INFO", summary_line(outcomes, str(getattr(vllm, "__version__", "unknown")), _process_name(), os.getpid()))
    if stops_the_server(outcomes, os.environ):
        raise SystemExit(f"Kimi-K3 runtime patches: {MASTER}=strict and a patch cannot apply, see above")


def _process_name() -> str:
    import multiprocessing

    name = multiprocessing.current_process().name
    return "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in name) or "unnamed"


def _say(level: str, line: str) -> None:
    """Write through vLLM's logger, which names the process; to stderr where that logger would drop the line."""
    import logging

    logger = logging.getLogger("vllm.k3_patches")
    number = logging.getLevelNamesMapping()[level]
    if logger.isEnabledFor(number) and logger.hasHandlers():
        logger.log(number, line)
    else:
        sys.stderr.write(f"{level} {line}\n")
