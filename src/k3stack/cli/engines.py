"""`k3 engines`: what each release of an engine accepts, and what changed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from k3stack.cli.output import JsonFlag, Output

if TYPE_CHECKING:
    from rich.console import Console

    from k3stack.engines.difference import Difference
    from k3stack.engines.releases import FlagInfo

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="List, compare and snapshot what engine releases accept.")

Engine = Annotated[str, typer.Argument(help="vllm, sglang, vllm-router or sglang-router.")]


@app.command("list")
def listing(as_json: JsonFlag = False) -> None:
    """List the engines and releases there are snapshots of."""
    from k3stack.engines.releases import engines, release, versions

    rows = [
        {"engine": name, "version": one, "flags": len(taken.flags), "variables": len(taken.variables)}
        for name in engines()
        for one in versions(name)
        for taken in [release(name, one)]
    ]

    def show(console: Console) -> None:
        from rich.table import Table

        table = Table(box=None, pad_edge=False, header_style="bold")
        for title in ("engine", "release"):
            table.add_column(title)
        for title in ("flags", "variables"):
            table.add_column(title, justify="right")
        for row in rows:
            table.add_row(*map(str, row.values()))
        console.print(table)

    Output(as_json).result(rows, show)


@app.command()
def diff(
    engine: Engine,
    before: Annotated[str, typer.Argument(help="The older release, such as 0.28.0.")],
    after: Annotated[str, typer.Argument(help="The newer release, such as 0.33.0.")],
    everything: Annotated[bool, typer.Option("--all", help="Also flags that no recipe for K3 uses.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Say what changed between two releases, for the flags and variables that recipes for K3 use."""
    from k3stack.engines.difference import difference
    from k3stack.engines.releases import release
    from k3stack.engines.relevance import only_relevant

    found = difference(release(engine, before), release(engine, after))
    shown = found if everything else only_relevant(found)
    Output(as_json).result(shown, lambda console: show_difference(shown, everything, console))


def show_difference(found: Difference, everything: bool, console: Console) -> None:
    """A difference as text."""
    from rich.markup import escape

    console.print(f"[bold]{found.engine} {found.before} to {found.after}[/]")
    parts = (
        ("new flags", found.new_flags),
        ("flags gone", found.gone_flags),
        ("new variables", found.new_variables),
        ("variables gone", found.gone_variables),
    )
    for title, names in parts:
        if names:
            console.print(f"[bold]{title}[/]: {escape(', '.join(names))}")
    for change in found.changes:
        parted = (change.before or change.after).startswith(("lost", "gained"))
        said = [part for part in (change.before, change.after) if part]
        console.print(escape(f"--{change.flag}: {change.what}: {('; ' if parted else ' -> ').join(said)}"))
    if not everything:
        console.print("Only what recipes for K3 use; --all shows everything.")


@app.command()
def flag(
    engine: Engine,
    version: Annotated[str, typer.Argument(help="The release.")],
    name: Annotated[str, typer.Argument(help="The flag, with or without dashes; a beginning lists what starts so.")],
    as_json: JsonFlag = False,
) -> None:
    """Show what a release says about a flag: values, aliases, keys, deprecation."""
    from k3stack.engines.releases import release
    from k3stack.errors import NotKnownError

    taken = release(engine, version)
    wanted = name.lstrip("-")
    exact = taken.flag(f"--{wanted}") or taken.flag(f"-{wanted}")
    found = [exact] if exact else [one for one in taken.flags.values() if one.name.startswith(wanted)]
    if not found:
        raise NotKnownError(f"{engine} {version} has no --{wanted}", where=wanted, hint="Try a shorter beginning.")
    Output(as_json).result(found, lambda console: show_flags(found, console))


def show_flags(found: list[FlagInfo], console: Console) -> None:
    """Flags as text."""
    for one in found:
        show_flag(one, console)


def show_flag(found: FlagInfo, console: Console) -> None:
    """One flag as text."""
    from rich.markup import escape

    console.print(f"[bold]--{found.name}[/] ({found.kind}{'' if found.default is None else f', {found.default}'})")
    if found.deprecated:
        console.print(escape(f"  deprecated: {found.deprecated}"))
    for title in ("aliases", "negations", "choices", "known"):
        values = getattr(found, title)
        if values:
            console.print(escape(f"  {title}: {', '.join(values)}"))
    if found.fields:
        console.print(escape(f"  keys: {', '.join(found.fields)}"))


@app.command()
def snapshot(
    engine: Engine,
    output: Annotated[Path, typer.Argument(help="The file to write.")],
    python: Annotated[str | None, typer.Option(help="The Python of the environment that has the engine.")] = None,
    image: Annotated[str | None, typer.Option(help="A container image that has it.")] = None,
) -> None:
    """Ask an installed engine for everything that it accepts, and write it down."""
    import json

    from k3stack.engines.installed import find_python, take_snapshot
    from k3stack.files import require_place, write_text

    require_place(output, "OUTPUT")
    said = take_snapshot(engine, python or (None if image else find_python(engine)), image)
    write_text(output, json.dumps(said, indent=1) + "\n")
    Output().note(
        f"{engine} {said['version']}: {len(said['flags'])} flags, {len(said['variables'])} variables in {output}"
    )
