"""Running `k3` in this process, as a user would, and keeping what it prints."""

import contextlib
import io
import sys
from typing import NamedTuple
from unittest import mock

from k3stack.cli.main import main


class Ran(NamedTuple):
    code: int
    out: str
    err: str


def k3(*arguments: str) -> Ran:
    out, err = io.StringIO(), io.StringIO()
    code = 0
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.object(sys, "argv", ["k3", *arguments]),
    ):
        try:
            main()
        except SystemExit as exit_:
            code = exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    return Ran(code, out.getvalue(), err.getvalue())
