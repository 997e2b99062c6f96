"""`k3 serve`: the OpenAI API over a checkpoint, on the reference engine."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["serve"]


class Computed(StrEnum):
    """What is computed in."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


class Cached(StrEnum):
    """What the latent cache holds."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FP8 = "fp8"


def serve(
    folder: Annotated[Path, typer.Argument(help="The checkpoint.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8000,
    name: Annotated[str | None, typer.Option(help="The model's name. Default: the folder's.")] = None,
    dtype: Annotated[Computed, typer.Option(help="What is computed in.")] = Computed.FLOAT32,
    kv_dtype: Annotated[Cached | None, typer.Option(help="What the latent cache holds. Default: as computed.")] = None,
    device: Annotated[str, typer.Option(help="cpu, or a GPU as in cuda or cuda:1.")] = "cpu",
    draft: Annotated[Path | None, typer.Option(help="A DSpark draft's folder, for speculative decoding.")] = None,
    draft_tokens: Annotated[int, typer.Option(min=1, max=15, help="Tokens drafted at a time.")] = 4,
    keep_quantised: Annotated[
        bool, typer.Option(help="Keep weights as stored and decode them at each use: less memory, slower.")
    ] = False,
    steady: Annotated[
        bool, typer.Option(help="Numbers do not depend on what runs beside; --no-steady is faster.")
    ] = True,
    max_context: Annotated[
        int | None, typer.Option(min=2, help="Longest prompt and answer together, tokens. Default: the checkpoint's.")
    ] = None,
    max_running: Annotated[int, typer.Option(min=1, max=65_536, help="Requests that run at a time; more wait.")] = 16,
    token_budget: Annotated[
        int, typer.Option(min=1, help="Prompt tokens computed in a pass, beside one for each request that answers.")
    ] = 512,
    page_tokens: Annotated[int, typer.Option(min=1, max=65_536, help="Tokens in a page of the latent cache.")] = 16,
    pages: Annotated[
        int | None, typer.Option(min=1, max=2**31, help="Pages of the latent cache. Default: by context.")
    ] = None,
    prefix_memory_mb: Annotated[
        int, typer.Option(min=0, help="Memory for states of kept prefixes, MB; 0: no prefix cache.")
    ] = 512,
    threads: Annotated[
        int | None,
        typer.Option(min=1, max=4_096, help="CPU threads. Default: 1 for small checkpoints, else PyTorch's."),
    ] = None,
    max_body_mb: Annotated[int, typer.Option(min=1, help="Largest request body, MB.")] = 64,
    max_in_flight: Annotated[int, typer.Option(min=1, help="Most HTTP requests at a time; more get 429.")] = 512,
    fetch_images: Annotated[
        bool, typer.Option(help="Fetch images from https addresses (never from private networks).")
    ] = True,
    drain: Annotated[int, typer.Option(min=0, help="Seconds to finish running requests after SIGTERM.")] = 30,
    log: Annotated[bool, typer.Option(help="A line of JSON on stderr for each request.")] = True,
) -> None:
    """Serve a checkpoint with an exact, readable engine: for tests and for building against K3's API.

    Not for production: a tiny checkpoint (`k3 tiny`) runs on a laptop, Kimi-K3 itself needs vLLM or SGLang.
    """
    from k3stack.cli.output import Output
    from k3stack.errors import UnavailableError

    try:
        from k3stack.reference.server import run
    except ModuleNotFoundError as error:
        hint = "Install it: pip install 'k3stack[reference]'"
        raise UnavailableError(f"the reference engine needs the package {error.name}", hint=hint) from None
    from k3stack.reference.engine import EngineOptions
    from k3stack.reference.server.settings import ServerSettings

    def options(longest: int) -> EngineOptions:
        return EngineOptions(
            context=min(max_context or longest, longest),
            slots=max_running,
            page_tokens=page_tokens,
            pages=pages,
            latent_dtype=run.KV_DTYPES[kv_dtype or dtype],
            chunk_tokens=token_budget,
            snapshot_bytes=prefix_memory_mb * 10**6,
            draft_tokens=0 if draft is None else draft_tokens,
        )

    def settings(context: int, random_weights: bool) -> ServerSettings:
        return ServerSettings(
            model=name or folder.resolve().name,
            context=context,
            random_weights=random_weights,
            max_body_bytes=max_body_mb * 10**6,
            max_in_flight=max_in_flight,
            fetch_images=fetch_images,
            log=log,
        )

    output = Output()
    # The address is taken before the checkpoint is read: who finds it in use need not wait for that.
    with run.listen(host, port) as listener:
        output.note(f"loading {folder}")
        loading = run.Loading(folder, draft, run.MODEL_DTYPES[dtype], device, keep_quantised, steady, threads)
        made = run.load_host(loading, options, settings)
        if made.settings.random_weights:
            output.note("the weights are random: answers have K3's form and no meaning")
        where = f"[{host}]" if ":" in host else host
        output.note(f"serving {made.settings.model} on http://{where}:{listener.getsockname()[1]}/v1")
        run.serve(made, listener, drain)
