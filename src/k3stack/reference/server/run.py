"""From a checkpoint's folder to a running server.

One process: the engine has a thread, HTTP the main thread. uvicorn, because it runs in the process that loaded the
checkpoint, so a bad one is an error before anything listens; granian, which the guard uses, starts its application in
a new process. Next to a forward pass the time of either does not count.
"""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import uvicorn

from k3stack.checkpoint.mark import is_random
from k3stack.errors import ConfigError, UnavailableError
from k3stack.files import json_value
from k3stack.reference.constraint import Grammars
from k3stack.reference.engine import Engine, EngineOptions
from k3stack.reference.model import K3, load_model
from k3stack.reference.server.app import ReferenceApp
from k3stack.reference.server.eyes import Eyes
from k3stack.reference.server.host import Host
from k3stack.reference.server.metrics import Metrics
from k3stack.reference.server.settings import ServerSettings
from k3stack.reference.threads import set_threads
from k3stack.reference.tokenizer import Tokenizer
from k3stack.reference.worker import Worker
from k3stack.spec.config import read_config

__all__ = ["KV_DTYPES", "MODEL_DTYPES", "Loading", "listen", "load_host", "serve"]

MODEL_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
KV_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "fp8": torch.float8_e4m3fn}
_BACKLOG = 1024


@dataclass(frozen=True, slots=True)
class Loading:
    """How a checkpoint is loaded.

    Attributes:
        folder: the checkpoint.
        draft: a draft's folder, or None.
        dtype: what is computed in.
        device: cpu, cuda, cuda:1, ...
        keep_quantised: weights stay as stored and are decoded at each use.
        steady: a request's numbers do not depend on what runs beside it; prefill is slower.
        threads: of a pass on the CPU; None: one for a checkpoint below 1 GB, for which more only wait for each other.
    """

    folder: Path
    draft: Path | None = None
    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    keep_quantised: bool = False
    steady: bool = True
    threads: int | None = None


def load_host(
    loading: Loading, options: Callable[[int], EngineOptions], settings: Callable[[int, bool], ServerSettings]
) -> Host:
    """Load a checkpoint and start its engine.

    Args:
        loading: what and how.
        options: engine options for the checkpoint's own longest context.
        settings: server settings for the context in use, and for whether the weights are random.

    Raises:
        K3Error: the checkpoint, its tokenizer or the device is not there or not what it must be.
    """
    config = read_config(loading.folder / "config.json")
    text = config.text_config
    tokenizer = Tokenizer.load(loading.folder, text.vocab_size)
    set_threads(loading.folder, loading.device, loading.threads)
    model = load_model(
        loading.folder,
        dtype=loading.dtype,
        keep_quantised=loading.keep_quantised,
        device=loading.device,
        draft=loading.draft,
        steady=loading.steady,
    )
    chosen = options(text.max_position_embeddings)
    end = end_token(loading.folder)
    if not 0 <= end < tokenizer.size:
        raise ConfigError(f"the end token {end} is not in the vocabulary", where=loading.folder / "config.json")
    engine = _engine(model, chosen, end)
    served = settings(chosen.context, is_random(loading.folder))
    worker = Worker(engine)
    worker.start()
    eyes = None if model.vision is None else Eyes(model)
    return Host(served, tokenizer, Grammars(tokenizer, end), worker, Metrics(engine, served.model), eyes)


def _engine(model: K3, options: EngineOptions, end: int) -> Engine:
    try:
        return Engine(model, options, [end], model.draft)
    except (RuntimeError, MemoryError) as error:  # torch's own, and its OutOfMemoryError, are RuntimeErrors
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise
        what = f"there is not memory for {options.page_count:,} pages of {options.page_tokens:,} tokens"
        hint = "Give fewer --pages, a shorter --max-context or fewer requests: --max-running."
        raise UnavailableError(what, where="--pages", hint=hint) from None


def end_token(folder: Path) -> int:
    """The token that ends an answer, from config.json.

    Raises:
        ConfigError: it names none.
    """
    try:
        config = json_value((folder / "config.json").read_bytes())
        found = config.get("eos_token_id", config.get("text_config", {}).get("eos_token_id"))
        return int(found[0] if isinstance(found, list) else found)
    except (OSError, ValueError, TypeError, IndexError):
        raise ConfigError("names no end token", where=f"{folder / 'config.json'}: eos_token_id") from None


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one.

    Raises:
        UnavailableError: the address is taken or is not this machine's.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
            listener.listen(_BACKLOG)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        hint = "Choose another with --port, or an address of this machine with --host."
        raise UnavailableError(f"cannot listen: {error.strerror}", where=f"{host}:{port}", hint=hint) from None
    return listener


def serve(host: Host, listener: socket.socket, drain_s: int) -> None:
    """Serve until SIGINT or SIGTERM, then take no new requests and finish those begun, for at most `drain_s`."""
    config = uvicorn.Config(
        ReferenceApp(host),
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=drain_s,
        timeout_keep_alive=30,
        backlog=_BACKLOG,
        ws="none",
    )
    try:
        _Server(config).run(sockets=[listener])
    finally:
        host.worker.stop()


class _Server(uvicorn.Server):
    """uvicorn, which raises a signal once more when it has ended; ours has then done what was asked, and returns."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle SIGINT and SIGTERM while serving."""
        before = {each: signal.signal(each, self.handle_exit) for each in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)
