"""Which programs start an engine: `vllm serve`, `sglang serve`, their modules, routers; with what stands in front."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from k3stack.errors import InputError
from k3stack.recipe.copied.shell import Simple, simple_commands
from k3stack.recipe.copied.values import Copied, Docker

__all__ = ["IMAGES", "Started", "engine_of_image", "in_shell", "started"]

IMAGES = (
    ("sglang", re.compile(r"sglang")),
    ("vllm", re.compile(r"(^|/)(vllm|kimi).*vllm|vllm/|vllm-openai|/vllm(:|@|$|-)")),
)

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_FRONT = set(
    "env exec sudo nohup time nice ionice stdbuf setsid timeout numactl taskset uv uvx poetry pipenv pixi rye hatch "
    "conda mamba micromamba mise srun mpirun mpiexec ssh pdsh tmux screen kubectl docker podman nerdctl apptainer "
    "singularity enroot nsys ncu bash sh zsh ksh dash su script eval command builtin xargs unbuffer chrt flock watch "
    "python python3 torchrun accelerate sky ray tini dumb-init gosu chroot nsenter unshare systemd-run".split()
)
"""Programs that start the one that is named behind them."""

_ELSEWHERE = {"srun", "mpirun", "mpiexec", "ssh", "pdsh", "kubectl", "sky", "ray"}
"""Those that start it on another machine, so that nothing is known of its neighbours."""

_BARE = set(
    "--rm --detach --interactive --tty --privileged --init --read-only --publish-all --oom-kill-disable --sig-proxy "
    "--no-healthcheck --disable-content-trust --quiet --replace --tls-verify".split()
)
_SHORT_BARE = re.compile(r"-[ditPq]+")
_SHORT_WITH_VALUE = re.compile(r"-([evpwulhmvc])(.+)", re.DOTALL)
_PYTHON = re.compile(r"python(\d(\.\d+)?)?")
_NESTED = re.compile(r"\bserve\b|launch_server|vllm\.entrypoints|dynamo\.(vllm|sglang)|router|proxy")
_BEGINS = re.compile(r"(vllm|sglang|smg|python[\d.]*|router)(==[\w.]+)?$")
_DEPTH = 6
_FARTHEST = 400
"""Words among which an engine's program is looked for."""


@dataclass(frozen=True, slots=True)
class Started:
    """An engine found in a command's words.

    Attributes:
        launcher: as in `Copied`.
    """

    engine: str
    words: tuple[str, ...]
    launcher: str = ""


def engine_of_image(image: str) -> str | None:
    """Which engine an image starts by itself, by its name."""
    return next((engine for engine, pattern in IMAGES if pattern.search(image)), None)


def started(words: Sequence[str]) -> Started | None:
    """The engine that these words start, from their first word on."""
    if not words:
        return None
    program = words[0].rpartition("/")[2]
    if program in ("vllm", "sglang") and words[1:2] == ["serve"]:
        return Started(program, tuple(words[2:]))
    if program in ("vllm-router", "sglang-router", "smg"):
        engine = "vllm-router" if program == "vllm-router" else "sglang-router"
        return Started(engine, tuple(words[2:] if words[1:2] in (["launch"], ["server"]) else words[1:]))
    if program.partition("==")[0] == "vllm-router":  # uvx vllm-router==0.1.15
        return Started("vllm-router", tuple(words[1:]))
    if _PYTHON.fullmatch(program):
        return _python(words)
    return None


def _python(words: Sequence[str]) -> Started | None:
    at = 1
    while at < len(words) and words[at].startswith("-") and words[at] != "-m":
        at += 1
    if at < len(words) and words[at].endswith(".py") and re.search(r"proxy|router", words[at]):
        return Started("other-router", tuple(words[at + 1 :]))
    if at < len(words) and words[at].endswith("launch_server.py"):
        return Started("sglang", tuple(words[at + 1 :]))
    if words[at : at + 1] != ["-m"] or len(words) < at + 2:
        return None
    module, rest = words[at + 1], tuple(words[at + 2 :])
    if module.startswith("sglang.launch_server"):
        return Started("sglang", rest)
    if module.startswith("sglang_router"):
        return Started("sglang-router", rest[1:] if rest[:1] == ("launch",) else rest)
    if module.startswith("vllm_router"):
        return Started("vllm-router", rest)
    if module.startswith("vllm.entrypoints"):
        return Started("vllm", rest[1:] if rest[:1] == ("serve",) else rest)
    if module in ("dynamo.vllm", "dynamo.sglang"):
        return Started(module.partition(".")[2], rest, "dynamo")
    if module == "dynamo.frontend":
        return Started("other-router", rest, "dynamo")
    return None


