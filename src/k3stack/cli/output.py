"""The one output sink: data to stdout as a table for people or as JSON, talk to stderr.

Every verb makes one `Output` and gives its result to `result`, so `--json` means the same everywhere.
Exit codes: 0 yes, 1 no (a verdict), 2 wrong use, 3 failure.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from k3stack.errors import K3Error

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["NO", "YES", "JsonFlag", "Output", "Report", "report_error", "silence"]

YES, NO = 0, 1

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON value instead of tables.")]

Report = Callable[[int, "int | None", str], None]
"""Called with (done, total or None, what) while a long job runs."""


class Output:
    """Where a verb's result goes.

    Args:
        as_json: one JSON value on stdout instead of tables.
    """

    def __init__(self, as_json: bool = False) -> None:
        self.as_json = as_json

    def result(self, value: object, show: Callable[[Console], None]) -> None:
        """Print a verb's result: `value` as JSON, or what `show` draws on the console."""
        if self.as_json:
            from k3stack.values import dump

            _write(json.dumps(dump(value), indent=2, ensure_ascii=False))
            return
        wide = sys.stdout.isatty()
        with _reader_may_leave():
            show(_console(soft_wrap=not wide, width=None if wide else 110))

    def text(self, text: str, value: object) -> None:
        """Print text that is itself the product (a command, a manifest), byte for byte, or its value as JSON."""
        if self.as_json:
            self.result(value, lambda _: None)
        else:
            _write(text)

    def note(self, text: str) -> None:
        """Say something to the person at the terminal; never part of the result."""
        sys.stderr.write(text + "\n")

    @contextmanager
    def progress(self, title: str, unit: str = "") -> Iterator[Report]:
        """A progress bar on stderr for work that may pass two seconds; silent where stderr is no terminal.

        With the unit "bytes" it shows how much is done, how fast, and the time left.
        """
        if not sys.stderr.isatty():
            yield lambda done, total, what: None
            return
        from rich.console import Console
        from rich.progress import DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

        columns = [*Progress.get_default_columns()]
        if unit == "bytes":
            columns = [*columns[:2], DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()]
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(title, total=None)

            def report(done: int, total: int | None, what: str) -> None:
                bar.update(task, completed=done, total=total, description=f"{title} {what}".rstrip())

            yield report


def _write(text: str) -> None:
    with _reader_may_leave():
        sys.stdout.write(text if text.endswith("\n") else text + "\n")


@contextmanager
def _reader_may_leave() -> Iterator[None]:
    """A reader that has seen enough (`| head`) changes nothing about the verdict; what is left goes nowhere."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        silence()


def silence() -> None:
    """Throw away what is still written to stdout."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _console(**options: Any) -> Console:
    from rich.console import Console

    class Plain(Console):
        """rich ends the process with 1, our word for no, when its reader leaves."""

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    return Plain(file=sys.stdout, highlight=False, **options)


def report_error(error: K3Error, as_json: bool) -> None:
    """Print an error the user can act on: what, where, what next."""
    where = f"{error.where}: " if error.where else ""
    sys.stderr.write(f"error: {where}{error.what}\n")
    if error.hint:
        sys.stderr.write(f"next:  {error.hint}\n")
    if as_json:
        body = {"kind": type(error).__name__, "what": error.what, "where": error.where, "next": error.hint}
        _write(json.dumps({"error": body}, indent=2, ensure_ascii=False))
