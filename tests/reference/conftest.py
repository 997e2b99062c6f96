"""A tiny checkpoint, smaller than `k3 tiny`'s, with a draft, and a server over it in this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import openai
import pytest
import torch
import uvicorn

from k3stack.checkpoint.tiny import TinyShape, write_tiny
from k3stack.checkpoint.tiny_draft import write_tiny_draft
from k3stack.reference.engine import EngineOptions
from k3stack.reference.model import K3, load_model
from k3stack.reference.server.app import ReferenceApp
from k3stack.reference.server.host import Host
from k3stack.reference.server.run import Loading, listen, load_host
from k3stack.reference.server.settings import ServerSettings
from k3stack.spec import Scheme

SHAPE = TinyShape(
    layers=4,
    heads=1,
    hidden=256,
    experts=4,
    experts_per_token=2,
    expert_width=128,
    dense_width=256,
    q_lora_rank=64,
    context=4096,
)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Threads of several test processes fight over a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("serve") / "tiny-k3"
    write_tiny(folder, Scheme.MXFP4, shape=SHAPE)
    return folder


@pytest.fixture(scope="session")
def draft(tiny: Path) -> Path:
    folder = tiny.parent / "draft"
    write_tiny_draft(folder, shape=SHAPE)
    return folder


@pytest.fixture(scope="session")
def small_model(tiny: Path, draft: Path) -> K3:
    return load_model(tiny, draft=draft)


@dataclass
class Served:
    """A running server."""

    host: Host
    url: str
    client: openai.OpenAI
    http: httpx.Client

    def idle(self) -> bool:
        """Whether nothing runs and nothing leaked."""
        engine = self.host.worker.engine
        if engine.busy:
            return False
        engine.cache.check()
        return engine.cache.free_slots == engine.options.slots


@pytest.fixture(scope="session")
def served(tiny: Path) -> Iterator[Served]:
    def options(longest: int) -> EngineOptions:
        return EngineOptions(context=longest, slots=8, latent_dtype=torch.float32, snapshot_bytes=2**26)

    def settings(context: int, random_weights: bool) -> ServerSettings:
        return ServerSettings("tiny-k3", context, random_weights, max_body_bytes=10**6, max_in_flight=100, log=False)

    listener = listen("127.0.0.1", 0)
    host = load_host(Loading(tiny), options, settings)
    config = uvicorn.Config(ReferenceApp(host), lifespan="off", log_config=None, access_log=False, ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    limits = httpx.Limits(max_connections=200)
    with (
        httpx.Client(base_url=url, timeout=120, limits=limits) as http,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120) as client,
    ):
        http.get("/health").raise_for_status()
        yield Served(host, url, client, http)
    server.should_exit = True
    thread.join(30)
    host.worker.stop()
    listener.close()
