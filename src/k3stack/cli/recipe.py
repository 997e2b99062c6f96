"""`k3 recipe`: the exact command, and the doctor of copied ones."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from k3stack.cli.options import (
    EngineName,
    EngineOption,
    EngineVersion,
    HardwareOpen,
    ParsersName,
    Sought,
    Where,
    scheme_of,
)
from k3stack.cli.output import NO, YES, JsonFlag, Output
from k3stack.cli.plan import show as show_plan
from k3stack.cli.spread import spread

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console

    from k3stack.recipe.deployment import Deployment
    from k3stack.recipe.doctor import Diagnosis, Finding
    from k3stack.recipe.examine import Examination
    from k3stack.recipe.fit import Fit

__all__ = ["recipe"]


class FormName(StrEnum):
    """What can be printed."""

    DOCKER = "docker"
    SHELL = "shell"
    COMPOSE = "compose"
    KUBERNETES = "kubernetes"
    SLURM = "slurm"
    SKYPILOT = "skypilot"


@spread
def recipe(
    where: Where = "kimi-k3",
    *,
    hardware: HardwareOpen = None,
    engine: EngineOption = EngineName.VLLM,
    engine_version: EngineVersion = None,
    sought: Sought,
    link: Annotated[str | None, typer.Option(help="A saved choice, instead of all options above.")] = None,
    form: Annotated[FormName, typer.Option("--format", help="What to print.")] = FormName.DOCKER,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say for every setting which rule set it, and why.")
    ] = False,
    client: Annotated[bool, typer.Option("--client", help="Print how to talk to the endpoint.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Let the engine's parser read the command.")] = False,
    python: Annotated[str | None, typer.Option(help="For --check: the Python that has the engine.")] = None,
    image: Annotated[str | None, typer.Option(help="For --check: a container image that has it.")] = None,
    copied: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="Examine this command, or all in a file (- is stdin): script, compose, Kubernetes, Slurm, SkyPilot.",
        ),
    ] = None,
    translate: Annotated[bool, typer.Option("--translate", help="With --from: write it for the other engine.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Print the command that serves the model, with a reason for every flag; or say what is wrong with a copied one.

    What is left open is as published for the hardware and the goal, and as much as fits.
    """
    output = Output(as_json)
    _together(("--translate", translate, "--from", copied))
    _together(("--python", python, "--check", check), ("--image", image, "--check", check))
    if copied is not None:
        _examine(output, copied, hardware, engine_version, sought.parsers, translate, form)
    found = _linked(link) if link is not None else _planned(where, hardware, engine, engine_version, sought)
    deployment = _deployment(output, found)
    if check:
        _check(output, deployment, python, image)
    if explain:
        output.result(deployment, lambda console: show_reasons(deployment, console))
    elif client:
        from k3stack.recipe.client import client_snippets

        output.text(client_snippets(deployment), deployment)
    else:
        from k3stack.recipe.render import Form, render

        output.text("" if as_json else render(deployment, Form(form.value)), deployment)


def _together(*pairs: tuple[str, object, str, object]) -> None:
    """Refuse an option that has no effect without another one."""
    from k3stack.errors import UsageError

    for option, given, needed, there in pairs:
        if given and not there:
            raise UsageError(f"has no effect without {needed}", where=option, hint=f"Add {needed}.")


def _planned(where: str, hardware: str | None, engine: EngineName, version: str | None, sought: Sought) -> Fit:
    """The choice that the options come to, with the planner's word on it."""
    from k3stack.checkpoint.target import target
    from k3stack.errors import UsageError
    from k3stack.hardware.table import gpu
    from k3stack.plan.site import saved
    from k3stack.recipe.wanted import Wanted, Wishes, fitting

    if hardware is None:
        raise UsageError("is missing", where="--hardware", hint="For example --hardware b300.")
    spec, model = target(where, scheme_of(sought.scheme))
    wanted = Wanted.of(Wishes(**sought.wishes(version)), gpu(hardware), engine.value, spec, model)
    return fitting(wanted, spec, saved(wanted.engine, wanted.gpu.id))


def _linked(link: str) -> Fit:
    from k3stack.plan.site import saved
    from k3stack.recipe.fit import fit
    from k3stack.recipe.link import from_query

    choice = from_query(link)
    return fit(choice, reserves=saved(choice.engine, choice.gpu.id))


def _deployment(output: Output, found: Fit) -> Deployment:
    """The deployment, with what there is to say about memory; what does not fit ends here with its plans."""
    from k3stack.recipe.build import build

    if not found.yes:
        output.result(found, lambda console: show_short(found, console))
        raise typer.Exit(NO)
    for told in (*([found.lowered] if found.lowered else []), *found.tight, *found.unknown):
        output.note(told)
    return build(found.choice)


def show_short(found: Fit, console: Console) -> None:
    """The plan of every role that does not fit."""
    for one in found.short:
        if len(found.roles) > 1:
            console.print(f"[bold]{one.role}[/]")
        show_plan(one.plan, console)


def _check(output: Output, deployment: Deployment, python: str | None, image: str | None) -> None:
    from k3stack.recipe.asking import check

    verdict = check(deployment, python, image)

    def show(console: Console) -> None:
        from rich.markup import escape

        console.print(f"{'taken' if verdict.yes else 'refused'} by {escape(verdict.by)}")
        for role, error in verdict.errors.items():
            console.print(escape(f"  {role}: {error}"))

    output.result(verdict, show)
    raise typer.Exit(YES if verdict.yes else NO)


