"""From what was chosen to what is started: the words of a command and what it adds to the environment, as data."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from k3stack.errors import UsageError
from k3stack.launch.chosen import Asked, Chosen
from k3stack.recipe.choice import CARD
from k3stack.recipe.deployment import Deployment, Role
from k3stack.recipe.render import Form, render

__all__ = ["PATCHES", "Start", "node_commands", "start_of"]

PATCHES = "patches"
"""The folder of written patches, inside the run's folder."""

_DOCKER = "docker run --rm"

_K3 = "from k3stack.cli.main import main; main()"


@dataclass(frozen=True, slots=True)
class Start:
    """One process to start.

    Attributes:
        words: the command.
        environment: what is added to ours.
        model: the name to ask for; None where the engine decides.
        patched: whether the runtime patches are written into the run's folder and put on its path.
        container: its name, when it is one.
    """

    engine: str
    words: tuple[str, ...]
    environment: dict[str, str]
    host: str
    port: int
    model: str | None
    patched: bool = False
    container: str | None = None

    @property
    def url(self) -> str:
        """Where it answers, from this machine."""
        host = "127.0.0.1" if self.host in ("0.0.0.0", "::", "") else self.host
        return f"http://{host}:{self.port}"

    def text(self) -> str:
        """The command as a person would type it."""
        variables = [f"{name}={shlex.quote(value)}" for name, value in sorted(self.environment.items())]
        return " ".join([*variables, shlex.join(self.words)])


def start_of(asked: Asked, chosen: Chosen, docker: bool = False, run: str = "k3", folder: Path | None = None) -> Start:
    """What to start on this machine.

    Args:
        run: the run's id, for the container's name.
        folder: of the run, where patches are written.

    Raises:
        UsageError: it wants several nodes, or a container where there is no recipe.
    """
    if chosen.deployment is None:
        if docker:
            raise UsageError("needs a recipe, which there is for Kimi-K3 only", where="--docker")
        return _reference(asked) if chosen.engine == "reference" else _plain(asked, chosen)
    if chosen.deployment.several_nodes:
        raise UsageError(
            "takes several nodes; one start is one node",
            where=chosen.model,
            hint="Run the commands that `k3 up --dry-run` prints, each on its node.",
        )
    if docker:
        return _container(asked, chosen.deployment, run, folder)
    if chosen.deployment.version == CARD:
        raise UsageError(
            "is an image, not a release that can be installed",
            where=f"--engine-version {CARD}",
            hint="Use --docker, or a release: --engine-version 0.33.0.",
        )
    return _process(asked, chosen.deployment, folder)


def _host_and_port(asked: Asked, default: int = 8000) -> tuple[str, int]:
    return asked.host, asked.port or default


def _reference(asked: Asked) -> Start:
    host, port = _host_and_port(asked)
    words = [sys.executable, "-c", _K3, "serve", asked.where, "--host", host, "--port", str(port)]
    words += ["--name", asked.name] if asked.name else []
    words += ["--max-context", str(asked.context)] if asked.context else []
    return Start("reference", (*words, *asked.extra), {}, host, port, asked.name)


def _plain(asked: Asked, chosen: Chosen) -> Start:
    """An engine with nothing but its model, name and address: for models that there is no recipe for."""
    host, port = _host_and_port(asked)
    name = asked.name or Path(asked.where).name.lower()
    common = ["--host", host, "--port", str(port), "--served-model-name", name]
    if asked.context is not None:
        common += ["--max-model-len" if chosen.engine == "vllm" else "--context-length", str(asked.context)]
    if asked.tp is not None:
        common += ["--tensor-parallel-size" if chosen.engine == "vllm" else "--tp-size", str(asked.tp)]
    model = [asked.where] if chosen.engine == "vllm" else ["--model-path", asked.where]
    words = (*_program(chosen.engine, asked.python), *model, *common, *asked.extra)
    return Start(chosen.engine, words, {}, host, port, name)


_MODULES = {"vllm": ("vllm.entrypoints.cli.main", "serve"), "sglang": ("sglang.launch_server",)}


def _program(engine: str, python: str | None) -> tuple[str, ...]:
    """The engine's first words: its command on the path, or its module in another Python."""
    from k3stack.engines.installed import find_python

    found = python or find_python(engine)
    if found is None:
        return ("vllm", "serve") if engine == "vllm" else ("sglang", "serve")
    module, *more = _MODULES[engine]
    return (found, "-m", module, *more)