def in_shell(
    text: str, variables: Mapping[str, str] | None = None, line: int = 0, depth: int = 0, host: str = ""
) -> Iterator[Copied]:
    """Every engine and router that a shell text starts, here-documents and `bash -c` included.

    Args:
        variables: what is in its environment.
        line: the line before its first, in the whole text.
        host: the machine that it runs on, if that is known to be one.

    Raises:
        InputError: a quote is never closed.
    """
    last: Copied | None = None
    neighbours: dict[int, str] = {}
    failed: InputError | None = None
    some = False
    for simple in simple_commands(_plain_script(text), variables):
        if last is not None and simple.words and re.match(r"--?\w", simple.words[0]):
            last = replace(last, words=(*last.words, *simple.words), cut=last.cut or simple.words[0])
            continue
        if last is not None:
            yield last
            last, some = None, True
        try:
            found = list(_in_simple(simple, line, depth))
        except InputError as error:  # a container of something else; worth telling only where there is no engine
            failed = failed or error
            continue
        at_once = simple.background or _detached(simple.words)
        here = neighbours.get(simple.block, host)
        if found and at_once:
            here = neighbours.setdefault(simple.block, host or f"{line}.{depth}.{simple.block}")
        for one in found:
            if last is not None:
                yield last
                some = True
            away = any(word.rpartition("/")[2] in _ELSEWHERE for word in simple.words[:3])
            last = one if away or not here or one.host else replace(one, host=here)
    if last is not None:
        yield last
    elif failed is not None and not some:
        raise failed


def _detached(words: Sequence[str]) -> bool:
    return bool({"-d", "--detach", "-dit", "-itd", "-td", "-id", "-dt"} & set(words[:12])) and "run" in words[:6]


def _plain_script(text: str) -> str:
    """Without what marks a prompt or a unit file."""
    text = re.sub(r"(?m)^[ \t]*\$ ", "", text)
    text = re.sub(r"(?m)^(\([\w.-]+\) )?[\w.-]+@[\w.-]+:[^\s#$]*[#$] ", "", text)
    text = re.sub(r"(?m)^\t[@-]+(?=\w)", "", text)  # a recipe in a Makefile
    text = re.sub(r"(?m)^ExecStart=[-@:+!]*", "", text)
    text = re.sub(r"(?m)^Environment=(\"?)(\w+=.*?)\1$", r"export \2", text)
    text = re.sub(r"(?m)^(\s*command)\s*=\s*(?=\S)", "", text) if re.search(r"(?m)^\[program:", text) else text
    return re.sub(r"[ \t][`^][ \t]*\r?\n", " ", text)  # how PowerShell and cmd.exe go on on the next line


def _in_simple(simple: Simple, line: int, depth: int) -> Iterator[Copied]:
    if depth > _DEPTH:
        return
    if simple.text:
        yield from _nested(simple.text, simple.environment, line + simple.line, depth, simple.place)
        return
    for one in in_words(list(simple.words), simple.environment, depth, line + simple.line):
        placed = replace(one, place=one.place or simple.place, line=one.line or line + simple.line)
        ours = {name for name in simple.unexported if name.startswith(("VLLM_", "SGLANG_", "NCCL_"))}
        yield replace(placed, unexported=tuple(sorted(ours - set(one.environment))))


def _nested(text: str, environment: Mapping[str, str], line: int, depth: int, place: str = "") -> Iterator[Copied]:
    """Engines in a text inside the text, which may be in another language and then holds none."""
    if not _NESTED.search(text):
        return
    try:
        found = list(in_shell(text, environment, line, depth + 1))
    except InputError:
        return
    yield from (replace(one, place=one.place or place) for one in found)


def in_words(words: list[str], environment: Mapping[str, str], depth: int = 0, line: int = 0) -> Iterator[Copied]:
    """The engines that one command starts, whatever stands in front of them.

    Raises:
        InputError: `docker run` without an image.
    """
    if words[:2] == ["set", "--"]:  # our own scripts put a command together so, and change it then
        words = words[2:] if "${@}" not in words else []
    words = [word for word in words if word != "${@}"]
    while len(words) > 1 and re.fullmatch(r"\$\{\w+\}", words[0]):
        words = words[1:]  # something that the text does not give, in front of the program
    if not words or words[:2] == ["command", "-v"]:
        return
    program = words[0].rpartition("/")[2]
    found = started(words)
    if found:
        yield Copied(found.engine, found.words, dict(environment), launcher=found.launcher)
        return
    if program not in _FRONT:
        return
    runs = next(
        (at for at, word in enumerate(words[:8]) if word.rpartition("/")[2] in ("docker", "podman", "nerdctl")), -1
    )
    if runs >= 0 and "run" in words[runs + 1 : runs + 3] and "compose" not in words[runs : runs + 2]:
        start = words.index("run", runs) + 1
        yield from _docker(words[start:], {**environment, **_assignments(words[:runs])}, depth, line)
        return
    for at in range(1, min(len(words), _FARTHEST)):
        found = started(words[at:]) if _BEGINS.search(words[at]) else None
        if found:
            given = {**environment, **_assignments(words[:at])}
            yield Copied(found.engine, found.words, given, image=_image_option(words[:at]), launcher=found.launcher)
            return
    front = {**environment, **_assignments(words)}
    for word in words[1:]:
        if re.search(r"\s", word):
            yield from _nested(word, front, max(0, line - 1), depth)


