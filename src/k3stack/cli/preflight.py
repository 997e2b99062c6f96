"""`k3 preflight`: what would go wrong, in seconds, before anything is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from k3stack.cli import options
from k3stack.cli.asked import Docker, EngineChoice, Host, Port, Python, asked_of
from k3stack.cli.output import NO, YES, JsonFlag, Output

if TYPE_CHECKING:
    from k3stack.launch.chosen import Asked
    from k3stack.launch.facts import Wanted
    from k3stack.recipe.deployment import Deployment

__all__ = ["preflight"]


def preflight(
    where: options.Where = "kimi-k3",
    engine: EngineChoice = None,
    engine_version: options.EngineVersion = None,
    hardware: options.HardwareOpen = None,
    scheme: options.SchemeOption = None,
    goal: options.GoalOption = options.GoalName.BALANCED,
    serving: options.ServingOption = options.ServingName.UNIFIED,
    feature: options.FeatureOption = None,
    parsers: options.ParsersOption = options.ParsersName.KIMI_K3,
    gpus: options.GpusOpen = None,
    tp: options.TensorParallelOpen = None,
    pp: options.PipelineParallelOpen = None,
    dp: options.DataParallelOpen = None,
    ep: options.ExpertParallelOpen = None,
    dcp: options.ContextParallelOpen = None,
    context: options.ContextOpen = None,
    concurrency: options.ConcurrencyOpen = None,
    kv_dtype: options.KvOpen = None,
    prefix_caching: options.PrefixCaching = True,
    batched_tokens: options.BatchedTokensOpen = None,
    utilization: options.UtilizationOpen = None,
    docker: Docker = False,
    host: Host = "127.0.0.1",
    port: Port = None,
    python: Python = None,
    ask: Annotated[
        bool, typer.Option("--ask-engine", help="Let the engine's own parser read the flags: 20 s and more of imports.")
    ] = False,
    head: Annotated[str | None, typer.Option(help="HOST:PORT of the head: can it be reached, do clocks agree?")] = None,
    wait_for: Annotated[
        int | None, typer.Option(min=1, help="Be the head: wait for this many other ranks; see --listen.")
    ] = None,
    listen: Annotated[str, typer.Option(help="For --wait-for: where to wait.")] = "0.0.0.0:29500",
    quiet: Annotated[bool, typer.Option("--quiet", help="Leave out what passed.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Check this machine for what is about to be started: GPUs, driver, disks, port, checkpoint, engine, network.

    Exit code 1 when something would fail.
    """
    output = Output(as_json)
    if wait_for is not None:
        raise typer.Exit(_wait(output, listen, wait_for))
    from k3stack.cli.findings_output import show_findings
    from k3stack.launch.preflight import preflight as run

    words = asked_of(
        where, engine=engine, version=engine_version, hardware=hardware, scheme=scheme, goal=goal, serving=serving,
        feature=feature, parsers=parsers, gpus=gpus, tp=tp, pp=pp, dp=dp, ep=ep, dcp=dcp, context=context,
        concurrency=concurrency,
        kv_dtype=kv_dtype, prefix_caching=prefix_caching, batched_tokens=batched_tokens, utilization=utilization,
        host=host, port=port, python=python,
    )  # fmt: skip
    wanted, deployment = _wanted(output, words, docker, head)
    with output.progress("preflight"):
        found = run(wanted, deployment, python, ask)
    output.result(found, lambda console: show_findings(found, console, quiet))
    raise typer.Exit(YES if found.good else NO)


def _wanted(output: Output, words: Asked, docker: bool, head: str | None) -> tuple[Wanted, Deployment | None]:
    """What is about to be started, and its recipe where there is one."""
    from k3stack.hardware.machine import look, plannable
    from k3stack.launch.chosen import choose
    from k3stack.launch.preflight import wanted_for

    chosen = choose(words, plannable(look(measure=False)))
    if chosen.fit is not None and not chosen.fit.yes:
        from k3stack.cli.recipe import show_short

        fit = chosen.fit
        output.result(fit, lambda console: show_short(fit, console))
        raise typer.Exit(NO)
    return wanted_for(words, chosen, docker, head), chosen.deployment


def _wait(output: Output, listen: str, ranks: int) -> int:
    from k3stack.launch.rendezvous import parse_address, wait_for

    host, port = parse_address(listen)
    output.note(f"waiting on {host}:{port} for {ranks} ranks: run `k3 preflight --head THIS-NODE:{port}` there")
    came = wait_for(host, port, ranks, told=output.note)
    output.result(came, lambda console: console.print(f"all came: {', '.join(came)}"))
    return YES