def _process(asked: Asked, deployment: Deployment, folder: Path | None) -> Start:
    role = deployment.roles[0]
    host, port = _host_and_port(asked, role.port)
    filled = {"{rank}": "0", "{head}": "127.0.0.1", "{self}": "127.0.0.1", "{dp_start}": "0", "{listen}": host}
    words = role.command.words()[len(role.command.program) :]
    words = [_fill(word, filled) for word in _with_address(words, host, port)]
    environment = {name: _fill(value, filled) for name, value in role.command.variables().items()}
    patched = bool(deployment.patches) and deployment.engine == "vllm"
    if patched:
        patches = str((folder or Path("RUN-FOLDER")) / PATCHES)
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [patches, os.environ.get("PYTHONPATH")]))
    program = _program(deployment.engine, asked.python)
    name = role.command.flag("served-model-name")
    return Start(
        deployment.engine,
        (*program, *words, *asked.extra),
        environment,
        host,
        port,
        str(name) if name else None,
        patched,
    )


def _with_address(words: list[str], host: str, port: int) -> Iterator[str]:
    """The words with --host and --port as asked."""
    wanted = {"--host": host, "--port": str(port)}
    for at, word in enumerate(words):
        yield wanted.get(words[at - 1], word) if at else word


def _fill(text: str, filled: Mapping[str, str]) -> str:
    for place, value in filled.items():
        text = text.replace(place, value)
    return text


def _container(asked: Asked, deployment: Deployment, run: str, folder: Path | None) -> Start:
    """The recipe's own `docker run`, with a name by which it can be ended whatever happens."""
    role = deployment.roles[0]
    host, port = _host_and_port(asked, role.port)
    name, script = f"k3-{run}", render(deployment, Form.DOCKER)
    assert _DOCKER in script
    script = script.replace(_DOCKER, f"{_DOCKER} --name {name}", 1)
    script = script.replace(f"127.0.0.1:{role.port}:{role.port}", f"{host}:{port}:{role.port}")
    model = role.command.flag("served-model-name")
    words = ("sh", "-c", script, "k3-start")
    # The first image has the checkpoint's own patch files, which the user must name; for releases we write ours.
    ours = bool(deployment.patches) and deployment.version != CARD
    environment = {"K3_PATCH_DIR": str((folder or Path("RUN-FOLDER")) / PATCHES)} if ours else {}
    if deployment.patches and not ours and "K3_PATCH_DIR" not in os.environ:
        hint = "Set it to the folder with the checkpoint's runtime patches (runtime_patches/ on the hub)."
        raise UsageError("is not set", where="K3_PATCH_DIR", hint=hint)
    return Start(deployment.engine, words, environment, host, port, str(model) if model else None, ours, name)


def node_commands(deployment: Deployment, docker: bool, script: str = "k3-start.sh") -> tuple[tuple[str, str], ...]:
    """What to run on each node, with the rendezvous check before it: pairs of where and what.

    The script is the recipe's, `k3 recipe --format docker` or `--format shell`.
    """
    engines = [role for role in deployment.roles if role.name != "router"]
    nodes = sum(role.nodes for role in engines)
    found = [
        ("once", f"k3 recipe ... --format {'docker' if docker else 'shell'} > {script}, and copy it to every node")
    ]
    found.append(("check, node 0", f"k3 preflight --wait-for {nodes - 1} --listen 0.0.0.0:29500"))
    found.append(("check, every other node", "k3 preflight --head ADDRESS-OF-NODE-0:29500"))
    for role in engines:
        for rank in reversed(range(role.nodes)):  # workers first: a head that waits for them answers nobody
            found.append((f"{role.name}, rank {rank}", _node(role, rank, script)))
    found += [(role.name, f"sh {script} {role.name}") for role in deployment.roles if role.name == "router"]
    return tuple(found)


def _node(role: Role, rank: int, script: str) -> str:
    head = f"K3_HEAD=ADDRESS-OF-{role.name.upper()}-RANK-0 " if role.nodes > 1 else ""
    return f"{head}sh {script} {role.name}" + (f" {rank}" if role.nodes > 1 else "")
