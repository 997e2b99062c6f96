"""`k3 guard`: the tool-call guard as a proxy."""

from __future__ import annotations

from typing import Annotated

import typer

from k3stack.cli.options import choice_of

__all__ = ["guard"]

_Upstreams = Annotated[
    list[str], typer.Option("--upstream", help="A server's address, as in http://127.0.0.1:8000; may be repeated.")
]


def guard(
    upstream: _Upstreams,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65_535, help="Port to listen on.")] = 8081,
    resamples: Annotated[int, typer.Option(help="How often a bad answer may be asked again, 0 to 2.")] = 1,
    resample_within: Annotated[
        float | None, typer.Option(help="No second attempt later than this many seconds. Default: no limit.")
    ] = None,
    on_exhausted: Annotated[
        str, typer.Option(help="When no attempt is valid: pass (valid JSON, flagged) or error.")
    ] = "pass",
    coerce: Annotated[
        bool, typer.Option(help="Turn values of the wrong type into the schema's where there is one meaning.")
    ] = True,
    hold_reasoning: Annotated[
        bool, typer.Option(help="Keep reasoning back until it has ended: no live reasoning, nothing misplaced.")
    ] = False,
    source: Annotated[
        str, typer.Option(help="What upstreams send: parsed (by their own parsers) or raw (K3's grammar).")
    ] = "parsed",
    balance: Annotated[str, typer.Option(help="How to choose an upstream: least-loaded or sticky.")] = "least-loaded",
    max_body_mb: Annotated[int, typer.Option(help="Largest request body, MB.")] = 256,
    max_in_flight: Annotated[int, typer.Option(help="Most requests at a time; more get 429.")] = 1024,
    max_images: Annotated[int, typer.Option(help="Most images in a request.")] = 64,
    max_image_mb: Annotated[int, typer.Option(help="Largest image, MB.")] = 32,
    image_host: Annotated[
        list[str] | None, typer.Option(help="Host that image addresses may name; may be repeated. Default: any.")
    ] = None,
    connect_timeout: Annotated[float, typer.Option(help="Seconds for a connection to an upstream.")] = 5.0,
    first_byte_timeout: Annotated[
        float | None,
        typer.Option(help="Seconds until an answer must begin. Default: no limit; long prompts take long."),
    ] = None,
    idle_timeout: Annotated[float, typer.Option(help="Seconds of silence allowed within an answer.")] = 300.0,
    keep_alive: Annotated[float, typer.Option(help="Seconds of silence after which clients get a comment.")] = 10.0,
    drain: Annotated[int, typer.Option(help="Seconds to finish running requests after SIGTERM.")] = 600,
    log: Annotated[bool, typer.Option(help="A line of JSON on stderr for each request.")] = True,
    prefix_metrics: Annotated[bool, typer.Option(help="Measure how much of each prompt's front repeats.")] = False,
    explain_prefix: Annotated[bool, typer.Option(help="Also print where prompts diverge, and why.")] = False,
) -> None:
    """Sit in front of vLLM or SGLang: tool calls reach clients valid, or not at all."""
    from k3stack.cli.output import Output
    from k3stack.errors import UnavailableError

    try:
        from k3stack.guard.serve import serve
        from k3stack.guard.settings import Balance, Settings
    except ModuleNotFoundError as error:
        hint = "Install it: pip install 'k3stack[guard]'"
        raise UnavailableError(f"the guard needs the package {error.name}", hint=hint) from None
    from k3stack.guard.images import ImageLimits
    from k3stack.guard.policy import OnExhausted, Policy, Source
    from k3stack.values import load

    policy = {
        "resamples": resamples,
        "resample_within_s": resample_within,
        "on_exhausted": choice_of(OnExhausted, on_exhausted, "--on-exhausted"),
        "coerce": coerce,
        "hold_reasoning": hold_reasoning,
        "source": choice_of(Source, source, "--source"),
    }
    hosts = None if image_host is None else frozenset(image_host)
    settings = Settings(
        upstreams=tuple(upstream),
        policy=load(Policy, policy),
        images=ImageLimits(count=max_images, image_bytes=max_image_mb * 10**6, hosts=hosts),
        balance=choice_of(Balance, balance, "--balance"),
        max_body_bytes=max_body_mb * 10**6,
        max_in_flight=max_in_flight,
        connect_s=connect_timeout,
        first_byte_s=first_byte_timeout,
        idle_s=idle_timeout,
        keep_alive_s=keep_alive,
        log=log,
        prefixes=prefix_metrics or explain_prefix,
        explain=explain_prefix,
    )
    Output().note(f"guard on http://{host}:{port}, in front of {', '.join(settings.upstreams)}")
    serve(settings, host, port, drain)
