"""`k3 panel`: the web page, served or exported."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from k3stack.cli.output import YES, JsonFlag, Output

__all__ = ["panel"]


def panel(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65_535, help="Port to listen on.")] = 8090,
    name: Annotated[
        list[str] | None, typer.Option(help="What a proxy in front may call this page; may be given several times.")
    ] = None,
    export: Annotated[
        Path | None, typer.Option(help="Write the page as a site of files into this folder, instead of serving it.")
    ] = None,
    hardware: Annotated[
        list[str] | None, typer.Option(help="With --export: only this GPU; may be given several times.")
    ] = None,
    all_releases: Annotated[
        bool, typer.Option("--all-releases", help="With --export: every release, not only the newest of each engine.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Choose a deployment on a web page that knows memory, versions and reasons."""
    from k3stack.errors import UnavailableError, UsageError

    output = Output(as_json)
    if export is not None:
        _export(output, export, hardware or [], all_releases)
        raise typer.Exit(YES)
    if hardware or all_releases:
        raise UsageError("belongs to an export", where="--hardware, --all-releases", hint="Add --export DIR.")
    try:
        import granian  # noqa: F401
    except ModuleNotFoundError as error:
        hint = "Install it: pip install 'k3stack[panel]'. `k3 panel --export DIR` needs nothing more."
        raise UnavailableError(f"serving the panel needs the package {error.name}", hint=hint) from None
    from k3stack.panel.serve import serve

    shown = f"[{host}]" if ":" in host else host
    output.note(f"panel on http://{shown}:{port}/; Ctrl-C ends it")
    serve(host, port, tuple(name or ()))


def _export(output: Output, folder: Path, hardware: list[str], all_releases: bool) -> None:
    from k3stack.hardware.table import gpu
    from k3stack.panel.export import export

    kinds = tuple(gpu(name).id for name in hardware)
    try:
        with output.progress("writing the site") as report:
            written = export(folder, kinds, all_releases, report)
    except KeyboardInterrupt:
        output.note("interrupted; the same command goes on from here")
        raise
    kept = f" ({written.kept:,} of an earlier export)" if written.kept else ""
    output.result(
        written,
        lambda console: console.print(
            f"{written.states:,} choices{kept}, {written.files} files, {written.size_bytes / 1e6:.1f} MB: "
            f"open {written.folder}/index.html"
        ),
    )