def _examine(
    output: Output,
    copied: str,
    hardware: str | None,
    version: str | None,
    parsers: ParsersName,
    translate: bool,
    form: FormName,
) -> None:
    from k3stack.errors import UsageError
    from k3stack.hardware.table import gpu
    from k3stack.recipe.choice import Parsers
    from k3stack.recipe.examine import examine

    text = _copied(copied)
    kind = gpu(hardware) if hardware else None
    wanted = Parsers(parsers.value)
    found = examine(text, kind, version, wanted)
    diagnosis = found.only
    if not translate:
        if diagnosis is not None:
            output.result(diagnosis, lambda console: show_diagnosis(diagnosis, console))
        else:
            output.result(found, lambda console: show_examination(found, console))
        raise typer.Exit(YES if found.good else NO)
    if diagnosis is None:
        raise UsageError(
            f"{len(found.roles)} commands are here, and one is translated at a time",
            where="--from",
            hint="Give one command; `k3 recipe --engine` writes all roles of an endpoint anew.",
        )
    from k3stack.recipe.render import Form, render
    from k3stack.recipe.translate import translate as translated

    other = translated(diagnosis, kind, wanted)
    for name in other.untranslated:
        output.note(f"no equivalent: {name}")
    output.text(render(other.deployment, Form(form.value)), other)
    raise typer.Exit(YES)


def _copied(given: str) -> str:
    """The text to examine. A single word is no command: it names a file, with or without a @; - is standard input.

    Raises:
        InputError: the file cannot be read.
    """
    from k3stack.errors import InputError, next_step

    if not given.startswith("@") and (not given or len(given.split()) != 1):
        return given
    path = Path("/dev/stdin" if given == "-" else given.removeprefix("@"))
    try:
        return path.read_text()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=path, hint=next_step(error)) from error
    except ValueError as error:  # NUL in a name, or bytes that are no UTF-8
        hint = "Give a text file with the command."
        raise InputError("cannot be read: it is no UTF-8", where=path, hint=hint) from error


def show_diagnosis(diagnosis: Diagnosis, console: Console) -> None:
    """Every finding with its reason and fix."""
    from rich.markup import escape

    console.print(f"[bold]{escape(_named(diagnosis))}[/]: {_verdict(diagnosis.good)} ({escape(diagnosis.checked_by)})")
    for assumed in diagnosis.assumed:
        console.print(escape(f"assumed: {assumed}"))
    _show_findings(diagnosis.findings, console)


def show_examination(found: Examination, console: Console) -> None:
    """The verdict over several commands, what is wrong with them together, then each by itself."""
    from rich.markup import escape

    console.print(f"[bold]{len(found.roles)} commands[/]: {_verdict(found.good)}")
    for assumed in found.assumed:
        console.print(escape(f"assumed: {assumed}"))
    _show_findings(found.together, console)
    for one in found.roles:
        where = f"line {one.line}" if one.line else ""
        place = ", ".join(text for text in (one.stands_in, where) if text)
        title = f"[bold]{escape(one.name)}[/]{escape(f' ({place})') if place else ''}"
        console.print(f"\n{title}: {escape(_named(one.diagnosis))}: {_verdict(one.diagnosis.good)}")
        for assumed in found.assumed_by(one):
            console.print(escape(f"assumed: {assumed}"))
        _show_findings(one.diagnosis.findings, console)


def _named(diagnosis: Diagnosis) -> str:
    engine = f"{diagnosis.engine} {diagnosis.version}"
    return engine if diagnosis.engine.endswith("-router") else f"{engine}: {diagnosis.model or 'no model'}"


def _verdict(good: bool) -> str:
    return "no fault found" if good else "wrong for Kimi-K3"


def _show_findings(findings: Iterable[Finding], console: Console) -> None:
    from rich.markup import escape

    for finding in findings:
        colour = {"stops": "red", "wrong": "red", "advice": "yellow"}[finding.weight.value]
        console.print(f"[{colour} bold]{finding.weight.value}[/] {escape(finding.what)}")
        console.print(escape(f"    {finding.why} {finding.fix}"))
        console.print(escape(f"    {finding.rule}; {finding.source}"))


def show_reasons(deployment: Deployment, console: Console) -> None:
    """Every flag and variable with its reason."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("setting", "why", "source", "date", "rule"):
        table.add_column(title, overflow="fold")
    image = deployment.image_reason
    table.add_row(deployment.pinned_image, image.why, image.source, image.date, image.rule)
    for role in deployment.roles:
        if len(deployment.roles) > 1:
            table.add_row(role.name, "", "", "", "", style="bold")
        for variable in role.command.environment:
            reason = variable.reason
            row = (reason.why, reason.source, reason.date, reason.rule)
            table.add_row(f"{variable.name}={variable.value}", *row)
        for flag in role.command.flags:
            for reason in (flag.reason, *flag.also):
                row = (reason.why, reason.source, reason.date, reason.rule)
                table.add_row(" ".join(flag.words()), *row)
    console.print(table)