def _assignments(words: Sequence[str]) -> dict[str, str]:
    """`NAME=VALUE` among the words in front of an engine, and behind `-e` or srun's `--export`."""
    found: dict[str, str] = {}
    for word in words:
        if assigned := _ASSIGNMENT.fullmatch(word):
            found[assigned[1]] = assigned[2]
        elif word.startswith("--export="):
            found |= _assignments(word.removeprefix("--export=").split(","))
    return found


def _image_option(words: Sequence[str]) -> str:
    """The image that pyxis or apptainer is told."""
    for word in words:
        if word.startswith("--container-image="):
            return word.partition("=")[2].replace("#", "/").removeprefix("docker://")
        if word.startswith("docker://"):
            return word.removeprefix("docker://")
    return ""


def _docker(words: list[str], environment: Mapping[str, str], depth: int, line: int) -> Iterator[Copied]:
    options, rest = _options(words)
    if not rest:
        raise InputError("docker run names no image", where="--from", hint="Give the whole command.")
    given: dict[str, str] = {}  # a container sees only what it is handed
    for text in (*options.get("-e", []), *options.get("--env", [])):
        name, equals, value = text.partition("=")
        if equals:
            given[name] = value
        elif name in environment:
            given[name] = environment[name]
    image, inner = rest[0], rest[1:]
    network = [*options.get("--network", []), *options.get("--net", [])]
    docker = Docker(
        image=image,
        host_network="host" in network,
        host_ipc="host" in options.get("--ipc", []),
        shared_memory="--shm-size" in options,
        publishes=(*options.get("-p", []), *options.get("--publish", [])),
        mounts=(*options.get("-v", []), *options.get("--volume", []), *options.get("--mount", [])),
    )
    entry = options.get("--entrypoint", [])
    yield from in_container([*entry, *inner], given, image, docker, depth, line, bool(entry))


def in_container(
    words: list[str],
    given: Mapping[str, str],
    image: str,
    docker: Docker | None,
    depth: int = 0,
    line: int = 0,
    entry: bool = False,
) -> Iterator[Copied]:
    """The engines that a container starts: what its words say, or what its image starts by itself.

    Args:
        entry: the words name a program, so that the image's own is not run.

    Raises:
        InputError: it starts nothing and its image is no engine's.
    """
    found = list(in_words(words, given, depth, line))
    if not found and not entry:
        engine = engine_of_image(image)
        if engine is None:
            raise InputError(f"{image} is no image of vLLM or SGLang that is known", where="--from")
        if engine == "vllm" or words[:1] == ["serve"] or (words and words[0].startswith("-")):
            rest = words[1:] if words[:1] == ["serve"] else words
            found = [Copied(engine, tuple(rest), dict(given))]  # the image's own entry point starts the engine
        else:
            raise InputError(
                f"{' '.join(words[:2]) or image} starts no engine that is known",
                where="--from",
                hint="Give the whole command, with `sglang serve` in it.",
            )
    for one in found:
        shares = docker.host_network if docker else one.shares_ports
        yield replace(one, image=one.image or image, docker=one.docker or docker, shares_ports=shares)


def _options(words: list[str]) -> tuple[dict[str, list[str]], list[str]]:
    found: dict[str, list[str]] = {}
    while words and words[0].startswith("-"):
        name, equals, value = words[0].partition("=")
        words = words[1:]
        stuck = _SHORT_WITH_VALUE.fullmatch(name)
        if name in _BARE or _SHORT_BARE.fullmatch(name) or (equals and name.startswith("--")):
            found.setdefault(name, []).append(value)
        elif stuck and not name.startswith("--"):
            found.setdefault(f"-{stuck[1]}", []).append(stuck[2].lstrip("=") + (f"={value}" if equals else ""))
        elif equals:
            found.setdefault(name, []).append(value)
        else:
            found.setdefault(name, []).append(words[0] if words else "")
            words = words[1:]
    return found, words
