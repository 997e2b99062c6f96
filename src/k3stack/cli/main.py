"""The command `k3`: the list of verbs, and the one place where errors become exit codes."""

from __future__ import annotations

import errno
import os
import sys
from typing import Annotated, NoReturn

import typer

from k3stack import __version__
from k3stack.cli import (
    check,
    compare,
    convert,
    doctor,
    down,
    engines,
    guard,
    hardware,
    inspect,
    panel,
    parity,
    patches,
    plan,
    preflight,
    recipe,
    serve,
    status,
    tiny,
    up,
)
from k3stack.cli.output import report_error, silence
from k3stack.errors import K3Error, UnavailableError, next_step

__all__ = ["app", "main"]

app = typer.Typer(
    name="k3",
    help="From a Kimi-K3 checkpoint to an endpoint people can trust.",
    epilog="Exit codes: 0 yes, 1 no (a verdict), 2 wrong use, 3 failure.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # rich costs half of the start-up time of `k3 --help`
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"k3stack {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """From a Kimi-K3 checkpoint to an endpoint people can trust."""


app.command("hardware")(hardware.hardware)
app.add_typer(engines.app, name="engines")
app.command("inspect")(inspect.inspect)
app.command("convert")(convert.convert)
app.command("compare")(compare.compare)
app.command("plan")(plan.plan)
app.command("recipe")(recipe.recipe)
app.command("panel")(panel.panel)
app.command("preflight")(preflight.preflight)
app.command("up", context_settings={"allow_extra_args": True})(up.up)
app.command("status")(status.status)
app.command("down")(down.down)
app.command("check")(check.check)
app.add_typer(doctor.doctor, name="doctor")
app.command("guard")(guard.guard)
app.add_typer(patches.app, name="patches")
app.command("serve")(serve.serve)
app.command("parity")(parity.parity)
app.command("tiny")(tiny.tiny)


def main() -> None:
    """Run `k3`. Bad input never ends in a traceback; a bug in k3stack does, so that it gets reported."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by who started us
            setattr(sys, name, open(os.devnull, "w"))  # noqa: PTH123, SIM115  (it lives as long as the process)
    try:
        app()
    except K3Error as error:
        _end(error)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        silence()
        sys.exit(0)
    except OSError as error:
        if error.errno not in _MACHINE:
            raise
        where = error.filename2 or error.filename or _STDOUT
        _end(UnavailableError(str(error.strerror), where=where, hint=next_step(error)))


_STDOUT = "stdout"

_MACHINE = {
    errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP, errno.EMFILE,
}  # fmt: skip
"""What is wrong with the machine and not with k3stack, wherever it shows: a full disk, a folder that is read-only."""


def _end(error: K3Error) -> NoReturn:
    if error.where == _STDOUT:
        silence()
    try:
        report_error(error, as_json="--json" in sys.argv)
    except OSError:  # stdout takes nothing; stderr has had its say
        silence()
    sys.exit(error.exit_code)
